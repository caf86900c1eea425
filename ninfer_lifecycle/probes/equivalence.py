"""equivalence: does a resumed request give the very tokens that the same request gives from root?

The cold twin of a fork is the same request under a cache salt that nobody used: the same tokens, by the same parent,
and nothing to resume from. Greedy decoding makes the two comparable token by token.
"""

from collections.abc import Sequence
from dataclasses import replace

from ninfer_lifecycle.client import ResponseReply
from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.gates.plans import TWINS_A_SIZE, compared_sizes
from ninfer_lifecycle.probes.isolation import SHARED_HEAD
from ninfer_lifecycle.probes.logprobs import MAX_DIVERGENCE_NANONATS, logprobs_of, worst_divergence
from ninfer_lifecycle.probes.parts import Act, Part, Threads, asked_of, begin, next_question
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.probes.templates import derive_nonce
from ninfer_lifecycle.profiles.schema import ProbeSection

REPLY_TOKENS = 24


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()

    def compare(tokens: int) -> Act:
        def act(run: ProbeRun) -> None:
            base = threads.named[str(tokens)] = begin(run, f"equivalence/{tokens}", tokens, section.base_output_tokens)
            for number in range(TWINS_A_SIZE):
                question = replace(next_question(run, base, "equivalence.resumed", section, expected=tokens),
                                   max_output_tokens=REPLY_TOKENS, top_logprobs=section.top_logprobs)
                resumed, warm_reply = run.ask(question), run.last_reply
                cold = run.ask(replace(question, purpose=None, expected_reuse_tokens=None, store=False,
                                       cache_salt=derive_nonce(run.nonce, f"equivalence/{tokens}/{number}")))
                _compare(run, resumed, cold)
                _compare_logprobs(run, warm_reply, run.last_reply, [resumed.request_id, cold.request_id])

        cost = (1 + TWINS_A_SIZE) * tokens + 2 * TWINS_A_SIZE * REPLY_TOKENS
        return Act(f"cold twins of {tokens}", cost, act)

    return [compare(tokens) for tokens in compared_sizes(asked_of(section))]


def _compare(run: ProbeRun, resumed: RequestEvidence, cold: RequestEvidence) -> None:
    ids = [resumed.request_id, cold.request_id]
    run.fact("equivalence.twin_is_cold", cold.cached_tokens, "at_most", SHARED_HEAD,
             cold.error or "tokens that the cold twin reused", ids)
    comparable = resumed.prompt_tokens == cold.prompt_tokens and None not in (resumed.output_sha256, cold.output_sha256)
    same = int(resumed.output_sha256 == cold.output_sha256) if comparable else None
    run.fact("equivalence.same_greedy_tokens", same, "equal", 1,
             resumed.error or cold.error or "whether a resumed fork and its cold twin answered alike", ids)


def _compare_logprobs(run: ProbeRun, resumed: ResponseReply | None, cold: ResponseReply | None,
                      ids: list[str]) -> None:
    """A fact in any case: what an engine does not report stays unreported, and is a gap only where it was asked for."""
    worst = None if resumed is None or cold is None else worst_divergence(logprobs_of(cold), logprobs_of(resumed))
    run.fact("equivalence.logprobs", worst, "at_most", MAX_DIVERGENCE_NANONATS,
             "log probabilities were not reported" if worst is None else
             "nanonats from the cold twin's distribution to the resumed one's, worst token", ids)


EQUIVALENCE = Part(
    "equivalence", "Does a resumed request give the same greedy tokens as the same request from root?", _steps)
