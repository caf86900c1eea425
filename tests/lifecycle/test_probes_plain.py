"""Fan-out against servers that know nothing of our contract: exact prompts, their own witnesses, nothing made up."""

from pathlib import Path
from typing import Literal

import pytest
from plain_server import PlainServer, shared
from test_qualify import PROFILE

from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.measure import Measured, measure
from ninfer_lifecycle.qualify.models import ModelOnDisk
from ninfer_lifecycle.qualify.orchestrate import Wiring
from ninfer_lifecycle.qualify.prepare import Wanted
from ninfer_lifecycle.qualify.progress import PlainDisplay


def measured(directory: Path, server: PlainServer) -> Measured:
    """The fan-out of a small profile against that server."""
    (directory / "pretend.yaml").write_text(PROFILE)

    def no_model(model: ModelSection) -> ModelOnDisk:
        raise AssertionError("a server given by its address brings its own model")

    wiring = Wiring(make_host=lambda kind: pytest.fail("no host is needed"), make_model=no_model,
                    display=lambda: PlainDisplay(lambda line: None, lambda: 0.0), say=lambda line: None)
    with server:
        return measure(Wanted(str(directory / "pretend.yaml"), directory / "runs"), server.base_url, None, wiring)


def results(found: Measured, name: str) -> set[Result]:
    """Results of a check over all sizes."""
    return {check.result for check in (*found.verdict.checks, *found.verdict.controls) if check.name.value == name}


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
def test_hits_of_a_plain_server_are_counted_from_its_own_report(
    tmp_path: Path, dialect: Literal["llama", "vllm"]
) -> None:
    found = measured(tmp_path, PlainServer(dialect))
    assert results(found, "fork_hits") == {Result.PASSED}
    assert results(found, "control_never_seen") == {Result.PASSED}
    assert results(found, "control_exact_repeat") == {Result.PASSED}


def test_what_a_plain_server_cannot_show_is_inconclusive_and_so_is_the_verdict(tmp_path: Path) -> None:
    found = measured(tmp_path, PlainServer("vllm"))
    assert found.verdict.result is Result.INCONCLUSIVE
    assert results(found, "saves_complete") == {Result.INCONCLUSIVE}
    assert results(found, "accounting") == {Result.INCONCLUSIVE}


def test_a_server_that_reuses_nothing_fails(tmp_path: Path) -> None:
    found = measured(tmp_path, PlainServer("vllm", keep=0))
    assert results(found, "fork_hits") == {Result.FAILED}


def test_a_server_that_keeps_one_sequence_loses_the_reply_but_not_the_template(tmp_path: Path) -> None:
    found = measured(tmp_path, PlainServer("llama", keep=1))
    assert results(found, "fork_hits") == {Result.PASSED}


def test_a_server_that_does_not_report_reuse_is_not_given_any(tmp_path: Path) -> None:
    found = measured(tmp_path, PlainServer("silent"))
    assert results(found, "fork_hits") == {Result.INCONCLUSIVE}
    assert all(record.cached_tokens is None for record in found.evidence.requests)


def test_evidence_of_a_plain_server_has_its_first_token_time_and_no_figure_that_it_did_not_give(tmp_path: Path) -> None:
    found = measured(tmp_path, PlainServer("vllm"))
    for record in found.evidence.requests:
        assert record.first_token_us is not None
        assert record.first_token_us <= (record.wall_us or 0)
        assert (record.path, record.reused_tokens, record.counter_computed_tokens, record.server_instance_id) == (
            None, None, None, None)


def test_forks_are_sent_as_the_tokens_of_their_base_and_its_reply(tmp_path: Path) -> None:
    server = PlainServer("vllm")
    found = measured(tmp_path, server)
    base = next(r for r in found.evidence.requests if r.step is Step.BASE)
    forks = [prompt for prompt in server.prompts if len(prompt) > base.template_tokens + 8]
    first = next(prompt for prompt in server.prompts if len(prompt) == base.template_tokens
                 and shared(prompt, forks[0]) == base.template_tokens)
    family = [prompt for prompt in forks if shared(prompt, first) == base.template_tokens]
    assert len(family) == 5
    assert len({tuple(prompt) for prompt in family}) == 5
