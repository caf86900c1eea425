"""`ninfer qualify`: start an engine, probe it, write a signed receipt, verify it, say the verdict."""

import json
import shlex
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.choice import open_host, parse_kind
from ninfer_lifecycle.hosts.placing import read_key
from ninfer_lifecycle.probes.run import Watcher
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.measure import Measured, measure
from ninfer_lifecycle.qualify.models import ModelOnDisk, ensure_model
from ninfer_lifecycle.qualify.orchestrate import EXIT_CODES, Qualified, Signing, Wiring
from ninfer_lifecycle.qualify.orchestrate import qualify as run_qualification
from ninfer_lifecycle.qualify.overrides import parse_engine_flags, parse_sizes
from ninfer_lifecycle.qualify.prepare import Wanted
from ninfer_lifecycle.qualify.progress import LiveDisplay, PlainDisplay
from ninfer_lifecycle.qualify.rundir import open_run_directory
from ninfer_lifecycle.qualify.table import overhead_text, verdict_text, walls_table
from ninfer_lifecycle.receipts.times import parse_span
from ninfer_lifecycle.state import default_state_dir


def qualify(
    profile: Annotated[str | None, typer.Argument(help="profile name, or the path of a YAML file")] = None,
    *,
    host: Annotated[str | None, typer.Option(help="process or docker; default: as the profile says")] = None,
    plan: Annotated[str | None, typer.Option(help="probe plan (`ninfer probe list`); default: the profile's")] = None,
    sizes: Annotated[str, typer.Option(help="template sizes in tokens, as 512,1024, in place of the profile's")] = "",
    engine_flag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE or NAME, in place of the profile's")] = None,
    runs_dir: Annotated[Path, typer.Option(help="where run directories go")] = Path("runs"),
    receipts_dir: Annotated[Path, typer.Option(help="where receipts go")] = Path("receipts"),
    key: Annotated[Path | None, typer.Option(help="private key file; default: this machine's own")] = None,
    base_url: Annotated[str | None, typer.Option(help="probe a running engine: no restart, no receipt")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="key of the engine at --base-url")] = None,
    baseline: Annotated[str | None, typer.Option(
        help="profile to compare throughput with, side by side; with --base-url the address of another engine")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.05, help="how long a soak lasts")] = None,
    fail_fast: Annotated[bool, typer.Option(
        "--fail-fast", help="leave out the rest once a check has failed for certain")] = False,
    resume: Annotated[Path | None, typer.Option(help="take up an interrupted run: its directory")] = None,
    valid_for: Annotated[str, typer.Option(help="how long the receipt holds, as 90d or 12h")] = "90d",
    models_dir: Annotated[Path, typer.Option(help="where the tiny model is kept")] = Path("models"),
    state_dir: Annotated[Path | None, typer.Option(help="this machine's keys; default: $XDG_STATE_HOME/ninfer")] = None,
) -> None:
    """Qualify PROFILE on a fresh engine and write a signed receipt. Exits 0 passed, 1 failed, 3 inconclusive."""
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
        measured = measure(wanted, base_url, key_of(api_key_file), wiring(prose, models_dir))
        show_measured(measured, findings())
        raise typer.Exit(int(EXIT_CODES[measured.verdict.result]))
    signing = Signing(receipts_dir, state_dir or default_state_dir(), key, validity=parse_span(valid_for))
    qualified = run_qualification(wanted, signing, wiring(prose, models_dir))
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


def wiring(prose: Console, models_dir: Path) -> Wiring:
    """The real effects: hosts, the model maker, a live view on a terminal and plain lines elsewhere."""

    def display() -> AbstractContextManager[Watcher]:
        if prose.is_terminal:
            return LiveDisplay(prose, time.monotonic)
        return PlainDisplay(SayLine(prose), time.monotonic)

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


def findings() -> Console:
    """stdout; wide where it is no terminal, so that a pipe gets whole lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(160, console.width))


def key_of(path: Path | None) -> str | None:
    """The API key in a file."""
    return None if path is None else read_key(path)


class SayLine:
    """Prints lines of prose as they are, markup in them included."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)
