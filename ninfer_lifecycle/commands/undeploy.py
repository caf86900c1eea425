"""`ninfer undeploy`: take a deployment off the swarm."""

from typing import Annotated

import typer

from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import ExitCode
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.replicas.deploy import Deployer


def undeploy(
    name: Annotated[str, typer.Argument(help="name of the deployment")],
    *,
    wait: Annotated[float, typer.Option(min=0, help="seconds that its engines may take to save and stop")] = 120.0,
    as_json: Json = False,
) -> None:
    """Remove the services, secrets, configs and the network of a deployment; its stores stay, as volumes of the nodes.

    Exits with 3 when something was still in use at the end.
    """
    daemon = SdkDaemon()
    try:
        daemon.swarm.here()
        removed = Deployer(daemon.swarm).undeploy(name, wait)
    finally:
        daemon.close()
    if as_json:
        print_json({"name": name, "removed": list(removed.things), "kept": list(removed.kept)})
    else:
        for thing in removed.things:
            typer.echo(plain(f"removed: {thing}"))
        for reason in removed.kept:
            typer.echo(plain(f"could not be removed: {reason}"))
        if not removed.things and not removed.kept:
            typer.echo(f"nothing of {name} is in this swarm")
        else:
            typer.echo(f"its stores stay on their nodes: docker volume ls --filter label=dev.ninfer.deployment={name}")
    if removed.kept:
        raise typer.Exit(int(ExitCode.INCONCLUSIVE))
