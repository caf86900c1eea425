"""`ninfer dashboard serve` as a process of its own, on a free port."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx


@contextlib.contextmanager
def served(receipts: Path, key: Path, runs: Path, *more: str) -> Iterator[str]:
    """The URL of a server; ended by SIGTERM."""
    command = [sys.executable, "-m", "ninfer_lifecycle.cli", "dashboard", "serve", "--port", "0", "--json",
               "--receipts", str(receipts), "--key", str(key), "--runs", str(runs), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the server ended before it said where it serves"
            said += line
        yield json.loads(said)["url"]
    finally:
        process.terminate()
        process.wait(30)


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Names and data of server-sent events."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")
