"""What a preflight finds: values, each with what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ninfer_lifecycle.errors import ExitCode


class Level(StrEnum):
    """How bad. UNKNOWN: it could not be looked at, which is never a pass."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. remedy: what to do; empty only where nothing needs doing."""

    check: str
    level: Level
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """It will start, and may disappoint."""
    return Finding(check, Level.WARNING, message, remedy)


def problem(check: str, message: str, remedy: str) -> Finding:
    """It will not start, or not hold."""
    return Finding(check, Level.PROBLEM, message, remedy)


def unknown(check: str, message: str, remedy: str) -> Finding:
    """It could not be looked at."""
    return Finding(check, Level.UNKNOWN, message, remedy)


def exit_code_of(findings: Iterable[Finding]) -> ExitCode:
    """1 when there is a problem, else 3 when something could not be looked at, else 0: warnings pass."""
    levels = {finding.level for finding in findings}
    if Level.PROBLEM in levels:
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if Level.UNKNOWN in levels else ExitCode.PASSED


def size_text(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
