"""Opening a store whatever lies there: a damaged file is set aside, an unknown format left alone, a read-only
directory read."""

from typing import IO

from ninfer_engine.memory.store.database import Database
from ninfer_engine.memory.store.envelope import FORMAT
from ninfer_engine.memory.store.errors import StoreCorruptError, StoreIncompatibleError, StoreUnavailableError
from ninfer_engine.memory.store.place import StorePlace


def open_database(place: StorePlace) -> Database:
    """The database of a store, made if there is none. Raises StoreUnavailableError, StoreIncompatibleError; and
    StoreCorruptError only where a damaged file cannot be set aside."""
    writable = place.prepare()
    if not writable and not (place.database / "data.mdb").exists():
        raise StoreUnavailableError(f"there is no store at {place.directory} and none can be made: it is read-only")
    hold = place.user()
    try:
        database = _open(place, writable, hold)
    except BaseException:
        if hold is not None:
            hold.close()
        raise
    try:
        _check_format(database)
    except BaseException:
        database.close()
        raise
    return database


def rebuild(place: StorePlace) -> bool:
    """Replace the database's file by a compact copy of itself; when that cannot be made, set it aside and let the
    next opening start empty. Whether the content is still there. Nobody may have it open, the caller included."""
    place.prepare()
    hold = place.user()
    if hold is None:
        raise StoreUnavailableError("the store is read-only: make it writable")
    with hold, place.alone(hold):
        try:
            place.replace_by_compacted_copy()
        except StoreCorruptError:
            place.set_database_aside()
            return False
    return True


def _open(place: StorePlace, writable: bool, hold: IO[bytes] | None) -> Database:
    try:
        place.probe()
        return Database(place.database, not writable, hold)
    except StoreCorruptError:
        if not writable or hold is None:
            raise
        with place.alone(hold):
            place.set_database_aside()
            return Database(place.database, False, hold)


def _check_format(database: Database) -> None:
    with database.read() as txn:
        stored = database.get(txn, "meta", b"format")
        found = stored
    if found is None:
        if not database.readonly:
            with database.write() as txn:
                database.put(txn, "meta", b"format", str(FORMAT).encode())
    elif not found.isdigit() or int(found) != FORMAT:
        raise StoreIncompatibleError(f"the store has format {found.decode(errors='replace')[:16]}, this engine reads "
                                     f"{FORMAT}: use the engine that wrote it, or another directory", ("format",))
