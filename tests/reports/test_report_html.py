"""The HTML report: verdict first, nothing left out, nothing loaded, nothing injected."""

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
import receipt_cases as cases
from cli_harness import ninfer
from jinja2 import UndefinedError
from markupsafe import escape
from report_cases import HEBREW, MARKUP, OVERRIDE, REAL, REAL_KEY, RECEIPTS, failing, hostile

from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.reports import html, words
from ninfer_lifecycle.reports.facts import facts_of

TAGS = {"html", "head", "meta", "title", "link", "style", "body", "a", "header", "p", "h1", "h2", "h3", "span", "time",
        "main", "section", "dl", "div", "dt", "dd", "ol", "ul", "li", "bdi", "details", "summary", "code", "strong",
        "svg", "desc", "line", "rect", "circle", "path", "text", "table", "caption", "thead", "tbody", "tr", "th", "td",
        "pre", "footer"}
LOADS = {"src", "srcset", "data", "action", "formaction", "poster", "background", "ping", "style"}


class Page(HTMLParser):
    """What a parser that is not ours makes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(name: str, **more: object) -> str:
    """The report of one of the cases."""
    return html.render(facts_of(RECEIPTS[name]()), now=cases.NOW, receipt_name="r.intoto.json", **more)  # type: ignore[arg-type]  named by the test


@pytest.mark.parametrize("name", RECEIPTS)
def test_a_page_loads_nothing_and_runs_nothing(name: str) -> None:
    parsed = Page(page(name))
    for tag, attributes in parsed.tags:
        assert tag in TAGS, tag
        assert not LOADS & set(attributes), (tag, attributes)
        assert not [key for key in attributes if key.startswith("on")], attributes
        link = attributes.get("href") or "#"
        assert link.startswith(("#", "data:,")), link
    assert [tag for tag, _ in parsed.tags].count("svg") >= 2


@pytest.mark.parametrize("name", RECEIPTS)
def test_the_policy_of_a_page_allows_its_own_style_sheet_and_nothing_else(name: str) -> None:
    text = page(name)
    policy = next(attributes["content"] for tag, attributes in Page(text).tags
                  if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy") or ""
    sheet = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(sheet) == 1
    digest = base64.b64encode(hashlib.sha256(sheet[0].encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == f"'sha256-{digest}'"
    assert "script-src" not in rules


@pytest.mark.parametrize("name", RECEIPTS)
def test_the_verdict_stands_first_and_what_did_not_pass_before_everything_that_did(name: str) -> None:
    facts = facts_of(RECEIPTS[name]())
    text = page(name)
    body = text[text.index("<main"):]
    assert f'<span class="word">{facts.result.capitalize()}</span>' in body[: body.index("</h2>")]
    assert ('id="open-checks"' in body) == bool(facts.not_passed)
    if facts.not_passed:
        assert body.index('id="open-checks"') < body.index("Forks beside cold starts")
    rows = re.findall(r'<tr id="check-\w+">.*?</tr>', body, re.DOTALL)
    results = [re.search(r'badge (\w+)"', row).group(1) for row in rows]  # type: ignore[union-attr]  each has one
    assert results == [item.check.result.lower() for item in facts.checks]


@pytest.mark.parametrize("name", RECEIPTS)
def test_every_digest_key_and_bound_is_told(name: str) -> None:
    facts = facts_of(RECEIPTS[name]())
    text, stated = page(name), facts.receipt.predicate
    for digest in (facts.payload_sha256, facts.subject_sha256, stated.policy.digest.sha256, *(
            part.digest.sha256 for part in stated.configuration), *(file.digest.sha256 for file in stated.evidence), *(
            key.keyid for key in facts.receipt.signers)):
        assert digest in text
    for hits in facts.hits:
        assert words.bound_of_hits(hits) in text
    for item in facts.not_passed:
        assert str(escape(words.shown(item.check.reason or ""))) in text
    assert "ninfer receipt verify r.intoto.json" in text


def test_hostile_words_are_shown_as_text_and_turn_nothing_round() -> None:
    text = page("hostile")
    assert MARKUP not in text
    assert MARKUP in "".join(Page(text).text)
    assert HEBREW in text
    assert OVERRIDE[0] not in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "49" not in "".join(Page(text).text).split("{{7*7}}")[1][:2], "a template in a word was carried out"


def test_the_name_of_a_file_is_quoted_for_the_shell() -> None:
    text = html.render(facts_of(RECEIPTS["failing"]()), now=cases.NOW, receipt_name="a; rm -rf $HOME `x`.intoto.json")
    assert str(escape("verify 'a; rm -rf $HOME `x`.intoto.json'")) in text


def test_a_template_that_names_what_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        html._environment().from_string("{{ nothing }}").render()


def test_expiry_is_told_as_of_the_time_of_the_report() -> None:
    facts = facts_of(RECEIPTS["failing"]())
    late = html.render(facts, now=facts.valid_until + timedelta(days=1), receipt_name="r")
    assert "<strong>Expired</strong>" in late
    assert "<strong>Expired</strong>" not in page("failing")


def put(folder: Path, made: ReceiptFiles) -> Path:
    """A receipt's files, and the key of the tests beside them."""
    for name, data in made.files.items():
        (folder / name).write_bytes(data)
    (folder / "key.pub").write_bytes(cases.signer(1).public_key.pem())
    return folder / made.receipt_name


def test_the_command_writes_one_file_about_a_receipt_that_verifies(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    ran = ninfer("report", "html", REAL, "--key", REAL_KEY, "--out", out, at=datetime(2026, 12, 2, tzinfo=UTC))
    assert ran.code == 0, ran.err
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(out.read_bytes()) < 200_000


@pytest.mark.parametrize("made", [failing, hostile])
def test_the_command_tells_of_any_result(tmp_path: Path, made: object) -> None:
    receipt = put(tmp_path, made())  # type: ignore[operator]  a maker of receipts
    ran = ninfer("report", "html", receipt, "--key", tmp_path / "key.pub", "--out", tmp_path / "r.html", "--json")
    assert ran.code == 0, ran.err
    assert '"result": "FAILED"' in ran.out


def test_nothing_is_written_about_a_receipt_that_does_not_verify(tmp_path: Path) -> None:
    receipt = put(tmp_path, failing())
    (tmp_path / "tiny-cpu.default.000001.requests.jsonl").write_bytes(b"{}\n")
    ran = ninfer("report", "html", receipt, "--key", tmp_path / "key.pub", "--out", tmp_path / "r.html")
    assert ran.code == 1
    assert "verdict recomputed" in ran.err
    assert not (tmp_path / "r.html").exists()


def test_a_report_that_cannot_be_written_says_where_to_write_it(tmp_path: Path) -> None:
    receipt = put(tmp_path, failing())
    ran = ninfer("report", "html", receipt, "--key", tmp_path / "key.pub", "--out", tmp_path / "no" / "r.html")
    assert ran.code == 2
    assert "--out" in ran.err
