"""`ninfer release status | history | recover | stop | units`: the lanes of this machine."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_lifecycle.commands.lanes import StateDir, lane_document, release_file, wiring_of
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import ExitCode, NinferError
from ninfer_lifecycle.receipts.store import write_atomic
from ninfer_lifecycle.releases.change import Wiring
from ninfer_lifecycle.releases.records import LaneState
from ninfer_lifecycle.releases.rollback import recover as run_recovery
from ninfer_lifecycle.releases.rollback import take_out
from ninfer_lifecycle.render.lane_units import DAEMON, lane_units
from ninfer_lifecycle.state import default_state_dir

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Lane = Annotated[str | None, typer.Argument(help="one lane; none: all", metavar="LANE")]


@app.command("status")
def status(lane: Lane = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show what each lane serves, and whether it does. Exits with 1 when a lane does not answer as its live release."""
    files = release_file(state_dir)
    wiring = wiring_of(files)
    lanes = [files.lane(lane)] if lane else list(files.read().lanes.values())
    seen = [_look(wiring, item) for item in lanes]
    if as_json:
        print_json(seen)
    elif not seen:
        typer.echo("there is no lane; `ninfer promote PROFILE --lane NAME` makes one")
    else:
        for document in seen:
            _print(document)
    if not all(document["serving"] for document in seen):
        raise typer.Exit(int(ExitCode.FAILED))


@app.command("history")
def history(lane: Lane = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Show what became of each promotion and rollback, oldest first; of lanes that are out of service too."""
    entries = release_file(state_dir).history(lane)
    if as_json:
        print_json([{"lane": name, **entry.model_dump(mode="json")} for name, entry in entries])
        return
    for name, entry in entries:
        where = f" at {entry.stage}" if entry.stage else ""
        why = f": {plain(entry.reason)}" if entry.reason else ""
        typer.echo(f"{entry.at}  {name}  {entry.outcome}{where}  {entry.profile}  {entry.release_id}{why}")


@app.command("recover")
def recover(lane: Lane = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Make lanes serve their last good release: carry on what a killed run left, start what died, run the router.

    A lane's router calls this by itself; after a reboot it has to be called once, as `ninfer release units` arranges.
    A lane that is well stays as it is.
    """
    files = release_file(state_dir)
    wiring, documents = wiring_of(files), []
    failed: NinferError | None = None
    for name in [files.lane(lane).name] if lane else list(files.read().lanes):
        try:
            documents.append(lane_document(files, run_recovery(name, wiring)))
        except NinferError as error:
            failed = failed or error
            documents.append({"lane": name, "error": error.message, "advice": error.advice})
            typer.echo(f"{name}: {error}", err=True)
    if as_json:
        print_json(documents)
    else:
        for document in documents:
            if "error" not in document:
                live = document["live"]
                typer.echo(f"{document['lane']} serves {live['profile'] if live else 'nothing'} at {document['url']}")
    if failed is not None:
        raise typer.Exit(int(failed.exit_code))


@app.command("stop")
def stop(
    lane: Annotated[str, typer.Argument(help="the lane", metavar="LANE")], state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Take a lane out of service: its router, its live release and the kept one go. Stores, logs, key and history stay.
    """
    files = release_file(state_dir)
    gone = take_out(lane, wiring_of(files))
    if as_json:
        print_json({"lane": lane, "stopped": True, "folder": str(files.folder(lane))})
    else:
        typer.echo(f"{gone.name} is out of service; stores and logs are in {files.folder(lane)}")


@app.command("units")
def units(
    *,
    program: Annotated[str | None, typer.Option(help="this tool's executable; default: the one that runs")] = None,
    every: Annotated[int, typer.Option(min=5, max=86_400, help="seconds from one look at the lanes to the next")] = 30,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="directory; none: standard output")] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Write systemd units that keep the lanes serving: after a boot, and when a router was killed.

    They go to /etc/systemd/system; then `systemctl enable --now ninfer-lanes.timer`. They ask the daemon that
    DOCKER_HOST names now.
    """
    found = program or shutil.which(sys.argv[0]) or sys.argv[0]
    made = lane_units(str(Path(found).absolute()), str((state_dir or default_state_dir()).absolute()), every,
                      {name: os.environ[name] for name in DAEMON if name in os.environ})
    for name, text in made.items():
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            write_atomic(output / name, text.encode())
    if as_json:
        print_json({"directory": str(output) if output else None, "units": made})
    elif output is None:
        typer.echo("\n".join(made.values()), nl=False)
    else:
        typer.echo(f"wrote {', '.join(str(output / name) for name in made)}", err=True)


def _look(wiring: Wiring, lane: LaneState) -> dict[str, Any]:
    said = wiring.routers.ask(lane.name)
    fault = wiring.engines.fault(lane.live) if lane.live is not None else None
    well = lane.live is not None and fault is None
    return {**lane_document(wiring.files, lane), "engineWell": well, "engineFault": fault,
            "router": None if said is None else {"pid": said.pid, "inFlight": dict(said.in_flight),
                                                 "answered": dict(said.answered)},
            "serving": said is not None and well}


def _print(document: dict[str, Any]) -> None:
    live, change = document["live"], document["change"]
    word = "serves" if document["serving"] else "DOES NOT SERVE"
    typer.echo(f"{document['lane']}  {word}  {live['profile'] if live else 'nothing'}  {document['url']}")
    if live:
        typer.echo(f"  live      {live['release']}  {live['host']}  "
                   f"{'well' if document['engineWell'] else plain(document['engineFault'])}")
    if document["previous"]:
        typer.echo(f"  previous  {document['previous']['release']}  {document['previous']['profile']}")
    if document["router"] is None:
        typer.echo(f"  router    not running; `ninfer release recover {document['lane']}` starts it")
    if change:
        lives = f"process {change['owner']}" if change["ownerLives"] else "whose process is gone"
        typer.echo(f"  change    {change['kind']} of {change['candidate']} at {change['stage']}, {lives}")
