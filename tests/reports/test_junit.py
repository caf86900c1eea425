"""Receipts as JUnit XML: valid by a schema, read back by another library, and never green over what did not pass."""

from collections.abc import Callable
from pathlib import Path

import pytest
import xmlschema
from cli_harness import ninfer
from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite
from looked_cases import REFUSED, flip, seen, stored
from report_cases import failing, hostile, open_one, siblings

from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.reports.junit import junit
from ninfer_lifecycle.reports.looked import Looked

SCHEMA = xmlschema.XMLSchema11(str(Path(__file__).with_name("junit.xsd")))
MADE: dict[str, Callable[[], ReceiptFiles]] = {"failing": failing, "open": open_one, "siblings": siblings,
                                              "hostile": hostile}


def read(*items: Looked) -> JUnitXml:
    """The document, checked by the schema and read by junitparser."""
    text = junit(items)
    SCHEMA.validate(text.decode())
    return JUnitXml.fromstring(text)


def cases_of(document: JUnitXml) -> list[TestCase]:
    return [case for suite in document for case in suite]


@pytest.mark.parametrize("name", sorted(MADE))
def test_each_check_is_a_case_and_its_result_is_what_the_receipt_states(name: str) -> None:
    item = seen(MADE[name]())
    found = {(case.classname.rsplit(".", 1)[1], case.name): case for case in cases_of(read(item))}
    checks = item.facts.checks
    assert len(found) == len(checks), "two checks share a name: a reader would show one of them"
    for fact in checks:
        case = found["controls" if fact.control else "checks", fact.check.title]
        wanted = {Result.PASSED: [], Result.FAILED: [Failure], Result.INCONCLUSIVE: [Error]}[fact.check.result]
        assert [type(result) for result in case.result] == wanted
        assert not case.is_skipped


@pytest.mark.parametrize("name", sorted(MADE))
def test_totals_are_those_of_the_cases(name: str) -> None:
    document = read(seen(MADE[name]()), REFUSED)
    stated = (document.tests, document.failures, document.errors)
    document.update_statistics()  # counts anew
    assert stated == (document.tests, document.failures, document.errors)
    assert document.errors >= 1


def test_an_inconclusive_check_is_an_error_and_nothing_is_skipped() -> None:
    item = seen(open_one())
    document = read(item)
    open_checks = sum(fact.check.result is Result.INCONCLUSIVE for fact in item.facts.checks)
    assert document.errors == open_checks > 0
    assert document.failures == 0
    assert all(suite.skipped == 0 for suite in document)


def test_a_refused_file_is_a_suite_of_one_error() -> None:
    (suite,) = read(REFUSED)
    assert isinstance(suite, TestSuite)
    assert (suite.tests, suite.errors) == (1, 1)
    (case,) = suite
    assert "signature" in case.result[0].message


def test_words_of_an_engine_stay_words() -> None:
    text = junit([seen(hostile())]).decode()
    assert "<script" not in text
    assert "\x1b" not in text and "\u202e" not in text


def test_the_same_receipt_gives_the_same_bytes() -> None:
    assert junit([seen(failing())]) == junit([seen(failing())])


def test_the_command_writes_the_file_and_a_refused_receipt_is_an_error_in_it(tmp_path: Path) -> None:
    path, target = stored(tmp_path, failing()), tmp_path / "out" / "junit.xml"
    ran = ninfer("report", "junit", path, "--key", tmp_path / "key.pub", "--out", target)
    assert ran.code == 0, "a verified receipt was reported; its verdict is the gate's to act upon"
    assert JUnitXml.fromfile(str(target)).failures == 1
    flip(path)
    assert ninfer("report", "junit", path, "--key", tmp_path / "key.pub", "--out", target).code == 1
    assert JUnitXml.fromfile(str(target)).errors == 1
