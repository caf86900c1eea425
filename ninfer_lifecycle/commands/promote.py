"""`ninfer promote` and `ninfer rollback`: which release a lane serves. 0 done, 1 refused, 3 could not be done."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands import completing, options
from ninfer_lifecycle.commands.lanes import (
    StateDir,
    StrategyOption,
    failed_document,
    free_memory,
    promoted_document,
    release_file,
    wiring_of,
)
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.hosts.base import HostKind
from ninfer_lifecycle.hosts.choice import parse_kind
from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.doctor import Asked, Doctor
from ninfer_lifecycle.hosts.findings import Finding, Level
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import ModelSection, Profile
from ninfer_lifecycle.qualify.models import ModelOnDisk, ensure_model
from ninfer_lifecycle.receipts.policy_file import default_policy, load_policy
from ninfer_lifecycle.receipts.trust import Role
from ninfer_lifecycle.releases.admission import Papers
from ninfer_lifecycle.releases.checks import QuickCheck
from ninfer_lifecycle.releases.promote import Means, Promoted, Wanted
from ninfer_lifecycle.releases.promote import promote as run_promotion
from ninfer_lifecycle.releases.rollback import rollback as run_rollback
from ninfer_lifecycle.releases.state import ReleaseFile

Trust = Annotated[list[Path] | None, typer.Option("--trust", "--key", help="public key file to trust; may be repeated")]


def promote(
    profile_name: Annotated[str, typer.Argument(help="a profile's name or path", metavar="PROFILE",
                                              autocompletion=completing.profiles)],
    *,
    receipt: Annotated[list[Path], typer.Option(help="receipt of this very configuration, or a folder of receipts; may "
                                                     "be repeated")],
    lane: Annotated[str | None, typer.Option(help="lane to go live on; default: the profile's own")] = None,
    trust: Trust = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    policy: Annotated[Path | None, typer.Option(help="release policy (YAML); none: the default one")] = None,
    host: Annotated[str | None, typer.Option(help="process, docker or swarm; default: the profile's own",
                                                 autocompletion=completing.hosts)] = None,
    strategy: StrategyOption = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="port of a new lane, for good; default: a free "
                                                                   "one")] = None,
    bind: Annotated[str | None, typer.Option(help="address that a new lane listens on, for good; default: "
                                                  "127.0.0.1")] = None,
    models_dir: Annotated[Path, typer.Option(help="where the tiny model is kept")] = Path("models"),
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Make a qualified profile live on a lane: start it beside the incumbent where memory allows, look at it quickly,
    switch, prove one routed request, retire the old. Any failure keeps or restores the incumbent.
    """
    profile, files = load_profile(profile_name).profile, release_file(state_dir)
    name = profile.lane if lane is None else lane
    now = options.now()
    rules = load_policy(policy) if policy else default_policy()
    trusted = options.trust_source(trust, keyring, root).load(Role(rules.policy.trusted_role), now)
    wanted = Wanted(profile, name, parse_kind(host, profile.host.kind),
                    Papers(tuple(receipt), rules.policy, trusted, now), strategy, port, bind)

    def make_model(model: ModelSection) -> ModelOnDisk:
        return ensure_model(model, models_dir.resolve())

    means = Means(make_model, preflight, QuickCheck(), free_memory)
    try:
        done = run_promotion(wanted, means, wiring_of(files))
    except NinferError as error:
        if as_json:
            print_json(failed_document(files, name, error))
        raise
    show(files, done, as_json=as_json)


def rollback(
    lane: Annotated[str, typer.Argument(help="the lane", metavar="LANE")],
    *,
    strategy: StrategyOption = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Make the release that was live before live again; the one that is live now is stopped and kept."""
    files = release_file(state_dir)
    try:
        done = run_rollback(lane, wiring_of(files), free_memory, strategy)
    except NinferError as error:
        if as_json:
            print_json(failed_document(files, lane, error))
        raise
    show(files, done, as_json=as_json)


def show(files: ReleaseFile, done: Promoted, *, as_json: bool) -> None:
    """The lane as it is now."""
    if as_json:
        print_json(promoted_document(files, done))
        return
    live, previous = done.lane.live, done.lane.previous
    if live is None:
        return
    typer.echo(f"{done.lane.name} serves {live.profile} ({live.release_id}) at {done.lane.url}"
               + (", as it did before" if done.already else ""))
    typer.echo(f"  configuration  {live.configuration_sha256}\n"
               f"  API key        {files.api_key(done.lane.name)}\n"
               f"  go back        " + (f"ninfer rollback {done.lane.name}  ({previous.profile}, {previous.release_id})"
                                       if previous else "nothing was live before"))


def preflight(profile: Profile, kind: HostKind, state_dir: Path) -> Sequence[Finding]:
    """What `ninfer doctor` finds for this profile on this host. The model's digest is left to the engine: it computes
    that when it starts, and refuses another.
    """
    doctor = Doctor(SdkDaemon, say=lambda line: typer.echo(line, err=True))
    return [finding for finding in doctor.examine(Asked(profile, kind, state_dir, hash_model=False))
            if finding.check != "model" or finding.level is not Level.UNKNOWN]
