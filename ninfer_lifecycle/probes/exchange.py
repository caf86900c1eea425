"""One request of a probe: its body, and the evidence that its answer is turned into."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineClient, EngineReplyError, ResponseReply, StreamedReply
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.probes.plain import UNREPORTED


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and what for. template_tokens, sibling, purpose and expected_reuse_tokens as in RequestEvidence.

    cache_salt: prompts of different salts share nothing. alone: nothing else runs meanwhile, so that the work counter
    tells of this request alone. streamed: read the reply piece by piece. top_logprobs: ask for so many at each token.
    block: of a paired comparison.
    """

    step: Step
    text: str
    session: str
    template_tokens: int
    max_output_tokens: int
    sibling: int | None = None
    parent: str | None = None
    purpose: str | None = None
    expected_reuse_tokens: int | None = None
    cache_salt: str | None = None
    store: bool = True
    alone: bool = True
    streamed: bool = False
    top_logprobs: int = 0
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the run a request stands."""

    request_id: str
    epoch: int
    order: int


def response_body(question: Question, model: str, request_id: str) -> dict[str, Any]:
    """The body of the published probe, with a request id of our own so that the answer can be joined to it."""
    body: dict[str, Any] = {
        "model": model, "input": question.text, "store": question.store, "temperature": 0,
        "max_output_tokens": question.max_output_tokens, "ninfer_session": question.session,
        "ninfer_request_id": request_id,
    }
    if question.parent is not None:
        body["previous_response_id"] = question.parent
    if question.cache_salt is not None:
        body["cache_salt"] = question.cache_salt
    if question.top_logprobs:
        body["top_logprobs"] = question.top_logprobs
        body["include"] = ["message.output_text.logprobs"]
    return body


@dataclass(frozen=True, slots=True)
class Answer:
    """What is written down of a request, and the status right after it. reply: None of a refusal."""

    record: RequestEvidence
    status: StatusDocument
    reply: ResponseReply | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What the prober saw around a reply: wall time by its own clock, and the status right before and right after.

    arrivals_s: when pieces of a streamed reply arrived.
    """

    wall_us: int
    before: StatusDocument
    after: StatusDocument
    arrivals_s: tuple[float, ...] = ()

    @property
    def counter_rise(self) -> int | None:
        """By how much the work counter rose; None when another life answers after it, or none is reported at all."""
        if self.before.identity.server_instance_id == UNREPORTED:
            return None
        if self.before.identity.server_instance_id != self.after.identity.server_instance_id:
            return None
        return self.after.scheduler.computed_prefill_tokens - self.before.scheduler.computed_prefill_tokens


def ask(client: EngineClient, question: Question, place: Place, model: str, before: StatusDocument, *,
        clock: Callable[[], float], on_output: Callable[[], None] = lambda: None) -> Answer:
    """Send one request alone and write down the answer; also the status right after it.

    on_output: called at each piece of a streamed reply. before: the status right before, with nothing else running. An
    error reply is evidence with `error`. No reply at all
    (a deadline, a broken connection) raises the client's error: the run cannot go on.
    """
    started = clock()
    try:
        streamed = _send(client, response_body(question, model, place.request_id), question, on_output)
    except EngineReplyError as error:
        wall_us = _micros(clock() - started)
        after = client.status()
        return Answer(_failed(question, place, error, wall_us, after), after)
    wall_us = _micros(clock() - started)
    after = client.status()
    reply, seen = streamed.reply, Observed(wall_us, before, after, streamed.arrivals_s)
    return Answer(evidence_of(reply, question, place, seen), after, reply)


def _send(client: EngineClient, body: dict[str, Any], question: Question,
          on_output: Callable[[], None]) -> StreamedReply:
    if question.streamed:
        return client.stream_response(body, question.session, on_output=on_output)
    return StreamedReply(client.create_response(body, question.session), ())


