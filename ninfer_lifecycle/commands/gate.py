"""`ninfer gate`: may this lock file be released? 0 allowed, 1 refused, 3 when a baseline could not be compared."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.commands import options
from ninfer_lifecycle.commands.actions import annotate, summarise
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import ExitCode, UsageError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.baseline import BaselineComparison, compare_with_baseline
from ninfer_lifecycle.receipts.decision import DecisionInputs, build_decision
from ninfer_lifecycle.receipts.index import Query, ReceiptIndex
from ninfer_lifecycle.receipts.policy_file import PolicyFile, default_policy, load_policy
from ninfer_lifecycle.receipts.release_gate import Candidate, Decision, decide
from ninfer_lifecycle.receipts.sources import TrustSource, candidate, candidates, read_lock, read_receipt
from ninfer_lifecycle.receipts.statement import NAME_PATTERN
from ninfer_lifecycle.receipts.store import write_atomic
from ninfer_lifecycle.receipts.trust import Role, RoleTrust
from ninfer_lifecycle.receipts.verify import Expectations, VerifiedReceipt, verify

_GATE_ID = "https://ninfer.dev/gate/cli"


def gate(
    lock: Annotated[Path | None, typer.Argument(help="lock file to be released", metavar="LOCK")] = None,
    policy: Annotated[Path | None, typer.Option(help="release policy (YAML); none: the default one")] = None,
    receipts: Annotated[list[Path] | None, typer.Option(help="receipts, folders of them, or an index.json; "
                                                              "may be repeated")] = None,
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    baseline: Annotated[Path | None, typer.Option(help="receipt whose fork walls must not be exceeded")] = None,
    release_key: Annotated[str | None, typer.Option(help="private release key file, or URI@FILE.pub of a key store: "
                                                         "an allowed release is signed")] = None,
    passphrase_file: options.PassphraseFile = None,
    decision: Annotated[Path | None, typer.Option(help="where the signed decision goes; none: beside the lock")] = None,
    show_default_policy: Annotated[bool, typer.Option("--show-default-policy", help="print it and stop")] = False,
    as_json: Json = False,
) -> None:
    """Decide whether receipts let LOCK be released; every refusal is explained."""
    if show_default_policy:
        if as_json:
            print_json(default_policy().policy.model_dump(mode="json", by_alias=True))
        else:
            typer.echo(default_policy().raw.decode(), nl=False)
        return
    if lock is None:
        raise UsageError("which lock file to release is not said", "ninfer gate LOCK --receipts DIR")
    now = options.now()
    rules = load_policy(policy) if policy else default_policy()
    source = options.trust_source(key, keyring, root)
    lock_bytes = read_lock(lock)
    outcome = _decide(lock_bytes, rules, receipts or [Path("receipts")], source, now)
    compared = _compare(outcome, rules, baseline, source, now) if baseline and outcome.decision.allowed else None
    exit_code = _exit_code(outcome.decision, compared)
    written = None
    if release_key is not None and exit_code is ExitCode.PASSED:
        inputs = DecisionInputs(_subject_name(lock), rules.name, rules.raw, _GATE_ID, now)
        written = decision or lock.with_name(f"{lock.name.removesuffix('.json')}.release.intoto.json")
        signer = options.open_signer(release_key, passphrase_file)
        write_atomic(written, build_decision(outcome.decision, inputs, signer))
    _report(outcome, compared, written, as_json=as_json)
    raise typer.Exit(int(exit_code))


@dataclass(frozen=True)
class _Outcome:
    """A decision with the policy that it was made under."""

    decision: Decision
    rules: PolicyFile


def _decide(lock: bytes, rules: PolicyFile, receipts: Sequence[Path], source: TrustSource, now: datetime) -> _Outcome:
    trust = source.load(Role(rules.policy.trusted_role), now)
    return _Outcome(decide(lock, _candidates(receipts, sha256_hex(lock)), rules.policy, trust, now), rules)


def _candidates(paths: Sequence[Path], lock_sha256: str) -> Iterator[Candidate]:
    """All receipts of files and folders; of an index.json only those that it knows to be about the lock."""
    for path in paths:
        if path.name == "index.json":
            for entry in ReceiptIndex(path.parent).find(Query(subject=lock_sha256)):
                yield candidate(path.parent / entry.path)
        else:
            yield from candidates([path])


def _compare(
    outcome: _Outcome, rules: PolicyFile, baseline: Path, source: TrustSource, now: datetime
) -> BaselineComparison:
    """The worst comparison of the receipts of the baseline's lane with it; of another lane it is inconclusive."""
    reference = _baseline(baseline, source.load(Role(rules.policy.trusted_role), now), now)
    lane = reference.predicate.lane
    chosen = outcome.decision.chosen
    alike = [item for item in chosen if item.receipt.predicate.lane == lane] or chosen
    found = [compare_with_baseline(item.receipt, reference, rules.policy.max_baseline_ratio_ppm) for item in alike]
    return min(found, key=lambda item: _WORST_FIRST.index(item.result))


