"""A server over an engine that costs nothing: what is left is the server's own time.

`python -m benchmarks.stub_engine` listens on a free port, prints it as any server does, and answers every request with
the same eight tokens at once.
"""

import json
from collections.abc import AsyncIterator

from tokenizers import Tokenizer as HfTokenizer

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.diagnostics import LogMaterialization, LogResult, LogTimings, NinferRecord, ReusePath
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import Cache, Identity, Restore, Runtime, Scheduler, StatusDocument
from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.tiny_tokenizer import END_OF_TURN, chat_template, tokenizer_document
from ninfer_engine.model.tokenizer import Tokenizer
from ninfer_engine.runtime.api import Counts, Durations, Finished, GenerationRequest, RestoreCounts, Token
from ninfer_engine.runtime.collector import Collector
from ninfer_engine.runtime.responses import ResponseStore
from ninfer_engine.server.app import create_app
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.serve import serve

TOKENS = tuple(range(70, 78))
_FINISHED = Finished(
    reason="stop",
    record=NinferRecord(request_id="", path=ReusePath.ROOT, frontier_tokens=0, reused_tokens=0, computed_tokens=0),
    log_result=LogResult(finish_reason="stop", prompt_tokens=0, completion_tokens=len(TOKENS),
                         computed_prefill_tokens=0, prefix_cache_hit_tokens=0, prefix_reuse_path=ReusePath.ROOT),
    log_timings=LogTimings(prepare=0, queue=0, plan=0, restore=0, ttft=0, prefill=0, decode=0, total=0),
    log_materialization=LogMaterialization(
        predicted_now_ns=0, predicted_future_loss_ns=0, predicted_total_ns=0, targets_evaluated=0,
        planning_elapsed_ns=0, stop_reason="exact", model_optimal=True),
    output_tokens=TOKENS,
)
_REPLY: tuple[Token | Finished, ...] = (*map(Token, TOKENS), _FINISHED)
_STATUS = StatusDocument(
    identity=Identity(deployment_profile=None, model_id="stub", model_artifact_sha256="0" * 64, binary_sha256="0" * 64,
                      config_sha256=None, build_profile="stub", engine_version="0", device="none",
                      server_instance_id="stub"),
    runtime=Runtime(public_model_id="stub", max_context=100_000, kv_capacity_mode="explicit",
                    kv_capacity_tokens=100_000, kv_cache="none", speculative_backend="none"),
    scheduler=Scheduler(max_concurrency=8, max_pending_requests=64), cache=Cache(), restore=Restore())


class StubEngine:
    """Implements EngineApi; every reply is TOKENS, ended by their number."""

    def __init__(self) -> None:
        self.responses = ResponseStore(4096)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Token | Finished]:
        """Eight tokens, at once."""
        for event in _REPLY:
            yield event

    def finish(self, request_id: str) -> None:
        """Replies end by themselves."""

    def status(self) -> StatusDocument:
        """An idle engine."""
        return _STATUS

    async def save_session(self, session: str) -> SaveReply:
        """Nothing is ever saved here."""
        raise NotImplementedError("a stub saves nothing")

    async def checkpoint_status(self, session: str) -> CheckpointStatus:
        """There is never one."""
        return CheckpointStatus(session_sha256=session, state="missing", response_records=0)

    async def delete_checkpoint(self, session: str) -> DeleteReply:
        """There is never one."""
        return DeleteReply(session_sha256=session, deleted=False)

    async def restore_session(self, session: str) -> bool:
        """There is never one."""
        return False

    async def forget_response(self, response_id: str, session: str | None) -> None:
        """Nothing is held."""

    def healthy(self) -> bool:
        """Always."""
        return True

    def wedged(self) -> bool:
        """Never."""
        return False

    def counts(self) -> Counts:
        """Nothing."""
        none = Durations((1.0,), (0, 0), 0.0)
        return Counts(none, {}, RestoreCounts(none, 0, {}))


def main() -> None:
    """Serve until told to stop."""
    hf = HfTokenizer.from_str(json.dumps(tokenizer_document(512)))
    end = hf.token_to_id(END_OF_TURN)
    assert end is not None
    tokenizer = Tokenizer(hf, frozenset({end}))
    model = ServedModel("stub", tokenizer, ChatTemplate(chat_template(), frozenset({END_OF_TURN})))
    app = create_app(StubEngine(), model, EngineFlags(model="stub", max_concurrency=8), None, RequestLog(None, "stub"))
    Collector().take_over()  # as the engine thread does; it collects when it has nothing to do
    serve(app, "127.0.0.1", 0)


if __name__ == "__main__":
    main()
