"""`ninfer deploy`: a profile as replicas on a swarm, with a front; proven and, where asked for, probed task by task."""

import re
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.commands.up import api_key
from ninfer_lifecycle.errors import NinferError, UsageError
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.placing import read_key
from ninfer_lifecycle.hosts.signals import Terminated, shielded
from ninfer_lifecycle.hosts.state import default_state_dir
from ninfer_lifecycle.hosts.swarm.verdict import Outcome
from ninfer_lifecycle.probes.run import Effects
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.orchestrate import EXIT_CODES
from ninfer_lifecycle.qualify.overrides import parse_sizes
from ninfer_lifecycle.qualify.prepare import Wanted as WantedRun
from ninfer_lifecycle.qualify.prepare import resolve, run_id_of
from ninfer_lifecycle.qualify.progress import PlainDisplay
from ninfer_lifecycle.qualify.rundir import create_run_directory
from ninfer_lifecycle.replicas.deploy import Deployer, Rollout
from ninfer_lifecycle.replicas.plan import Publish, Wanted
from ninfer_lifecycle.replicas.probing import Probed, worst, write_record
from ninfer_lifecycle.replicas.proving import Proven, prove
from ninfer_lifecycle.replicas.settling import settle

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def deploy(
    profile_name: Annotated[str, typer.Argument(help="a profile's name or path", metavar="PROFILE",
                                              autocompletion=completing.profiles)],
    *,
    replicas: Annotated[int, typer.Option(min=1, max=1000, help="engines; one a node")] = 1,
    lane: Annotated[str | None, typer.Option(help="only nodes with this ninfer.lane label; default: by the profile's "
                                                  "host.nodeLabels, or its lane")] = None,
    name: Annotated[str | None, typer.Option(help="name of the deployment; default: the profile's")] = None,
    lock: Annotated[Path | None, typer.Option(help="lock file: deploy exactly these parts")] = None,
    model_dir: Annotated[str | None, typer.Option(help="the model's directory on every node; default: model.path, or "
                                                       "the tiny model's here")] = None,
    key_file: Annotated[Path | None, typer.Option(help="API key; default: the deployment's own, made once")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="the front's port")] = 8080,
    publish: Annotated[Publish, typer.Option(help="the front's port: on every node through the routing mesh, or on the "
                                                  "front's own nodes")] = Publish.MESH,
    fronts: Annotated[int, typer.Option(min=0, max=100, help="how many fronts; 0: none")] = 1,
    qualify: Annotated[bool, typer.Option("--qualify", help="then probe every replica by itself")] = False,
    plan: Annotated[str | None, typer.Option(help="probe plan for --qualify", autocompletion=completing.plans)] = None,
    sizes: Annotated[str, typer.Option(help="template sizes for --qualify, as 512,1024")] = "",
    runs_dir: Annotated[Path, typer.Option(help="where evidence goes")] = Path("runs"),
    models_dir: Annotated[Path, typer.Option(help="where the tiny model is kept")] = Path("models"),
    state_dir: Annotated[Path | None, typer.Option(help="default: $XDG_STATE_HOME/ninfer")] = None,
    as_json: Json = False,
) -> None:
    """Create PROFILE's services on the swarm, or update them; wait for what the orchestrator makes of it.

    Exits 0 when every replica runs and answers, 1 when it was rolled back, paused, or a replica failed, 3 when it could
    not be done or not be seen through.
    """
    profile = load_profile(profile_name).profile
    probed_as = resolve(WantedRun(profile_name, runs_dir, sizes=parse_sizes(sizes), plan=plan))
    called = profile.name.replace(".", "-").replace("_", "-") if name is None else name
    if NAME.fullmatch(called) is None:
        raise UsageError(f"--name {called}: not a name", "at most 40 small letters, digits and dashes, such as tiny-2")
    prose = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        prose.print(plain(line), markup=False, soft_wrap=True)

    with closing(SdkDaemon()) as daemon:
        daemon.swarm.here()  # refused before a model is read
        key = key_file or api_key((state_dir or default_state_dir()).resolve(), called)
        parts = settle(profile, daemon, lock, model_dir, models_dir)
        wanted = Wanted(called, profile, parts.lock, parts.image, parts.model_dir, read_key(key).encode() + b"\n",
                        replicas, fronts, port, publish, lane)
        rollouts = rolled_out(Deployer(daemon.swarm, say), wanted)
        document: dict[str, Any] = {"name": called, "profile": profile.name, "lane": wanted.lane_name,
                    "configurationSha256": wanted.lock.configuration_sha256, "apiKeyFile": str(key),
                    "outcome": outcome_of(rollouts).value, "services": [described(one) for one in rollouts]}
        try:
            proven = prove(daemon.swarm, wanted, rollouts, say)
        except NinferError as error:
            if as_json:
                print_json({**document, "error": error.message, "advice": error.advice})
            raise
        document |= {"fronts": list(proven.fronts), "tasks": [
            {"task": at.task.id, "node": at.node.hostname, "address": at.url} for at in proven.tasks]}
        probed = probe_each(proven, probed_as, runs_dir, document, prose) if qualify else ()
    if as_json:
        print_json({**document, "probed": [one.document() for one in probed]})
    else:
        show(wanted, rollouts, proven, probed, key)
    if probed:
        raise typer.Exit(int(EXIT_CODES[worst(probed)]))


