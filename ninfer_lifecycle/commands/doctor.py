"""`ninfer doctor`: look at this machine, and at what a profile needs of it, before anything starts."""

from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.hosts.choice import parse_kind
from ninfer_lifecycle.hosts.daemon import Daemon
from ninfer_lifecycle.hosts.doctor import Asked, Doctor
from ninfer_lifecycle.hosts.findings import Finding, exit_code_of
from ninfer_lifecycle.profiles.loader import load_profile


def doctor(
    profile_name: Annotated[str | None, typer.Argument(metavar="PROFILE", help="a profile's name or path; without one "
                                                       "only the machine is looked at",
                                                       autocompletion=completing.profiles)] = None,
    *,
    host: Annotated[str | None, typer.Option(help="process, docker or swarm; default: the profile's own",
                                             autocompletion=completing.hosts)] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port on 127.0.0.1 that is meant; 0: any")] = 0,
    runs_dir: Annotated[Path, typer.Option(help="where store and logs would lie")] = Path("runs"),
    skip_model_hash: Annotated[bool, typer.Option("--skip-model-hash", help="do not read the whole model")] = False,
    as_json: Json = False,
) -> None:
    """Look at daemon, image, model, ports, memory, disk, GPU and clock; each finding comes with its remedy.

    Exits 0 when nothing stands against a start, 1 when something does, 3 when something could not be looked at.
    """
    asked = None
    if profile_name is not None:
        profile = load_profile(profile_name).profile
        asked = Asked(profile, parse_kind(host, profile.host.kind), runs_dir.resolve(), port, not skip_model_hash)
    findings = Doctor(_open_daemon, say=lambda line: typer.echo(line, err=True)).examine(asked)
    if as_json:
        print_json({"profile": profile_name, "host": asked.kind if asked else None,
                    "findings": [{"check": one.check, "level": one.level.value, "message": one.message,
                                  "remedy": one.remedy} for one in findings]})
    else:
        for one in findings:
            _show(one)
    raise typer.Exit(int(exit_code_of(findings)))


def _show(finding: Finding) -> None:
    typer.echo(plain(f"{finding.level.value:<8} {finding.check}: {finding.message}"))
    if finding.remedy:
        typer.echo(plain(f"         -> {finding.remedy}"))


def _open_daemon() -> Daemon:
    from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon  # noqa: PLC0415  # docker-py only where it is needed

    return SdkDaemon()
