"""`ninfer sweep`: remove what dead runs left on the Docker daemon."""

from typing import Annotated, Any

import typer

from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import ExitCode
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.sweeping import Swept
from ninfer_lifecycle.hosts.sweeping import sweep as sweep_daemon


def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be removed, and remove nothing")] = False,
    as_json: Json = False,
) -> None:
    """Remove containers, networks, volumes, and a swarm's services, secrets and configs, of runs whose process is dead.
    What lives, what `up` or a release keeps, what was deployed, and what another machine owns stays. Exits with 3 when
    something could not be removed.
    """
    daemon = SdkDaemon()
    try:
        swept = sweep_daemon(daemon, dry_run, say=(lambda _: None) if as_json else _say)
    finally:
        daemon.close()
    if as_json:
        print_json({"dryRun": dry_run, "things": [document(one) for one in swept]})
    elif not swept:
        typer.echo("nothing of ours is on this daemon")
    if any(one.done == "could not be removed" for one in swept):
        raise typer.Exit(int(ExitCode.INCONCLUSIVE))


def document(swept: Swept) -> dict[str, Any]:
    """One line of --json."""
    thing = swept.thing
    return {"kind": thing.kind, "id": thing.id, "name": thing.name, "run": swept.run, "running": thing.running,
            "owner": swept.fate.name.lower(), "done": swept.done, "reason": swept.reason}


def _say(swept: Swept) -> None:
    thing = swept.thing
    typer.echo(plain(f"{swept.done}: {thing.kind} {thing.name} of run {swept.run or '?'}: {swept.reason}"))
