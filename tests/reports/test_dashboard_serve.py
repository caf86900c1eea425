"""`ninfer dashboard serve`: a real process on a real socket: events as files change, metrics, and what it refuses."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from run_cases import begin, go_on
from serving import events, served
from site_cases import chain, cold_fork, key_file, put


def make_folder(work: Path) -> Path:
    """Receipts of two lanes, one of them failing."""
    failing = chain("b", "x", 1, spoil=lambda number, evidence: cold_fork(evidence))
    return put(work / "receipts", *chain("a", "x", 3)[:2], *failing)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over them, for tests that change nothing."""
    work = tmp_path_factory.mktemp("served")
    with served(make_folder(work), key_file(work), work / "runs") as address:
        yield address


def test_it_serves_the_site_with_headers_that_keep_others_out(url: str) -> None:
    answer = httpx.get(url)
    assert answer.status_code == 200
    assert "<title>Qualifications</title>" in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    current = httpx.get(f"{url}data/current.json").json()
    assert (current["receipts"], current["live"]) == (3, True)
    assert httpx.get(f"{url}{current['base']}list-0.json").status_code == 200


def test_events_tell_of_runs_and_of_receipts_as_they_come(tmp_path: Path) -> None:
    folder, run = make_folder(tmp_path), begin(tmp_path / "runs")
    with (served(folder, key_file(tmp_path), tmp_path / "runs") as url,
          httpx.stream("GET", f"{url}events", timeout=60) as answer):
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = events(answer)
        seen = wait_for(stream, "runs", bool)
        assert (seen[0]["state"], seen[0]["done"]) == ("running", 0)
        go_on(run, 6)
        seen = wait_for(stream, "runs", lambda value: value[0]["done"] == 6)
        assert seen[0]["requests"] > 0
        before = httpx.get(f"{url}data/current.json").json()
        put(folder, *chain("a", "x", 3))
        told = wait_for(stream, "site", lambda value: value["base"] != before["base"])
        assert httpx.get(f"{url}{told['base']}list-0.json").json()[0][3] == 3


def wait_for(stream: Iterator[tuple[str, str]], name: str, done: object) -> object:
    """The value of the first event of that name that `done` accepts."""
    for found, data in stream:
        if found == name:
            value = json.loads(data)
            if done(value):  # type: ignore[operator]  a predicate
                return value
    raise AssertionError("the stream ended")


def test_metrics_are_of_the_newest_receipts(url: str) -> None:
    answer = httpx.get(f"{url}metrics")
    samples = {(sample.name, *sorted(sample.labels.items())): sample.value
               for family in text_string_to_metric_families(answer.text) for sample in family.samples}
    assert samples["ninfer_receipt_verdict", ("lane", "x"), ("profile", "a"), ("result", "passed")] == 1
    assert samples["ninfer_receipt_verdict", ("lane", "x"), ("profile", "b"), ("result", "failed")] == 1
    assert samples["ninfer_receipts", ("verified", "yes")] == 3


@pytest.mark.parametrize("path", [
    "%2e%2e/key.pub", "data/../../key.pub", "..%2f..%2fetc/passwd", "data/%2e%2e/.ninfer-site/x", "nothing.html",
    "//etc/passwd"])
def test_nothing_but_the_site_can_be_asked_for(url: str, path: str) -> None:
    assert httpx.get(f"{url}{path}").status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(url: str, method: str) -> None:
    for path in ("", "events", "metrics", "data/current.json"):
        assert httpx.request(method, f"{url}{path}").status_code == 405


def test_a_name_that_a_foreign_page_rebound_to_this_machine_is_not_answered(url: str) -> None:
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 400
    assert httpx.get(url, headers={"host": "localhost:1"}).status_code == 200


def test_a_listener_too_many_is_told_to_come_back(url: str) -> None:
    with httpx.Client(limits=httpx.Limits(max_connections=None), timeout=60) as client:
        open_streams = [client.send(client.build_request("GET", f"{url}events"), stream=True) for _ in range(64)]
        try:
            readers = [stream.iter_raw() for stream in open_streams]
            for reader in readers:
                next(reader)
            refused = client.get(f"{url}events")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        finally:
            for stream in open_streams:
                stream.close()


def test_it_ends_when_asked_to_even_with_listeners(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # The stack is entered first and left last: the server is ended and waited for while the listener still listens.
    with (contextlib.ExitStack() as stack,
          served(make_folder(tmp_path), key_file(tmp_path), tmp_path / "runs") as url):
        reader = stack.enter_context(httpx.stream("GET", f"{url}events")).iter_raw()
        assert next(reader)
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "ERROR" not in said


@pytest.mark.parametrize(("arguments", "words"), [
    (["--receipts", "nowhere"], "no folder of receipts"), (["--host", "192.0.2.1"], "cannot listen"),
    (["--site", "."], "not a site")])
def test_what_cannot_be_served_is_told_with_advice(tmp_path: Path, arguments: list[str], words: str) -> None:
    make_folder(tmp_path)
    key_file(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "ninfer_lifecycle.cli", "dashboard", "serve", "--port", "0", "--key", "key.pub",
         "--receipts", "receipts", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert words in ran.stderr
