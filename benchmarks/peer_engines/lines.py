"""A process that answers JSON lines: how engines that stand in other interpreters are asked."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


class Lines:
    """Ask, and read the answer. Raises RuntimeError, naming the log, when the process has ended."""

    def __init__(self, source: IO[str], answers: IO[str], log: Path) -> None:
        self._source, self._answers, self._log = source, answers, log

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """One question, one answer."""
        self._source.write(json.dumps(question) + "\n")
        self._source.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """The next line that is JSON: libraries print what they like."""
        for line in self._answers:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"the process ended: see {self._log}\n{self._log.read_text(errors='replace')[-1500:]}")


@contextmanager
def lines_of(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[Lines]:
    """The process, asked to end by the end of its input."""
    with log.open("ab") as errors, subprocess.Popen(
            argv, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Lines(process.stdin, process.stdout, log)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
