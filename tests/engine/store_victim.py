"""A process that changes a store until it is killed: `python store_victim.py DIR SEED ARCHIVES`.

Its parent knows what it may find afterwards: each finished step is a line "session generation" (0: deleted) on
standard output, each begun one a line "begin session".
"""

import random
import sys
from pathlib import Path

from store_cases import SavedSession, open_store, save, session_name

from ninfer_engine.memory.store.archive import import_session
from ninfer_engine.memory.store.errors import QuotaError

QUOTA = 12_000_000
NAMES = ("one", "two", "three", "four")


def session_of(name: str, forks: int) -> SavedSession:
    """The session `name` with so many forks: the same bytes in every process."""
    saved = SavedSession(name, base=300, page_bytes=20_000, image_bytes=700_000)
    for index in range(forks):
        saved.fork(index, suffix=90)
    return saved


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(directory: Path, seed: int, archives: Path) -> None:
    """Save, reclaim, import, collect, in random order, for ever."""
    chance = random.Random(seed)
    store = open_store(directory, quota=QUOTA)
    sessions = {name: session_name(name) for name in NAMES}
    while True:
        name = chance.choice(NAMES)
        _say(f"begin {sessions[name]}")
        match chance.randrange(6):
            case 0:
                import_session(store, archives / f"{name}.tar", force=True)
            case 1:
                store.gc()
            case _:
                others = [sessions[other] for other in NAMES if other != name]
                chance.shuffle(others)
                try:
                    save(store, session_of(name, chance.randrange(8)), reclaim=others)
                except QuotaError:
                    continue
        _say(f"done {sessions[name]} {store.status(sessions[name]).generation}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
