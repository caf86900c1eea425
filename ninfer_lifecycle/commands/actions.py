"""GitHub Actions: annotations as workflow commands, and the job summary. Untrusted text is escaped in both."""

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import typer


def annotate(level: Literal["error", "warning", "notice"], title: str, message: str, *, err: bool = False) -> None:
    """Print a workflow command. Line breaks and separators are escaped: a receipt's text cannot add commands."""
    typer.echo(f"::{level} title={_property(title)}::{_data(message)}", err=err)


def summarise(title: str, findings: Sequence[str], refusals: Sequence[str]) -> None:
    """Append to the job summary, where the runner offers one. Effects: writes to the file in GITHUB_STEP_SUMMARY."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    items = [f"<li><code>{html.escape(text)}</code></li>" for text in (*findings, *refusals)]
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"<h3>{html.escape(title)}</h3>\n<ul>\n" + "\n".join(items) + "\n</ul>\n")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
