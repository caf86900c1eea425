"""Receipts as JUnit XML. FAILED is a failure; INCONCLUSIVE is an error, and never skipped: it is no pass.

A file that does not verify is a suite of one error, so that a build which reads only this file cannot be green over it.
"""

import io
from collections.abc import Sequence
from typing import assert_never
from xml.etree import ElementTree as ET  # written only; nothing is parsed here

from ninfer_lifecycle.gates.verdict import Check, Result
from ninfer_lifecycle.reports.facts import CheckFacts, ReceiptFacts
from ninfer_lifecycle.reports.looked import Looked, Refused, Verified
from ninfer_lifecycle.text import plain

_MAX_EVIDENCE = 20


def junit(seen: Sequence[Looked]) -> bytes:
    """One document, two suites a receipt (checks, controls), in the order given. UTF-8, byte-stable."""
    root = ET.Element("testsuites", name="ninfer")
    for item in seen:
        match item:
            case Verified():
                _receipt(root, item.facts)
            case Refused():
                _refused(root, item)
            case other:
                assert_never(other)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ET.indent(root)
    buffer = io.BytesIO()
    ET.ElementTree(root).write(buffer, encoding="utf-8", xml_declaration=True)
    return buffer.getvalue() + b"\n"


def _receipt(root: ET.Element, facts: ReceiptFacts) -> None:
    stated = facts.receipt.predicate
    name = f"ninfer.{facts.profile}.{facts.lane}"
    for kind, items in (("checks", [item for item in facts.checks if not item.control]),
                        ("controls", [item for item in facts.checks if item.control])):
        if not items:
            continue
        suite = _suite(root, f"{name}.{kind}", [item.check.result for item in items])
        suite.set("timestamp", stated.started_on.removesuffix("Z"))
        if kind == "checks":
            suite.set("time", f"{(facts.finished - facts.started).total_seconds():.0f}")
        properties = ET.SubElement(suite, "properties")
        for key, value in (("result", facts.result), ("sequence", str(facts.sequence)),
                           ("subject_sha256", facts.subject_sha256), ("payload_sha256", facts.payload_sha256),
                           ("finished", stated.finished_on), ("valid_until", stated.valid_until),
                           *(("signed_by", key.keyid) for key in facts.receipt.signers)):
            ET.SubElement(properties, "property", name=key, value=plain(value))
        for item in items:
            _case(suite, f"{name}.{kind}", item)


def _suite(root: ET.Element, name: str, results: Sequence[Result]) -> ET.Element:
    return ET.SubElement(root, "testsuite", name=plain(name), tests=str(len(results)),
                         failures=str(results.count(Result.FAILED)), errors=str(results.count(Result.INCONCLUSIVE)),
                         skipped="0")


def _case(suite: ET.Element, classname: str, item: CheckFacts) -> None:
    check = item.check
    case = ET.SubElement(suite, "testcase", classname=plain(classname), name=plain(check.title))
    match check.result:
        case Result.PASSED:
            pass
        case Result.FAILED:
            _problem(case, "failure", check)
        case Result.INCONCLUSIVE:
            _problem(case, "error", check)
        case other:
            assert_never(other)


def _problem(case: ET.Element, tag: str, check: Check) -> None:
    problem = ET.SubElement(case, tag, type=check.result, message=plain(check.reason or ""))
    observed = "nothing" if check.observed is None else f"{check.observed}"
    lines = [f"{check.trials} trials, {check.misses} misses, {check.unreported} unreported, "
             f"{check.failed} without an answer",
             f"observed {observed}, threshold {check.threshold} {check.unit}"]
    lines += [f"evidence {plain(ident)}" for ident in check.evidence[:_MAX_EVIDENCE]]
    more = len(check.evidence) - _MAX_EVIDENCE
    lines += [f"and {more} more"] if more > 0 else []
    problem.text = "\n".join(lines)


def _refused(root: ET.Element, item: Refused) -> None:
    suite = _suite(root, "ninfer.receipt", [Result.INCONCLUSIVE])
    case = ET.SubElement(suite, "testcase", classname="ninfer.receipt", name=f"{plain(item.file)} verifies")
    problem = ET.SubElement(case, "error", type="REFUSED", message=plain(f"{item.step}: {item.detail}"))
    problem.text = plain(item.advice) or None
