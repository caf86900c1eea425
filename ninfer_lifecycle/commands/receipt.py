"""`ninfer receipt verify | show | verify-decision | index | list`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ninfer_lifecycle.commands import options
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import ExitCode, UsageError
from ninfer_lifecycle.gates.verdict import Check, Result, Verdict
from ninfer_lifecycle.receipts.build import ChainHead
from ninfer_lifecycle.receipts.decision import verify_decision
from ninfer_lifecycle.receipts.index import Query, ReceiptIndex
from ninfer_lifecycle.receipts.sources import ReceiptFile, TrustSource, read_lock, read_receipt
from ninfer_lifecycle.receipts.times import format_time, parse_span, parse_time
from ninfer_lifecycle.receipts.trust import Role
from ninfer_lifecycle.receipts.verify import Expectations, Verification, VerifiedReceipt, verify

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Receipt = Annotated[Path, typer.Argument(help="*.intoto.json or *.sigstore.json", metavar="RECEIPT")]
Lock = Annotated[Path | None, typer.Option(help="the lock file; none: the copy beside the receipt")]


@app.command("verify")
def verify_command(
    receipt: Receipt,
    lock: Lock = None,
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    policy_sha256: Annotated[str | None, typer.Option(help="the only policy that will do")] = None,
    max_age: Annotated[str | None, typer.Option(help="oldest end of the run that will do, as 30d")] = None,
    previous: Annotated[Path | None, typer.Option(help="the receipt before it in its chain; verified as well")] = None,
    any_result: Annotated[bool, typer.Option("--any-result", help="also FAILED and INCONCLUSIVE receipts")] = False,
    as_json: Json = False,
) -> None:
    """Verify a receipt, step by step. Exits 0 when every step passed, 1 when one refused."""
    found = read_receipt(receipt)
    source = options.trust_source(key, keyring, root)
    expected = _expected(found, lock, source, any_result=any_result)
    expected = replace(expected, policy_sha256=policy_sha256, max_age=parse_span(max_age) if max_age else None,
                       previous=_head(previous, source) if previous else None)
    outcome = verify(found.raw, found.files, expected)
    if as_json:
        typer.echo(json.dumps(_verification_json(found, outcome), indent=2))
    else:
        _print_steps(found, outcome)
    if outcome.receipt is None:
        raise typer.Exit(int(ExitCode.FAILED))


@app.command("show")
def show_command(
    receipt: Receipt,
    lock: Lock = None,
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    as_json: Json = False,
) -> None:
    """Verify a receipt, whatever its result and age, and show what it says. Refuses (1) what does not verify."""
    found = read_receipt(receipt)
    expected = _expected(found, lock, options.trust_source(key, keyring, root), any_result=True)
    verified = verify(found.raw, found.files, replace(expected, allow_expired=True)).require()
    if as_json:
        typer.echo(json.dumps(verified.statement.to_json(), indent=2, ensure_ascii=False))
        return
    _print_receipt(verified, Console(highlight=False))


@app.command("verify-decision")
def verify_decision_command(
    decision: Annotated[Path, typer.Argument(help="*.release.intoto.json", metavar="DECISION")],
    lock: Annotated[Path, typer.Option(help="the lock file that it must be about")],
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    max_age: Annotated[str | None, typer.Option(help="oldest decision that will do, as 7d")] = None,
    as_json: Json = False,
) -> None:
    """Verify a release decision: that a key of the release role allowed exactly this lock file."""
    if not key and keyring is None:
        raise UsageError("whom to trust is not said", "Give the release key: --key FILE.pub, or --keyring FILE.")
    now = options.now()
    trust = options.trust_source(key, keyring, root).load(Role.RELEASE, now)
    allowed = verify_decision(read_receipt(decision).raw, read_lock(lock), trust, now,
                              parse_span(max_age) if max_age else None)
    if as_json:
        print_json({"allowed": True, "lockSha256": allowed.lock_sha256, "policySha256": allowed.policy_sha256,
                    "verifierId": allowed.verifier_id, "decidedOn": format_time(allowed.decided_on),
                    "receipts": list(allowed.receipts), "signers": [signer.keyid for signer in allowed.signers]})
        return
    typer.echo(f"allowed: lock {allowed.lock_sha256} by {allowed.verifier_id} on {format_time(allowed.decided_on)}, "
               f"policy {allowed.policy_sha256[:16]}, resting on {len(allowed.receipts)} receipts")


@app.command("index")
def index_command(
    folder: Annotated[Path, typer.Argument(help="folder of receipts")] = Path("receipts"),
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    as_json: Json = False,
) -> None:
    """Bring the folder's index.json up to date: verified receipts only, of every result and age."""
    now = options.now()
    trust = options.trust_source(key, keyring, root).load(Role.QUALIFIER, now)
    index = ReceiptIndex(folder)
    update = index.update(trust, now)
    if as_json:
        print_json({"index": str(index.json_path), "entries": update.entries, "verified": update.verified,
                    "unchanged": update.unchanged, "removed": update.removed,
                    "refused": [{"receipt": path, "reason": reason} for path, reason in update.refused]})
        return
    typer.echo(f"{index.json_path}: {update.entries} receipts; {update.verified} looked at, {update.unchanged} "
               f"unchanged, {update.removed} gone")
    for path, reason in update.refused:
        typer.echo(plain(f"left out {path}: {reason}"), err=True)


