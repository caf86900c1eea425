"""Release notes from two receipts: what changed, said once, in Markdown that nothing can break."""

import dataclasses
import json
from datetime import timedelta
from pathlib import Path

import pytest
from cli_harness import ninfer
from hypothesis import given
from hypothesis import strategies as st
from looked_cases import flip, seen, stored
from markdown_it import MarkdownIt
from markdown_it.token import Token
from receipt_cases import NOW, chained, honest_evidence, receipt
from report_cases import failing, hostile

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.reports.notes import code, release_notes

ALLOWED = {"heading_open", "heading_close", "paragraph_open", "paragraph_close", "bullet_list_open",
           "bullet_list_close", "list_item_open", "list_item_close", "table_open", "table_close", "thead_open",
           "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close", "th_open", "th_close", "td_open",
           "td_close", "inline", "text", "code_inline", "strong_open", "strong_close", "softbreak"}
MARKDOWN = MarkdownIt("commonmark").enable("table").enable("linkify", ignoreInvalid=True)


def tokens(text: str) -> list[Token]:
    found: list[Token] = []
    for token in MARKDOWN.parse(text):
        found += [token, *(token.children or ())]
    assert {token.type for token in found} <= ALLOWED
    return found


def slower(by: int) -> Evidence:
    """Honest evidence whose forks take `by` times as long."""
    evidence = honest_evidence()
    return dataclasses.replace(evidence, requests=tuple(
        record.model_copy(update={"wall_us": (record.wall_us or 0) * by}) if record.step is Step.FORK else record
        for record in evidence.requests))


def pair(before: ReceiptFiles, after: ReceiptFiles) -> str:
    text = release_notes(seen(before, "one.intoto.json"), seen(after, "two.intoto.json"))
    tokens(text)
    return text


OLD = receipt(finished_on=NOW - timedelta(hours=1, minutes=30))


def test_notes_of_equal_receipts_say_that_nothing_changed() -> None:
    text = pair(OLD, receipt(head=chained(OLD)))
    assert "The same, byte for byte." in text
    assert "The same checks, with the same results." in text
    assert "which names the one before as its predecessor" in text
    assert "0.024 -> 0.024" in text


def test_a_check_that_broke_stands_first_with_its_reason() -> None:
    text = pair(OLD, failing())
    checks = text.split("## Checks\n\n")[1].splitlines()
    assert checks[0].startswith("- **FAILED** (was PASSED): `fork_hits 1000 tokens epoch 1`: `1 of 4 missed")
    assert "the release gate refuses it" in text
    assert "8/8 -> 7/8" in text
    assert "which is not its direct predecessor" in text


def test_a_check_that_was_mended_is_said_to_pass_now() -> None:
    old = dataclasses.replace(seen(failing()), file="one.intoto.json")
    new = seen(receipt(finished_on=NOW - timedelta(minutes=10)), "two.intoto.json")
    text = release_notes(old, new)
    assert "- Now PASSED (was FAILED): `fork_hits 1000 tokens epoch 1`" in text


def test_walls_of_other_hardware_are_not_compared() -> None:
    from ninfer_lifecycle.receipts.statement import Environment

    other = Environment(host="process", architecture="x86_64", cpu="Another CPU", cpu_count=2, memory_bytes=2**33)
    text = pair(OLD, receipt(environment=other))
    assert "Not compared. INCONCLUSIVE: `another hardware" in text
    assert "->" not in text.split("## Walls")[1].split("##")[0]


def test_slower_forks_show_in_the_table() -> None:
    assert "0.024 -> 0.072" in pair(OLD, receipt(slower(3)))


def test_what_changed_in_the_configuration_is_listed_leaf_by_leaf() -> None:
    def locked(flags: dict[str, int]) -> bytes:
        return json.dumps({"configuration": {"flags": flags}}).encode()

    before = dataclasses.replace(seen(OLD), lock=locked({"expected_forks": 4, "gone": 1}))
    after = dataclasses.replace(seen(receipt()), lock=locked({"expected_forks": 8, "new": 2}))
    text = release_notes(before, after)
    assert "- `configuration.flags.expected_forks: 4 -> 8`" in text
    assert "- `configuration.flags.gone: 1 -> (absent)`" in text
    assert "- `configuration.flags.new: (absent) -> 2`" in text


def test_receipts_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(UsageError, match="of a later run"):
        release_notes(seen(receipt()), seen(OLD))


def test_words_of_an_engine_make_no_markdown() -> None:
    pair(OLD, hostile())
    pair(hostile(), receipt(finished_on=NOW - timedelta(minutes=5)))


@given(st.text(min_size=1))
def test_any_text_in_a_code_span_stays_one_code_span(text: str) -> None:
    found = [token for token in tokens(f"- before {code(text)} after") if token.type != "softbreak"]
    spans = [token.content for token in found if token.type == "code_inline"]
    assert len(spans) == 1
    if text.isascii() and text.isprintable() and text.strip():
        assert spans[0] == text


def test_the_command_compares_two_files_and_writes_nothing_when_one_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, OLD)
    newer = stored(tmp_path, receipt(head=chained(OLD)))
    target = tmp_path / "notes.md"
    ran = ninfer("report", "notes", path, newer, "--key", tmp_path / "key.pub", "--out", target)
    assert ran.code == 0, ran.err
    assert target.read_text().startswith("# `tiny-cpu/default`: PASSED\n")
    target.unlink()
    flip(newer)
    assert ninfer("report", "notes", path, newer, "--key", tmp_path / "key.pub", "--out", target).code == 1
    assert not target.exists()
