"""A real engine in a process of its own, for benchmarks: started on a free port, stopped gracefully at the end."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx


def tiny_model(directory: Path) -> Path:
    """Write the tiny model below `directory`."""
    target = directory / "tiny"
    subprocess.run([sys.executable, "-m", "ninfer_engine.cli", "make-model", str(target)], check=True,
                   stdout=subprocess.DEVNULL)
    return target


class EngineProcess:
    """`ninfer-engine serve` with these extra arguments; `client` talks to it."""

    def __init__(self, model: Path, argv: list[str], log: Path) -> None:
        self._argv = [sys.executable, "-m", "ninfer_engine.cli", "serve", "--model", str(model), "--port", "0", *argv]
        self._log = log

    def __enter__(self) -> Self:
        self._errors = self._log.open("wb")
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "listening":
                self.pid = self._process.pid
                self.client = httpx.Client(base_url=event["url"], timeout=600)
                return self
        raise RuntimeError(f"the engine did not start: see {self._log}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.client.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=300)
        self._errors.close()