@app.command("list")
def list_command(
    folder: Annotated[Path, typer.Argument(help="folder of receipts, indexed before")] = Path("receipts"),
    profile: Annotated[str | None, typer.Option(help="of this profile")] = None,
    lane: Annotated[str | None, typer.Option(help="of this lane")] = None,
    since: Annotated[str | None, typer.Option(help="finished since: a span back from now as 7d, or a UTC time")] = None,
    result: Annotated[Result | None, typer.Option(help="with this result", case_sensitive=False)] = None,
    as_json: Json = False,
) -> None:
    """List indexed receipts, newest first."""
    query = Query(profile=profile, lane=lane, result=result, since=_since(since))
    found = list(ReceiptIndex(folder).find(query))
    if as_json:
        typer.echo(json.dumps([entry.to_json() for entry in found], indent=2))
        return
    for entry in found:
        typer.echo(plain(f"{entry.finished}  {entry.result:<12}  {entry.profile}/{entry.lane} {entry.sequence}  "
                         f"{entry.path}"))


def _since(text: str | None) -> str | None:
    if text is None:
        return None
    if text.endswith("Z"):
        try:
            return format_time(parse_time(text))
        except ValueError:
            raise UsageError(f"{text!r} is no time", "Write 7d, or 2026-01-31T00:00:00Z.") from None
    return format_time(options.now() - parse_span(text))


def _head(path: Path, source: TrustSource) -> ChainHead:
    """The place in its chain of a receipt of any result, age and lock."""
    found = read_receipt(path)
    expected = replace(_expected(found, None, source, any_result=True), allow_expired=True)
    return verify(found.raw, found.files, expected).require().head


def _expected(found: ReceiptFile, lock: Path | None, source: TrustSource, *, any_result: bool) -> Expectations:
    now = options.now()
    return Expectations(
        trust=source.load(Role.QUALIFIER, now), now=now,
        lock=found.own_lock() if lock is None else read_lock(lock),
        results=frozenset(Result) if any_result else frozenset({Result.PASSED}),
    )


def _verification_json(found: ReceiptFile, outcome: Verification) -> dict[str, Any]:
    receipt = outcome.receipt
    value: dict[str, Any] = {
        "receipt": str(found.path),
        "verified": receipt is not None,
        "steps": [{"step": item.step, "state": item.state} | _text("detail", item.detail) | _text("advice", item.advice)
                  for item in outcome.steps],
    }
    if receipt is not None:
        value |= {"result": receipt.predicate.result, "subjectSha256": receipt.statement.subject[0].digest.sha256,
                  "payloadSha256": receipt.payload_sha256, "sequence": receipt.predicate.sequence,
                  "signers": [key.keyid for key in receipt.signers]}
    return value


def _text(name: str, text: str) -> dict[str, str]:
    return {name: text} if text else {}


def _print_steps(found: ReceiptFile, outcome: Verification) -> None:
    width = max(len(item.step) for item in outcome.steps)
    for item in outcome.steps:
        typer.echo(plain(f"{item.state:<11}  {item.step:<{width}}  {item.detail}".rstrip()))
    refusal = outcome.refusal
    if refusal is None:
        typer.echo(f"{found.path} verified")
        return
    typer.echo(plain(f"{found.path} is refused at step '{refusal.step}': {refusal.detail}"), err=True)
    if refusal.advice:
        typer.echo(f"  {refusal.advice}", err=True)


def _print_receipt(receipt: VerifiedReceipt, out: Console) -> None:
    stated = receipt.predicate
    expired = "" if receipt.verified_at < receipt.valid_until else " (expired)"
    lines = {
        "result": stated.result, "profile": f"{stated.profile}, lane {stated.lane}, sequence {stated.sequence}",
        "subject": receipt.statement.subject[0].digest.sha256, "payload": receipt.payload_sha256,
        "run": f"{stated.started_on} to {stated.finished_on}", "valid until": f"{stated.valid_until}{expired}",
        "host": f"{stated.environment.host}, {stated.environment.hardware_class}",
        "signed by": ", ".join(key.keyid for key in receipt.signers),
    }
    for name, text in lines.items():
        out.print(plain(f"{name:<12} {text}"), markup=False, soft_wrap=True)
    for text in stated.limitations:
        out.print(plain(f"{'limitation':<12} {text}"), markup=False, soft_wrap=True)
    for check in (*stated.verdict.not_passed, *_passed(stated.verdict)):
        out.print(plain(_check_line(check)), markup=False, soft_wrap=True)


def _passed(verdict: Verdict) -> list[Check]:
    return [check for check in (*verdict.checks, *verdict.controls) if check.result is Result.PASSED]


def _check_line(check: Check) -> str:
    counts = f"{check.trials} trials, {check.misses} misses"
    for name, count in (("unreported", check.unreported), ("without an answer", check.failed)):
        counts += f", {count} {name}" if count else ""
    observed = "" if check.observed is None else f", observed {check.observed}"
    bound = "" if check.bound_ppm is None else f", miss rate of clusters at most {check.bound_ppm} ppm"
    reason = f": {check.reason}" if check.reason else ""
    return (f"{check.result:<12} {check.title}: {counts}{observed}, threshold {check.threshold} {check.unit}"
            f"{bound}{reason}")
