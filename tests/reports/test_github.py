"""What GitHub Actions gets: annotations as its runner reads them, and a summary that stays in its limits."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cli_harness import ninfer
from hypothesis import example, given
from hypothesis import strategies as st
from looked_cases import REFUSED, flip, seen, stored
from markdown_it import MarkdownIt
from report_cases import LONG_ID, MARKUP, failing, hostile, open_one, siblings

from ninfer_lifecycle.commands.actions import append_summary
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.reports.github import (
    MAX_ANNOTATIONS,
    MAX_SUMMARY_BYTES,
    Annotation,
    annotations,
    heading_and_items,
    summary,
)
from ninfer_lifecycle.reports.looked import Refused

COMMAND = re.compile(r"^::(error|warning|notice) title=([^,:]*)::(.*)$")
VOID = {"br"}
ALLOWED = {"h3", "p", "code", "table", "tr", "th", "td", "br", "ul", "li"}


def read_as_the_runner_does(line: str) -> tuple[str, str, str]:
    """Level, title and message: data and properties unescaped in the order of the runner's own source."""
    found = COMMAND.fullmatch(line)
    assert found is not None, line
    level, title, message = found.groups()
    for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        title = title.replace(escaped, char)
    for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        message = message.replace(escaped, char)
    return level, title, message


class Page(HTMLParser):
    """Collects tags, and demands that each is closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs == []
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page(text: str) -> Page:
    found = Page(text)
    assert found.open == []
    assert found.tags <= ALLOWED
    return found


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
@example("50%2C title", "50%0A::error::injected")
@example("%253A", "%25")
@example("a,b::c", "one\r\n::add-mask::x")
def test_an_annotation_is_one_line_that_the_runner_reads_back(title: str, message: str) -> None:
    line = Annotation("error", title, message).command()
    assert "\n" not in line and "\r" not in line
    # The unescaping of a literal "%0A" in the text is the reason that % itself is escaped.
    assert read_as_the_runner_does(line) == ("error", title, message)


def test_failed_and_inconclusive_checks_and_refused_files_are_errors() -> None:
    assert {note.level for note in annotations([seen(failing()), seen(open_one()), REFUSED])} == {"error"}
    assert "signature" in annotations([REFUSED])[0].message


def test_more_than_github_shows_ends_with_a_count() -> None:
    many = [Refused(f"{number}.intoto.json", "envelope", "no JSON") for number in range(25)]
    notes = annotations(many)
    assert len(notes) == MAX_ANNOTATIONS
    assert notes[-1].message.startswith("16 more")


def test_the_summary_says_the_verdict_what_did_not_pass_and_how_to_check() -> None:
    item = seen(failing())
    words = "".join(page(summary([item])).words)
    assert "FAILED: tiny-cpu/default 1" in words
    assert all(fact.check.title in words for fact in item.facts.not_passed)
    assert item.facts.payload_sha256 in words
    assert "ninfer receipt verify" in words


def test_words_of_an_engine_make_no_markup_and_no_markdown() -> None:
    text = summary([seen(hostile()), Refused(f"{MARKUP}\n\n# heading [x](http://x) @everyone", "types", "`x`", MARKUP)])
    assert MARKUP not in text
    page(text)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert {token.type for token in tokens} == {"html_block"}, "an empty line would turn Markdown on"


def test_a_summary_stays_below_the_limit_and_well_formed() -> None:
    items = [seen(siblings())] * 400
    items += [seen(hostile())] * 200
    text = summary(items)
    assert MAX_SUMMARY_BYTES - 40_000 < len(text.encode()) <= MAX_SUMMARY_BYTES
    left_out = re.search(r"<p>(\d+) more left out", "".join(text.splitlines()[-1:]))
    assert left_out is not None
    assert text.count("<h3>") + int(left_out[1]) == 600
    page(text)


@given(st.lists(st.text(max_size=60), max_size=30), st.integers(0, 3000))
def test_a_list_never_exceeds_its_budget(items: list[str], budget: int) -> None:
    text = heading_and_items("gate", items, budget)
    assert len(text.encode()) <= budget
    page(text)


def test_a_summary_that_others_have_filled_is_not_made_too_large(tmp_path: Path) -> None:
    target = tmp_path / "summary.md"
    target.write_text("x" * (MAX_SUMMARY_BYTES - 5000))
    append_summary(target, lambda budget: summary([seen(hostile())] * 9, budget))
    assert target.stat().st_size <= MAX_SUMMARY_BYTES
    target.write_text("x" * MAX_SUMMARY_BYTES)
    append_summary(target, lambda budget: summary([seen(failing())], budget))
    assert target.stat().st_size <= MAX_SUMMARY_BYTES + 1


def test_the_command_annotates_and_appends_to_the_file_that_the_runner_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = stored(tmp_path, failing()), tmp_path / "summary.md"
    target.write_text("| of | another step |\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(target))
    ran = ninfer("report", "github", path, "--key", tmp_path / "key.pub")
    assert ran.code == 0
    assert [read_as_the_runner_does(line)[0] for line in ran.out.splitlines()] == ["error"] * len(
        seen(failing()).facts.not_passed)
    assert target.read_text().startswith("| of | another step |\n\n<h3>FAILED")
    flip(path)
    ran = ninfer("report", "github", path, "--key", tmp_path / "key.pub")
    assert ran.code == 1
    assert "<h3>REFUSED" in target.read_text()


def test_outside_of_actions_the_summary_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    path = stored(tmp_path)
    ran = ninfer("report", "github", path, "--key", tmp_path / "key.pub")
    assert ran.code == 0
    assert ran.out.splitlines()[0].startswith("::notice ")
    assert f"<h3>{Result.PASSED}" in ran.out
    assert LONG_ID not in ran.out
