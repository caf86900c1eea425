"""GitHub Actions: the effects. Annotations are printed as workflow commands, the summary is appended to its file."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.reports.github import MAX_SUMMARY_BYTES, Annotation, Level, heading_and_items


def annotate(level: Level, title: str, message: str, *, err: bool = False) -> None:
    """Print a workflow command. Line breaks and separators are escaped: a receipt's text cannot add commands."""
    typer.echo(Annotation(level, title, message).command(), err=err)


def summarise(title: str, findings: Sequence[str], refusals: Sequence[str]) -> None:
    """Append a list to the job summary, where the runner offers one. Effects: writes to GITHUB_STEP_SUMMARY's file."""
    path = summary_file()
    if path is not None:
        append_summary(path, lambda budget: heading_and_items(title, (*findings, *refusals), budget))


def summary_file() -> Path | None:
    """The file of the job summary, where this is a step of GitHub Actions."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(path) if path else None


def append_summary(path: Path, text: Callable[[int], str]) -> None:
    """Append what `text` makes of the bytes that are left: GitHub refuses the whole summary when it is too large.

    An empty line stands between, so that what another command left open ends there. Raises UsageError.
    """
    try:
        held = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if held else "") + text(max(0, MAX_SUMMARY_BYTES - held - 1)))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Give a file that can be written.") from None
