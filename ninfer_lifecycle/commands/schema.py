"""`ninfer schema profile`: JSON Schemas, for editors and for other tools."""

import typer

from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.profiles.json_schema import profile_schema

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _schema() -> None:
    """Print JSON Schemas."""


@app.command("profile")
def profile(as_json: Json = False) -> None:
    """Print the JSON Schema of a profile. It is JSON with and without --json.

    For an editor with the YAML language server: save it, and begin a profile with the line
    `# yaml-language-server: $schema=profile.schema.json`.
    """
    print_json(profile_schema())