def evidence_of(reply: ResponseReply, question: Question, place: Place, seen: Observed) -> RequestEvidence:
    """The record of a reply. What it does not say stays None."""
    instance = _instance(seen.after)
    if reply.status not in {"completed", "incomplete"}:
        return RequestEvidence(
            **_where(question, place), http_status=200, reply_status=reply.status, wall_us=seen.wall_us,
            server_instance_id=instance,
            error=f"HTTP 200, but the reply says {reply.status}")
    usage, record = reply.usage, reply.ninfer
    counter = seen.counter_rise if question.alone else None
    timings = record.timings if record else None
    first_token_s = seen.arrivals_s[0] if seen.arrivals_s else (reply.model_extra or {}).get("first_token_s")
    decode_s = seen.arrivals_s[-1] - seen.arrivals_s[0] if len(seen.arrivals_s) > 1 else None
    gap_s = StreamedReply(reply, seen.arrivals_s).longest_gap_s
    return RequestEvidence(
        **_where(question, place), http_status=200, reply_status=reply.status, wall_us=seen.wall_us,
        response_id=reply.id, server_instance_id=instance,
        witness_conflict=contradiction(reply, place.request_id, counter),
        prompt_tokens=usage.input_tokens if usage else None,
        cached_tokens=usage.input_tokens_details.cached_tokens if usage else None,
        completion_tokens=usage.output_tokens if usage else None,
        reused_tokens=record.reused_tokens if record else None,
        computed_tokens=record.computed_tokens if record else None,
        counter_computed_tokens=counter,
        path=record.path.value if record else None,
        frontier_tokens=record.frontier_tokens if record else None,
        miss_reason=record.miss_reason.value if record and record.miss_reason else None,
        output_sha256=hashlib.sha256(reply.text.encode()).hexdigest(),
        first_token_us=_micros(first_token_s) if first_token_s is not None else None,
        engine_total_us=_micros(timings.total_s) if timings else None,
        engine_ttft_us=_micros(timings.ttft_s) if timings else None,
        restore_us=_micros(timings.restore_s) if timings else None,
        predicted_now_us=record.plan.predicted_now_ns // 1000 if record else None,
        longest_gap_us=None if gap_s is None else _micros(gap_s),
        decode_us=None if decode_s is None else _micros(decode_s),
        engine_decode_us=_micros(timings.decode_s) if timings else None,
    )


def contradiction(reply: ResponseReply, request_id: str, counter: int | None) -> str | None:
    """How the witnesses of one reply contradict each other; None when those that spoke agree."""
    usage, record = reply.usage, reply.ninfer
    cached = usage.input_tokens_details.cached_tokens if usage else None
    if record is not None and record.request_id != request_id:
        return f"the reply carries request id {record.request_id[:12]}..., asked was {request_id[:12]}..."
    if record is not None and cached is not None and cached != record.reused_tokens:
        return f"usage says {cached} cached tokens, the ninfer record {record.reused_tokens} reused"
    if record is not None and usage is not None and record.reused_tokens + record.computed_tokens != usage.input_tokens:
        return (f"reused {record.reused_tokens} + computed {record.computed_tokens} is not the prompt's "
                f"{usage.input_tokens} tokens")
    if counter is not None and usage is not None and cached is not None:
        claimed = usage.input_tokens - cached
        # The counter may hold a little more than the claim (a token computed again for its logits), never a template.
        if abs(counter - claimed) > max(64, claimed // 20):
            return f"the reply claims {claimed} computed tokens, the work counter rose by {counter}"
    return None


def require_same_life(before: StatusDocument, after: StatusDocument, what: str) -> None:
    """Raises EngineError when the process changed under us."""
    if before.identity.server_instance_id != after.identity.server_instance_id:
        raise EngineError(f"the engine restarted by itself during {what}",
                          "read its log for the crash; nothing measured across it counts")


def _failed(question: Question, place: Place, error: EngineReplyError, wall_us: int,
            after: StatusDocument) -> RequestEvidence:
    return RequestEvidence(**_where(question, place), http_status=error.status, error=error.message, wall_us=wall_us,
                           server_instance_id=_instance(after))


def _instance(status: StatusDocument) -> str | None:
    """Which life of the process answered; None where the server does not say."""
    instance = status.identity.server_instance_id
    return None if instance == UNREPORTED else instance


def _where(question: Question, place: Place) -> dict[str, Any]:
    return {"request_id": place.request_id, "epoch": place.epoch, "order": place.order, "step": question.step,
            "template_tokens": question.template_tokens, "sibling": question.sibling,
            "parent_response_id": question.parent, "purpose": question.purpose,
            "expected_reuse_tokens": question.expected_reuse_tokens, "block": question.block}


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
