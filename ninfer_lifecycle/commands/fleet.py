"""`ninfer qualify --fleet` and `ninfer fleet verify`."""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands import options
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.fleet.places import Local
from ninfer_lifecycle.fleet.qualify_fleet import EXIT_CODES, FleetQualified, FleetWanted, FleetWiring, qualify_fleet
from ninfer_lifecycle.fleet.schema import load_fleet
from ninfer_lifecycle.fleet.statement import FleetResult, verify_statement
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.issue import qualifier_key
from ninfer_lifecycle.qualify.models import ModelOnDisk, ensure_model
from ninfer_lifecycle.receipts.keys import Signer
from ninfer_lifecycle.receipts.sources import read_receipt
from ninfer_lifecycle.receipts.statement import NAME_PATTERN
from ninfer_lifecycle.receipts.times import parse_span
from ninfer_lifecycle.receipts.trust import Role

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
PROGRAM = (sys.executable, "-m", "ninfer_lifecycle.cli")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """What `ninfer qualify --fleet` was given. probing: options that every lane is asked with, as words."""

    file: Path
    runs_dir: Path
    receipts_dir: Path
    state_dir: Path
    models_dir: Path
    key: Path | None
    passphrase_file: Path | None
    valid_for: str
    probing: tuple[str, ...] = ()


def run_fleet(asked: FleetOptions, open_key: Callable[[Path], Signer], environment: dict[str, str]) -> FleetQualified:
    """Qualify the fleet. environment: of the lanes; a passphrase in it reaches them and no engine."""
    fleet, raw = load_fleet(asked.file)
    signer = qualifier_key(asked.key, asked.state_dir, _say, open_key)
    now = options.now()
    folder = asked.runs_dir / f"{now:%Y%m%dT%H%M%SZ}-fleet-{fleet.name}"
    own = ("--runs-dir", str(asked.runs_dir), "--state-dir", str(asked.state_dir), "--models-dir",
           str(asked.models_dir), *(("--key", str(asked.key)) if asked.key else ()),
           *(("--passphrase-file", str(asked.passphrase_file)) if asked.passphrase_file else ()))
    shared = ("--valid-for", asked.valid_for, *asked.probing)
    local = Local(PROGRAM, folder, asked.receipts_dir, (*own, *shared), shared, environment)

    def make_model(model: ModelSection) -> ModelOnDisk:
        return ensure_model(model, asked.models_dir)

    return qualify_fleet(
        FleetWanted(fleet, raw, _subject_name(asked.file), asked.file.parent, parse_span(asked.valid_for)),
        FleetWiring(local, signer, make_model, options.now, _say))


def qualify_and_show(asked: FleetOptions, open_key: Callable[[Path], Signer], environment: dict[str, str], *,
                     as_json: bool) -> None:
    """`ninfer qualify --fleet FILE`. Exits with the code of the worst lane."""
    done = run_fleet(asked, open_key, environment)
    if as_json:
        print_json({"statement": str(done.statement), **done.result.to_json(),
                    "receipts": {name: str(path) for name, path in done.receipts.items()}})
    else:
        _show(done.result)
        typer.echo(f"statement {done.statement}")
        typer.echo(f"check it yourself: ninfer fleet verify {done.statement} --fleet {asked.file}")
    raise typer.Exit(int(done.exit_code))


@app.callback()
def _fleet() -> None:
    """Statements over fleets."""


@app.command("verify")
def verify(
    statement: Annotated[Path, typer.Argument(help="fleet statement", metavar="STATEMENT")],
    *,
    fleet: Annotated[Path, typer.Option(help="the fleet file that it is about")],
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    as_json: Json = False,
) -> None:
    """Check a fleet statement. The receipts that it names are checked by `ninfer receipt verify`.

    Exits as the fleet did: 0 passed, 1 failed or refused, 3 inconclusive.
    """
    now = options.now()
    trust = options.trust_source(key, keyring, root).load(Role.QUALIFIER, now)
    found = verify_statement(read_receipt(statement).raw, load_fleet(fleet)[1], trust, now)
    if as_json:
        print_json({"verified": True, "payloadSha256": found.payload_sha256,
                    "signers": [signer.keyid for signer in found.signers], **found.predicate.to_json()})
    else:
        _show(found.predicate)
    raise typer.Exit(int(EXIT_CODES[found.predicate.result]))


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _show(result: FleetResult) -> None:
    for lane in result.lanes:
        why = f"  {plain(lane.reason)}" if lane.reason else ""
        typer.echo(f"{lane.result:<12}  {lane.name}  {lane.profile}  {lane.place}{why}")
    typer.echo(f"{result.result:<12}  fleet {result.fleet}, {len(result.lanes)} lanes")


def _subject_name(path: Path) -> str:
    return path.name if re.fullmatch(NAME_PATTERN, path.name) else "fleet.yaml"


def environment_of_lanes() -> dict[str, str]:
    """This process's environment, taken before a passphrase is removed from it."""
    return dict(os.environ)
