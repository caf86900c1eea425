"""The engine's command line: `serve`, `make-model`. `serve`'s options are `contract.flags.EngineFlags`, derived."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from ninfer_engine import __version__
from ninfer_engine.contract.flags import EngineFlags, option_name
from ninfer_engine.store_cli import store_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


def flags_command(run: Callable[[EngineFlags], None]) -> Callable[..., None]:
    """A function whose parameters are the flags of EngineFlags, so that typer shows each with its text and default.

    Values reach pydantic as text: one place decides what is valid.
    """

    def command(**given: Any) -> None:
        run(parse_flags({name: value for name, value in given.items() if value not in (None, False)}))

    parameters = []
    for name, info in EngineFlags.model_fields.items():
        is_switch = info.annotation is bool
        shown = None if info.default in (None, "", False, PydanticUndefined) else str(info.default)
        option = typer.Option(option_name(name), help=info.description, show_default=shown or False,
                              rich_help_panel=None)
        kind: Any = Annotated[bool, option] if is_switch else Annotated[str | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind,
                                            default=False if is_switch else None))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = "Serve a model over HTTP."
    return command


def parse_flags(given: dict[str, Any]) -> EngineFlags:
    """`EngineFlags` from text values; exits with 2 and one line a wrong flag."""
    try:
        return EngineFlags.model_validate(given)
    except ValidationError as error:
        for problem in error.errors():
            where = option_name(str(problem["loc"][0])) if problem["loc"] else "flags"
            typer.echo(f"ninfer-engine: {where}: {problem['msg']} (given: {problem['input']!r})", err=True)
        raise typer.Exit(2) from None


def _serve(flags: EngineFlags) -> None:
    from ninfer_engine.server.main import run_server  # noqa: PLC0415  # torch loads only when serving

    if not flags.model:
        typer.echo("ninfer-engine: --model is missing: give a model directory "
                   "(ninfer-engine make-model DIR makes a tiny one)", err=True)
        raise typer.Exit(2)
    raise typer.Exit(run_server(flags))


app.command("serve")(flags_command(_serve))


@app.command("make-model")
def make_model(
    directory: Annotated[Path, typer.Argument(help="where to write the model, in HF layout")],
    seed: Annotated[int, typer.Option(help="seed of the weights")] = 0,
    layers: Annotated[int, typer.Option(min=1, max=64, help="layers: three linear-attention, one full-attention")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON object")] = False,
) -> None:
    """Write the tiny hybrid model: seeded, the same bytes every time. Prints its sha256."""
    from ninfer_engine.model.tiny import make_model as write  # noqa: PLC0415

    digest = write(directory, seed=seed, layers=layers)
    typer.echo(json.dumps({"directory": str(directory), "sha256": digest}) if as_json else f"{digest}  {directory}")


app.add_typer(store_app, name="store")


@app.command("flags")
def flags() -> None:
    """Print every flag as a Markdown table: the source of docs/flags.md."""
    from ninfer_engine.contract.flags import markdown_table  # noqa: PLC0415

    typer.echo(markdown_table(), nl=False)


@app.command("version")
def version() -> None:
    """Print the engine's version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point of `ninfer-engine`."""
    app(prog_name="ninfer-engine")


if __name__ == "__main__":
    main()
