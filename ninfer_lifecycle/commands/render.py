"""`ninfer render`: a profile as a file for Compose, Swarm or systemd. Starts nothing, asks nothing of any daemon."""

from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import read_profile_lock
from ninfer_lifecycle.receipts.store import write_atomic
from ninfer_lifecycle.render.deployment import PROGRAM, Places, deployment_of
from ninfer_lifecycle.render.files import Kind
from ninfer_lifecycle.render.files import render as render_file


def render(
    kind: Annotated[Kind, typer.Argument(help="what to write")],
    profile_name: Annotated[str, typer.Argument(help="a profile's name or path", metavar="PROFILE",
                                              autocompletion=completing.profiles)],
    *,
    lock: Annotated[Path | None, typer.Option(help="lock file of the profile: pins image, model and "
                                                   "configuration")] = None,
    model_dir: Annotated[str | None, typer.Option(help="the model on the machine that will run it; default: "
                                                       "model.path of the profile")] = None,
    key_file: Annotated[str, typer.Option(help="API key file on that machine")] = "/etc/ninfer/api.key",
    port: Annotated[int, typer.Option(min=1, max=65535, help="published port")] = 8080,
    address: Annotated[str, typer.Option(help="address that it is published on")] = "127.0.0.1",
    program: Annotated[str, typer.Option(help="the engine's executable, for systemd")] = PROGRAM,
    replicas: Annotated[int, typer.Option(min=1, max=1000, help="of a swarm's service")] = 1,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file; none: standard output")] = None,
    as_json: Json = False,
) -> None:
    """Write PROFILE as a file of another orchestrator. The same profile, lock and options give the same bytes."""
    profile = load_profile(profile_name).profile
    where = model_dir or profile.model.path
    if where is None:
        raise UsageError(f"where the model of {profile.name} lies is not known", "give --model-dir; `ninfer-engine "
                         "make-model` makes the tiny one")
    places = Places(model_dir=where, key_file=key_file, lock_file=str(lock.resolve()) if lock else None, port=port,
                    address=address, program=program, replicas=replicas)
    text = render_file(kind, deployment_of(profile, places, read_profile_lock(lock) if lock else None))
    if output is not None:
        write_atomic(output, text.encode())
    if as_json:
        print_json({"kind": kind.value, "profile": profile.name, "file": str(output) if output else None, "text": text})
    elif output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {output}", err=True)
