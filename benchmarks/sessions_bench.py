"""What saving and restoring a session cost, on the tiny model: `python -m benchmarks.sessions_bench [TOKENS]`.

One engine decodes for another session while the template's session is saved from scratch again and again, idle windows
between the saves; then forks are saved; then new processes restore from a cold file, each beside the disk's own read of
it. The file is dropped from the page cache before both.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.engine_process import EngineProcess, tiny_model
from benchmarks.fork_bench import SESSION, ask, question, template
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.objects import entry_of

ROUNDS, IDLE_S = 8, 1.5
RESTARTS, SETTLE_S = 6, 2.0  # after a start: upkeep of the store, memory for the pools
SIBLINGS = 16
OTHER = "0d" * 32


@dataclass
class Gaps:
    """When the tokens of a running stream arrived."""

    at: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def within(self, windows: list[tuple[float, float]]) -> list[float]:
        """Milliseconds between tokens that both arrived inside one of the windows."""
        pairs = zip(self.at, self.at[1:], strict=False)
        return [1e3 * (right - left) for left, right in pairs
                if any(start <= left and right <= end for start, end in windows)]


def main(size: int) -> None:
    """Print one table."""
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(size, Path(directory))
    print(f"| {size:,} tokens | figure | must |")
    print("|---|---|---|")
    for what, figure, must in rows:
        print(f"| {what} | {figure} | {must} |")


def measure(size: int, directory: Path) -> list[tuple[str, str, str]]:
    """Every row of the table."""
    store = directory / "store"
    argv = ["--max-context", "131072", "--kv-capacity", "262144", "--prefill-chunk", "2048", "--max-concurrency", "2",
            "--expected-forks", str(SIBLINGS), "--session-checkpoint-dir", str(store),
            "--session-checkpoint-min-tokens", "100000000"]
    model = tiny_model(directory)
    with EngineProcess(model, argv, directory / "first.log") as engine:
        client = engine.client
        text = template(client, size)
        ask(client, "warm up the kernels before anything is timed", 8, session=None)
        _, base = ask(client, text, 8)
        rows = beside_decode(client)
        added, last = forks(client, base["id"], store)
        rows += added
    return rows + restore(model, argv, directory, base, last)


def beside_decode(client: httpx.Client) -> list[tuple[str, str, str]]:
    """Token gaps of another session without and with a save, in one run."""
    gaps, idle, busy, stalls, seconds = Gaps(), [], [], [], []
    with decoding(client, gaps):
        for _ in range(ROUNDS):
            client.request("DELETE", "/v1/ninfer/checkpoints", json={"session_sha256": SESSION}).raise_for_status()
            time.sleep(0.2)
            started = time.perf_counter()
            time.sleep(IDLE_S)
            idle.append((started, time.perf_counter()))
            started = time.perf_counter()
            saved = save(client)
            busy.append((started, time.perf_counter()))
            stalls.append(saved["engine_stall_s"])
            seconds.append(busy[-1][1] - started)
    quiet, loud = gaps.within(idle), gaps.within(busy)
    rate = saved["written_bytes"] / statistics.median(seconds) / 1e6
    rows = [(f"save of {saved['written_bytes'] / 1e6:.0f} MB, median of {ROUNDS}",
             f"{statistics.median(seconds):.2f} s, {rate:.0f} MB/s", "")]
    for percent in (50, 99):
        before, during = percentile(quiet, percent), percentile(loud, percent)
        rows.append((f"token gap p{percent}, {len(quiet)} idle and {len(loud)} during saves",
                     f"{before:.2f} ms, {during:.2f} ms: {during / before:.2f} x", "1.3 x"))
    return [*rows, ("engine_stall_s, worst of all saves", f"{max(stalls) * 1e3:.2f} ms", "5 ms")]


def forks(client: httpx.Client, base: str, store: Path) -> tuple[list[tuple[str, str, str]], str]:
    """What one more fork adds to the store, and what sixteen do; the id of the last one."""
    save(client)
    before = objects(store)
    ask(client, question(0), 8, base)
    first = save(client)
    added = {name: kept for name, kept in objects(store).items() if name not in before}
    needed = sum(kept for kept in added.values())
    for index in range(1, SIBLINGS):
        _, last = ask(client, question(index), 8, base)
    every = save(client)
    rows = [
        ("written by a save after a fork, to suffix pages and images",
         f"{first['written_bytes']:,} to {needed:,} bytes: {first['written_bytes'] / needed:.2f} x", "1.2 x"),
        (f"disk of {SIBLINGS} siblings to that of one",
         f"{every['bytes']:,} to {first['bytes']:,} bytes: {every['bytes'] / first['bytes']:.2f} x", "2 x"),
        ("engine_stall_s with all siblings", f"{every['engine_stall_s'] * 1e3:.2f} ms", "5 ms"),
    ]
    return rows, last["id"]


def restore(model: Path, argv: list[str], directory: Path, base: dict, last: str) -> list[tuple[str, str, str]]:
    """The first requests after a restart, from a cold file, and the disk alone: RESTARTS times, in both orders."""
    file = directory / "store" / "lmdb" / "data.mdb"
    shares, rates, disks, seconds, hot = [], [], [], [], []
    for round_ in range(RESTARTS):
        with EngineProcess(model, argv, directory / f"restart{round_}.log") as engine:
            ask(engine.client, "warm up the kernels before anything is timed", 8, session=None)
            time.sleep(SETTLE_S)
            forget(file)
            disk = sequential_read(file)
            forget(file)
            resume_first = round_ % 2 == 0
            first = ask(engine.client, question(99), 8, last if resume_first else base["id"])[1]["ninfer"]
            told = engine.client.get("/v1/ninfer/status").json()["restore"]
            others = [ask(engine.client, question(100 + index), 8, base["id"])[1]["ninfer"]
                      for index in range(SIBLINGS)]
            if not resume_first:
                others.append(ask(engine.client, question(99), 8, last)[1]["ninfer"])
        seconds.append(first["timings"]["restore_s"])
        rates.append(told["bytes_done"] / seconds[-1] / 1e6)
        disks.append(disk)
        shares.append(rates[-1] / disk)
        hot += [one["reused_tokens"] >= base["usage"]["input_tokens"] for one in (first, *others)]
    return [
        (f"restore of {told['bytes_done'] / 1e6:.0f} MB, all that the client waits, cold, to the disk's own sequential "
         f"read just before, {RESTARTS} restarts",
         f"{statistics.median(seconds):.3f} s, {statistics.median(rates):.0f} MB/s to {statistics.median(disks):.0f}: "
         f"median {statistics.median(shares):.2f}, best {max(shares):.2f} of it", "0.7"),
        (f"requests after a restart that are hot: {SIBLINGS} forks and a resume, resume first and fork first",
         f"{sum(hot)} of {len(hot)}", "all"),
    ]


def sequential_read(file: Path) -> float:
    """Megabytes a second of one plain read from front to back, 4 MiB at a time into the same buffer."""
    buffer, done = memoryview(bytearray(4 << 20)), 0
    started = time.perf_counter()
    with file.open("rb", buffering=0) as handle:
        while count := handle.readinto(buffer):
            done += count
    return done / (time.perf_counter() - started) / 1e6


@contextmanager
def decoding(client: httpx.Client, gaps: Gaps) -> Iterator[None]:
    """Another session's reply streams while inside."""
    body = {"model": "tiny", "input": "tell me of every ledger there ever was", "temperature": 0.7, "seed": 3,
            "max_output_tokens": 60000, "ninfer_session": OTHER, "store": False, "stream": True}

    def read() -> None:
        with httpx.Client(base_url=client.base_url, timeout=600) as mine:
            while not gaps.done.is_set():
                with mine.stream("POST", "/v1/responses", json=body) as reply:
                    for line in reply.iter_lines():
                        if line.startswith("data:") and '"response.output_text.delta"' in line:
                            gaps.at.append(time.perf_counter())
                        if gaps.done.is_set():
                            return

    reader = threading.Thread(target=read)
    reader.start()
    while len(gaps.at) < 20:
        time.sleep(0.05)
    try:
        yield
    finally:
        gaps.done.set()
        reader.join()


def save(client: httpx.Client) -> dict:
    """Save the template's session now."""
    reply = client.post("/v1/ninfer/checkpoints", json={"session_sha256": SESSION})
    reply.raise_for_status()
    return reply.json()


def objects(directory: Path) -> dict[bytes, int]:
    """Bytes of every page and image of the session in the store, which an engine may have open too."""
    store = DurableStore.open(directory, {}, 1 << 62)
    header = next(one for one in store.headers() if one.session == SESSION)
    manifest = store.bound_to(header.fingerprint).load(SESSION)
    database, found = store.database(), {}
    with database.read() as txn:
        for record in manifest.checkpoints:
            for name in (*record.pages, record.image):
                entry = entry_of(database, txn, name)
                assert entry is not None
                found[name] = entry.size
    store.close()
    return found


def forget(file: Path) -> None:
    """Drop a file from the page cache as far as the system lets us."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def percentile(values: list[float], percent: int) -> float:
    """The nearest-rank percentile."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16384)
