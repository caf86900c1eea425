"""What every command's output has in common: `--json`, and text made safe for a terminal and for a log."""

import json
from typing import Annotated, Any

import typer

from ninfer_lifecycle.text import plain

__all__ = ["Json", "plain", "print_json"]

Json = Annotated[bool, typer.Option("--json", help="print JSON, and nothing else, on standard output")]
"""Every command that prints has this switch. Prose and errors go to standard error, with or without it."""


def print_json(value: Any) -> None:
    """One JSON document on stdout. ASCII only, so that no name in it can break a terminal or a log."""
    typer.echo(json.dumps(value, indent=2))