def rolled_out(deployer: Deployer, wanted: Wanted) -> tuple[Rollout, ...]:
    """Carry it out. An interruption leaves the change to the swarm, and says so."""
    try:
        return deployer.deploy(wanted)
    except (KeyboardInterrupt, Terminated):
        deployer.say(f"what was begun is the swarm's to end: deploy again to see how it did, or remove it: ninfer "
                     f"undeploy {wanted.name}")
        raise


def outcome_of(rollouts: tuple[Rollout, ...]) -> Outcome:
    """Of the first service that did not come to run; else of all."""
    outcomes = [one.verdict.outcome for one in rollouts]
    return next((one for one in outcomes if one is not Outcome.CONVERGED), Outcome.CONVERGED)


def probe_each(proven: Proven, profile: Profile, runs_dir: Path, document: dict[str, Any], prose: Console
               ) -> tuple[Probed, ...]:
    """One task after the other, each with evidence of its own below one run directory, which tells of all of them
    however this ends.
    """
    run = create_run_directory(runs_dir, run_id_of(profile, datetime.now(UTC)) + "-deployed")
    run.write_command(("ninfer", *sys.argv[1:]))
    probed = list[Probed]()
    try:
        for at in proven.tasks:
            prose.print(f"probing task {at.task.id[:12]} on {at.node.hostname}", markup=False)
            with PlainDisplay(lambda line: prose.print(line, markup=False, soft_wrap=True), time.monotonic) as watcher:
                probed.append(proven.prober.probe(at, profile, run.path, watcher, Effects()))
    finally:
        with shielded():
            write_record(run, document, proven.tasks, probed)
    return tuple(probed)


def described(rollout: Rollout) -> dict[str, Any]:
    """A service for --json."""
    verdict, task = rollout.verdict, rollout.verdict.task
    return {"service": rollout.service, "outcome": verdict.outcome.value, "reason": verdict.reason,
            "changed": rollout.changed, "created": rollout.created, "restored": rollout.restored,
            "failedTask": task.id if task else None,
            "lastLines": rollout.last_lines.splitlines()}


def show(wanted: Wanted, rollouts: tuple[Rollout, ...], proven: Proven, probed: tuple[Probed, ...], key: Path) -> None:
    """The findings, on stdout."""
    how = "created" if rollouts[0].created else "updated" if any(one.changed for one in rollouts) else "unchanged"
    typer.echo(f"{wanted.name} is {how} and runs: {len(proven.tasks)} of {wanted.replicas} replicas\n"
               f"  configuration  {wanted.lock.configuration_sha256}\n"
               f"  API key        {key}")
    for at in proven.tasks:
        typer.echo(f"  replica        {at.url} (task {at.task.id[:12]} on {plain(at.node.hostname)})")
    for url in proven.fronts:
        typer.echo(f"  front          {url}: a fork goes to the replica with its template")
    for one in probed:
        typer.echo(f"  {one.result.value:13}  task {one.at.task.id[:12]} on {plain(one.at.node.hostname)}: "
                   f"{plain(one.reason)}; evidence {one.run}")
    typer.echo(f"  remove it      ninfer undeploy {wanted.name}")
