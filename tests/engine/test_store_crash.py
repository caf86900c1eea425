"""kill -9 at random moments of saves, reclaims, imports and collections, in a real process on a real store."""

import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_cases import SavedSession, open_store, problems, save, session_name
from store_victim import NAMES, QUOTA, session_of

from ninfer_engine.memory.store.archive import export_session
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.objects import stored_bytes
from ninfer_engine.memory.store.upkeep import verify

ROUNDS = int(os.environ.get("NINFER_CRASH_ROUNDS", "15"))
MOST_FORKS = 8


def test_kill_9_at_random_moments_leaves_whole_sessions_and_no_leak(tmp_path: Path) -> None:
    chance = random.Random(ROUNDS)
    contents = {name: session_of(name, MOST_FORKS).contents for name in NAMES}
    archives = _archives(tmp_path)
    directory = tmp_path / "store"
    known: dict[str, int] = {}
    for round_ in range(ROUNDS):
        lines = _run_and_kill(directory, chance.randrange(1 << 30), archives, chance.random() ** 2 * 0.4)
        store = open_store(directory, quota=QUOTA)
        _check_sessions(store, contents, known, lines, round_)
        store.gc()
        _check_no_leak(store)
        store.close()


def _run_and_kill(directory: Path, seed: int, archives: Path, wait_s: float) -> list[str]:
    """Start a victim, kill it `wait_s` after its first step has begun; what it said."""
    victim = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("store_victim.py")), str(directory), str(seed), str(archives)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert victim.stdout is not None
    assert victim.stderr is not None
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(victim.stdout, selectors.EVENT_READ)
        deadline = None
        while deadline is None or time.monotonic() < deadline:
            if not selector.select(60 if deadline is None else deadline - time.monotonic()):
                break
            data = os.read(victim.stdout.fileno(), 65_536)
            if not data:
                pytest.fail(f"the victim ended by itself: {victim.stderr.read().decode()[-2000:]}")
            said += data
            deadline = deadline or time.monotonic() + wait_s
    with contextlib.suppress(ProcessLookupError):
        victim.send_signal(signal.SIGKILL)
    said += victim.stdout.read()
    victim.stdout.close()
    victim.stderr.close()
    victim.wait()
    return said.decode().splitlines()


def _check_sessions(store: DurableStore, contents: dict[str, dict[bytes, bytes]], known: dict[str, int],
                    lines: list[str], round_: int) -> None:
    begun = ""
    for line in lines:
        word, session, *rest = line.split()
        begun = session if word == "begin" else ""
        if word == "done":
            known[session] = int(rest[0])
    for name in NAMES:
        session = session_name(name)
        status = store.status(session)
        assert status.state in ("available", "missing"), f"round {round_}: {status}"
        if status.state == "missing":
            known[session] = 0
            continue
        assert problems(store, session, contents[name]) == [], f"round {round_}"
        assert status.generation >= 1
        if session == begun:
            assert status.generation in (known.get(session, 0), known.get(session, 0) + 1, 1), f"round {round_}"
        elif known.get(session):
            assert status.generation == known[session], f"round {round_}"
        known[session] = status.generation


def _check_no_leak(store: DurableStore) -> None:
    """Everything that lies there is kept by a session, and the account says so to the byte."""
    report = verify(store)
    assert report.orphans == 0
    assert report.damaged == ()
    database = store.database()
    total = 0
    with database.read() as txn:
        manifests = {session: store.load(session) for session in store.sessions()}
        for digest in {digest for manifest in manifests.values() for digest in manifest.objects()}:
            total += stored_bytes(len(store.read(digest)))
        total += sum(len(store.context.sessions.record(database, txn, session) or b"") for session in manifests)
        pieces = {key[:32] for key in database.keys(txn, "chunks")}
        assert pieces == set(database.keys(txn, "index"))
    assert store.used_bytes() == total


def _archives(tmp_path: Path) -> Path:
    """One archive a session, at generation 1, with two forks."""
    target = tmp_path / "archives"
    target.mkdir()
    store = open_store(tmp_path / "origin")
    for name in NAMES:
        saved: SavedSession = session_of(name, 2)
        save(store, saved)
        export_session(store, saved.session, target / f"{name}.tar")
    store.close()
    return target
