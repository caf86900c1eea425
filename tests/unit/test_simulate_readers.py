"""Trace files of every format, read as they are, and what is said about those that cannot be."""

import gzip
import json
from pathlib import Path

import pytest

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.readers import TraceFormat, detect, open_trace

PIECE = Path(__file__).parents[1] / "data" / "mooncake-conversation-60.jsonl"


def written(folder: Path, *records: object, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def started(name: str, tokens: int, at: int = 0, **more: object) -> dict[str, object]:
    return {"event": "request_start", "timestamp_unix_ms": at, "request_id": name, "response_id": f"resp_{name}",
            "parent_response_id": None, "session": None, "store": True, "prompt_tokens": tokens} | more


def done(name: str, completion: int = 10, hit: int = 0) -> dict[str, object]:
    return {"event": "request_done", "timestamp_unix_ms": 0, "request_id": name,
            "result": {"completion_tokens": completion, "prefix_cache_hit_tokens": hit}}


def test_the_public_format_is_told_from_its_first_line_and_read_as_it_is() -> None:
    trace = list(open_trace(PIECE)())
    lengths = [json.loads(line)["input_length"] for line in PIECE.read_text().splitlines()]
    assert detect(PIECE) is TraceFormat.MOONCAKE
    assert [len(request.prompt) for request in trace] == lengths


def test_prompts_of_the_public_format_share_exactly_their_equal_leading_blocks() -> None:
    records = [json.loads(line) for line in PIECE.read_text().splitlines()]
    trace = list(open_trace(PIECE)())
    for a, b in zip(range(59), range(1, 60), strict=True):
        same = 0
        for mine, theirs in zip(records[a]["hash_ids"], records[b]["hash_ids"], strict=False):
            if mine != theirs:
                break
            same += 1
        shortest = min(records[a]["input_length"], records[b]["input_length"])
        assert trace[a].prompt.common(0, trace[b].prompt) == min(512 * same, shortest)


def test_a_gzipped_trace_reads_like_the_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "piece.gz"
    packed.write_bytes(gzip.compress(PIECE.read_bytes()))
    assert list(open_trace(packed)()) == list(open_trace(PIECE)())


def test_a_limit_ends_a_trace_early_and_reading_again_starts_over() -> None:
    trace = open_trace(PIECE, limit=7)
    assert [request.id for request in trace()] == [request.id for request in trace()]
    assert len(list(trace())) == 7


def test_short_lines_say_only_how_many_tokens_follow_the_parents_prompt_and_reply(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "at": 0, "tokens": 100, "reply": 20},
                   {"id": "b", "at": 1, "tokens": 30, "reply": 5, "parent": "a", "session": "s"})
    first, second = open_trace(path)()
    assert (len(first.prompt), len(second.prompt), second.parent, second.session) == (100, 150, "a", "s")
    assert first.prompt.joined(first.reply).common(0, second.prompt) == 120


def test_a_request_log_gives_each_continuation_its_parents_tokens(tmp_path: Path) -> None:
    path = written(tmp_path, {"event": "server_start", "timestamp_unix_ms": 0}, started("a", 100, 1000), done("a", 10),
                   started("b", 150, 2500, parent_response_id="resp_a", session="f" * 64), done("b"))
    first, second = open_trace(path)()
    assert (first.at, second.at, second.parent) == (1.0, 2.5, "resp_a")
    assert first.prompt.joined(first.reply).common(0, second.prompt) == 110
    assert len(second.prompt) == 150


def test_requests_of_a_log_come_in_the_order_of_their_arrival_however_they_end(tmp_path: Path) -> None:
    path = written(tmp_path, started("slow", 10), started("quick", 20), done("quick"), started("last", 30),
                   done("slow"), done("last"))
    assert [request.id for request in open_trace(path)()] == ["resp_slow", "resp_quick", "resp_last"]


def test_requests_of_a_log_that_failed_or_never_ended_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, started("lost", 10), {"event": "server_start", "timestamp_unix_ms": 0}, started("bad", 10),
                   {"event": "request_error", "timestamp_unix_ms": 0, "request_id": "bad"}, started("good", 10),
                   done("good"), started("open", 10))
    assert [request.id for request in open_trace(path)()] == ["resp_good"]


def test_a_hit_without_a_parent_repeats_what_its_own_session_sent_before(tmp_path: Path) -> None:
    path = written(tmp_path, started("a", 100, session="x"), done("a"), started("b", 100, session="y"), done("b"),
                   started("c", 120, session="x"), done("c", hit=64))
    a, b, c = open_trace(path)()
    assert (a.prompt.common(0, c.prompt), b.prompt.common(0, c.prompt)) == (64, 0)


@pytest.mark.parametrize(("text", "said"), [
    ("", "empty"),
    ("no json\n", "no known trace format"),
    ('{"id": "a"}\n', "no known trace format"),
    ('{"id": "a", "at": 0, "tokens": -1}\n', "line 1"),
    ('{"id": "a", "at": 0, "tokens": 5}\n{"id": "b", "at": 0, "tokens": 5, "parent": "gone"}\n', "line 2"),
    ('{"hash_ids": [1], "timestamp": 0, "output_length": 1}\n', "line 1"),
    ('{"event": "request_start", "request_id": "a"}\n{"event": "request_done", "request_id": "a"}\n', "a lacks"),
    ('{"event": "server_start"}\n[]\n', "line 2"),
])
def test_a_file_that_is_no_trace_is_refused_with_its_name_and_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        list(open_trace(path)())
    assert said in refused.value.message
    assert "bad.jsonl" in refused.value.message
    assert refused.value.advice


def test_damaged_gzip_and_missing_files_are_refused(tmp_path: Path) -> None:
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(PIECE.read_bytes())[:200])
    for path in (torn, tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError):
            list(open_trace(path)())
    with pytest.raises(UsageError, match="no trace format 'csv'"):
        open_trace(PIECE, "csv")
