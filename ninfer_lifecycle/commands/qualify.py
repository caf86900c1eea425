"""`ninfer qualify`: start an engine, probe it, write a signed receipt, verify it, say the verdict."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.fleet import FleetOptions, environment_of_lanes, qualify_and_show
from ninfer_lifecycle.commands.options import PassphraseFile, open_signer
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.choice import open_host, parse_kind
from ninfer_lifecycle.hosts.placing import read_key
from ninfer_lifecycle.probes.plans import make_plan
from ninfer_lifecycle.probes.run import Watcher
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.measure import Measured, measure
from ninfer_lifecycle.qualify.models import ModelOnDisk, ensure_model
from ninfer_lifecycle.qualify.orchestrate import EXIT_CODES, Qualified, Signing, Wiring
from ninfer_lifecycle.qualify.orchestrate import qualify as run_qualification
from ninfer_lifecycle.qualify.overrides import parse_engine_flags, parse_sizes
from ninfer_lifecycle.qualify.prepare import Wanted, resolve
from ninfer_lifecycle.qualify.progress import LiveDisplay, PlainDisplay
from ninfer_lifecycle.qualify.rundir import open_run_directory
from ninfer_lifecycle.qualify.settling import Expected
from ninfer_lifecycle.qualify.table import overhead_text, verdict_text, walls_table
from ninfer_lifecycle.receipts.errors import PassphraseNeededError
from ninfer_lifecycle.receipts.keys import Signer, load_signer
from ninfer_lifecycle.receipts.times import parse_span
from ninfer_lifecycle.state import default_state_dir

PASSPHRASE_VARIABLE = "NINFER_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable, not a passphrase


def qualify(
    profile: Annotated[str | None, typer.Argument(help="profile name, or the path of a YAML file",
                                                     autocompletion=completing.profiles)] = None,
    *,
    host: Annotated[str | None, typer.Option(help="process, docker or swarm; default: as the profile says",
                                                 autocompletion=completing.hosts)] = None,
    plan: Annotated[str | None, typer.Option(help="probe plan (`ninfer probe list`); default: the profile's",
                                                 autocompletion=completing.plans)] = None,
    sizes: Annotated[str, typer.Option(help="template sizes in tokens, as 512,1024, in place of the profile's")] = "",
    engine_flag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE or NAME, in place of the profile's")] = None,
    runs_dir: Annotated[Path, typer.Option(help="where run directories go")] = Path("runs"),
    receipts_dir: Annotated[Path, typer.Option(help="where receipts go")] = Path("receipts"),
    key: Annotated[Path | None, typer.Option(help="private key file; default: this machine's own")] = None,
    passphrase_file: PassphraseFile = None,
    base_url: Annotated[str | None, typer.Option(help="probe a running engine: no restart, no receipt")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="key of the engine at --base-url")] = None,
    baseline: Annotated[str | None, typer.Option(
        help="profile to compare throughput with, side by side; with --base-url the address of another engine")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.05, help="how long a soak lasts")] = None,
    fail_fast: Annotated[bool, typer.Option(
        "--fail-fast", help="leave out the rest once a check has failed for certain")] = False,
    resume: Annotated[Path | None, typer.Option(help="take up an interrupted run: its directory")] = None,
    fleet: Annotated[Path | None, typer.Option(help="fleet file in place of PROFILE: its lanes side by side")] = None,
    valid_for: Annotated[str, typer.Option(help="how long the receipt holds, as 90d or 12h")] = "90d",
    models_dir: Annotated[Path, typer.Option(help="where the tiny model is kept")] = Path("models"),
    state_dir: Annotated[Path | None, typer.Option(help="this machine's keys; default: $XDG_STATE_HOME/ninfer")] = None,
    as_json: Json = False,
) -> None:
    """Qualify PROFILE on a fresh engine and write a signed receipt. Exits 0 passed, 1 failed, 3 inconclusive."""
    if fleet is not None:
        if profile is not None or resume is not None or base_url is not None or host is not None:
            raise UsageError("--fleet brings its own profiles and places", "leave out PROFILE, --host, --resume and "
                             "--base-url")
        probing = [*(("--plan", plan) if plan else ()), *(("--sizes", sizes) if sizes else ()),
                   *(word for flag in engine_flag or () for word in ("--engine-flag", flag)),
                   *(("--minutes", str(minutes)) if minutes else ()), *(("--fail-fast",) if fail_fast else ()),
                   *(("--baseline", baseline) if baseline else ())]
        environment = environment_of_lanes()
        qualify_and_show(
            FleetOptions(fleet, runs_dir, receipts_dir, state_dir or default_state_dir(), models_dir, key,
                         passphrase_file, valid_for, tuple(probing)),
            key_opener(passphrase_file), environment, as_json=as_json)
        return
    prose = Console(stderr=True, highlight=False)
    if (profile is None) == (resume is None):
        raise UsageError("give a profile, or --resume with the directory of a run, and not both",
                         "a run that is taken up again brings its own profile, plan and host")
    wanted = wanted_of(resume) if resume is not None else Wanted(
        profile=profile or "", runs_dir=runs_dir, host=None if host is None else parse_kind(host, "process"),
        sizes=parse_sizes(sizes), plan=plan, baseline=baseline, fail_fast=fail_fast,
        soak_seconds=None if minutes is None else max(1, round(minutes * 60)),
        engine_flags=parse_engine_flags(engine_flag or []), command=("ninfer", *sys.argv[1:]))
    if base_url is not None:
        measured = measure(wanted, base_url, key_of(api_key_file),
                           wiring(prose, models_dir, expected_of(wanted, restarts=False)))
        if as_json:
            print_json(measured_document(measured))
        else:
            show_measured(measured, findings())
        raise typer.Exit(int(EXIT_CODES[measured.verdict.result]))
    signing = Signing(receipts_dir, state_dir or default_state_dir(), key, key_opener(passphrase_file),
                      parse_span(valid_for))
    qualified = run_qualification(wanted, signing, wiring(prose, models_dir, expected_of(wanted)))
    if as_json:
        print_json(qualified_document(qualified))
    else:
        show(qualified, findings())
    raise typer.Exit(int(qualified.exit_code))


def wanted_of(run: Path) -> Wanted:
    """What the interrupted run was asked for. Raises UsageError when `run` is no directory of a run."""
    opened = open_run_directory(run)
    try:
        said = json.loads((opened.path / "run.json").read_text(encoding="utf-8"))["wanted"]
        return Wanted(profile=said["profile"], runs_dir=opened.path.parent, host=said["host"],
                      sizes=tuple(said["sizes"]), plan=said["plan"], engine_flags=said["engineFlags"],
                      baseline=said["baseline"], soak_seconds=said["soakSeconds"], fail_fast=said["failFast"],
                      command=("ninfer", *sys.argv[1:]), resume=run)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{opened.path / 'run.json'} cannot be read", "begin a new run") from error


def expected_of(wanted: Wanted, *, restarts: bool = True) -> Expected:
    """What the displays should know of the run to come. Raises UsageError and ProfileError, as the run would."""
    profile = resolve(wanted)
    probes = profile.probes if restarts else profile.probes.model_copy(update={"restarts": 0})
    planned = make_plan(probes, "0" * 32, profile.gates)
    return Expected(planned.summary, profile.gates, planned.schedule.steps)


def wiring(prose: Console, models_dir: Path, expected: Expected | None = None) -> Wiring:
    """The real effects: hosts, the model maker, a live view on a terminal and plain lines elsewhere."""

    def display() -> AbstractContextManager[Watcher]:
        if prose.is_terminal:
            return LiveDisplay(prose, time.monotonic, expected)
        return PlainDisplay(SayLine(prose), time.monotonic, expected)

    def make_model(model: ModelSection) -> ModelOnDisk:
        return ensure_model(model, models_dir)

    return Wiring(make_host=open_host, make_model=make_model, display=display, say=SayLine(prose))


def show(qualified: Qualified, out: Console) -> None:
    """The findings, on stdout: walls, verdict, and how to check the receipt oneself."""
    receipt, path = qualified.issued.receipt, qualified.issued.path
    out.print(walls_table(receipt.evidence))
    out.print()
    out.print(verdict_text(receipt.verdict))
    out.print(overhead_text(receipt.evidence))
    out.print(f"receipt {path} (verified: {len(receipt.signers)} signature, "
              f"sequence {receipt.predicate.sequence})", soft_wrap=True)
    out.print(f"check it yourself: ninfer receipt verify {shlex.quote(str(path))}", soft_wrap=True)


def show_measured(measured: Measured, out: Console) -> None:
    """The findings of a run without a receipt."""
    out.print(walls_table(measured.evidence))
    out.print()
    out.print(verdict_text(measured.verdict))
    out.print(overhead_text(measured.evidence))
    out.print(f"no receipt: this engine was not started here. The run is in {measured.run.path}", soft_wrap=True)


def qualified_document(qualified: Qualified) -> dict[str, Any]:
    """The findings for --json: what the receipt says, and where it is."""
    receipt, path = qualified.issued.receipt, qualified.issued.path
    return {"receipt": str(path), "sequence": receipt.predicate.sequence, "payloadSha256": receipt.payload_sha256,
            "subjectSha256": receipt.statement.subject[0].digest.sha256,
            "signers": [signer.keyid for signer in receipt.signers], "run": str(qualified.prepared.run.path),
            **receipt.verdict.to_json()}


def measured_document(measured: Measured) -> dict[str, Any]:
    """The findings of a run without a receipt, for --json."""
    return {"receipt": None, "run": str(measured.run.path), **measured.verdict.to_json()}


def findings() -> Console:
    """stdout; wide where it is no terminal, so that a pipe gets whole lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(160, console.width))


def key_opener(passphrase_file: Path | None) -> Callable[[Path], Signer]:
    """Opens a private key file; the passphrase of one that has it is in a file, in the environment, or asked for.

    What stood in the environment is taken out of it: no engine that is started later inherits it.
    """
    told = os.environ.pop(PASSPHRASE_VARIABLE, None)

    def open_key(path: Path) -> Signer:
        if passphrase_file is None and told:
            try:
                return load_signer(path)
            except PassphraseNeededError:
                return load_signer(path, told.encode())
        return open_signer(str(path), passphrase_file)

    return open_key


def key_of(path: Path | None) -> str | None:
    """The API key in a file."""
    return None if path is None else read_key(path)


class SayLine:
    """Prints lines of prose as they are, markup in them included."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)