_WORST_FIRST = [Result.FAILED, Result.INCONCLUSIVE, Result.PASSED]


def _baseline(path: Path, trust: RoleTrust, now: datetime) -> VerifiedReceipt:
    """A baseline may have expired: it is compared with, not released on."""
    found = read_receipt(path)
    expected = Expectations(trust=trust, now=now, lock=found.own_lock(), allow_expired=True)
    return verify(found.raw, found.files, expected).require()


def _exit_code(decision: Decision, compared: BaselineComparison | None) -> ExitCode:
    if not decision.allowed:
        return ExitCode.FAILED
    match compared.result if compared else Result.PASSED:
        case Result.PASSED:
            return ExitCode.PASSED
        case Result.FAILED:
            return ExitCode.FAILED
        case Result.INCONCLUSIVE:
            return ExitCode.INCONCLUSIVE
        case other:
            assert_never(other)


def _subject_name(lock: Path) -> str:
    return lock.name if re.match(NAME_PATTERN, lock.name) else "profile.lock.json"


def _report(
    outcome: _Outcome, compared: BaselineComparison | None, written: Path | None, *, as_json: bool
) -> None:
    decision = outcome.decision
    allowed = _exit_code(decision, compared) is ExitCode.PASSED
    if as_json:
        print_json(_as_json(outcome, compared, written))
    else:
        for line in _lines(outcome, compared, written):
            typer.echo(plain(line))
        for item in (*decision.missing, *decision.refusals):
            typer.echo(plain(f"{item.name}: {item.reason}"), err=True)
            if item.advice:
                typer.echo(f"  {item.advice}", err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        title = "ninfer gate: allowed" if allowed else "ninfer gate: refused"
        for item in decision.missing:
            annotate("error", title, f"{item.name}: {item.reason}", err=as_json)
        for item in decision.refusals:
            annotate("warning", "ninfer gate: passed over", f"{item.name}: {item.reason}", err=as_json)
        if compared is not None and compared.result is not Result.PASSED:
            annotate("error", title, f"baseline {compared.result}: {compared.reason}", err=as_json)
        summarise(title, _lines(outcome, compared, written),
                  [f"{item.name}: {item.reason}" for item in (*decision.missing, *decision.refusals)])


def _lines(outcome: _Outcome, compared: BaselineComparison | None, written: Path | None) -> list[str]:
    decision = outcome.decision
    allowed = _exit_code(decision, compared) is ExitCode.PASSED
    lines = [f"{'allowed' if allowed else 'refused'}: lock {decision.lock_sha256}, policy {outcome.rules.name}"]
    for item in decision.chosen:
        stated = item.receipt.predicate
        lines.append(f"lane {stated.lane}: {item.name}, sequence {stated.sequence}, finished {stated.finished_on}, "
                     f"valid until {stated.valid_until}")
    if compared is not None:
        lines.append(f"baseline {compared.result}: {compared.reason}")
    if written is not None:
        lines.append(f"decision {written}")
    return lines


def _as_json(outcome: _Outcome, compared: BaselineComparison | None, written: Path | None) -> dict[str, Any]:
    decision = outcome.decision
    value: dict[str, Any] = {
        "allowed": _exit_code(decision, compared) is ExitCode.PASSED,
        "lockSha256": decision.lock_sha256,
        "policy": {"name": outcome.rules.name, "sha256": sha256_hex(outcome.rules.raw)},
        "chosen": [{"receipt": item.name, "lane": item.receipt.predicate.lane,
                    "sequence": item.receipt.predicate.sequence, "payloadSha256": item.receipt.payload_sha256}
                   for item in decision.chosen],
        "missing": [{"name": item.name, "reason": item.reason, "advice": item.advice} for item in decision.missing],
        "passedOver": [{"receipt": item.name, "reason": item.reason, "advice": item.advice}
                       for item in decision.refusals],
    }
    if compared is not None:
        value["baseline"] = {"result": compared.result, "reason": compared.reason}
    if written is not None:
        value["decision"] = str(written)
    return value
