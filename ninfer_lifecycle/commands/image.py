"""`ninfer image build`."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.hosts.choice import open_host
from ninfer_lifecycle.hosts.image_context import make_context, source_directory

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
DEFAULT_BASE = "python:3.11-slim-bookworm"


@app.callback()
def _image() -> None:
    """Build the engine's container image."""


@app.command("build")
def build(
    *,
    tag: Annotated[str, typer.Option(help="name of the image")] = "ninfer-engine:cpu",
    base_image: Annotated[str, typer.Option(help="a local image with python3 3.11")] = DEFAULT_BASE,
    wheels: Annotated[Path | None, typer.Option(help="directory of ready wheels; default: collected by pip")] = None,
    gpu: Annotated[bool, typer.Option(help="with Triton and torch's headers, for GPU hosts")] = False,
    source: Annotated[Path | None, typer.Option(help="checkout to build from; default: this tool's own")] = None,
    verbose: Annotated[bool, typer.Option(help="show every line of the build")] = False,
    as_json: Json = False,
) -> None:
    """Collect wheels here, build the image without network, print its id."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if verbose:
            typer.echo(line, err=True)

    with open_host("docker") as place, tempfile.TemporaryDirectory(prefix="ninfer-image-") as context:
        typer.echo("collecting wheels", err=True)
        make_context(source or source_directory(), Path(context), wheels, gpu, say)
        typer.echo(f"building {tag} on {base_image}", err=True)
        arguments = {"BASE_IMAGE": base_image, "KEEP_HEADERS": "1" if gpu else "0"}
        image = place.build_image(Path(context), tag, arguments, say)
    if as_json:
        print_json({"image": image, "tag": tag})
    else:
        typer.echo(image)
