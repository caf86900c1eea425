"""A whole engine on the tiny model, without HTTP: what the runtime tests share."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_cases import tiny_directory

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime.api import Finished, GenerationRequest, Sampling, Token
from ninfer_engine.runtime.build import build_engine
from ninfer_engine.runtime.engine import Engine
from ninfer_engine.runtime.responses import StoredResponse

SESSION = "5e" * 32
COSTS = Path(__file__).parents[1] / "data" / "costs-tiny.json"  # so that decisions do not depend on who else is busy


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request and the id under which it is stored."""

    response_id: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    finished: Finished

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.output)

    @property
    def reused(self) -> int:
        return self.finished.record.reused_tokens

    @property
    def path(self) -> str:
        return self.finished.record.path.value


def flags_for(store: Path | None = None, **changes: Any) -> EngineFlags:
    """Small pools, fixed costs, and the invariant check after every step."""
    values = {
        "model": str(tiny_directory()), "max_context": 32768, "kv_capacity": 65536, "host_kv_mib": 256,
        "prefill_chunk": 512, "check_invariants": True, "expected_forks": 4, "device": "cpu",
        "session_checkpoint_min_tokens": 1 << 20, "context_cost_presets": str(COSTS),
        "session_checkpoint_dir": str(store) if store else None,
    }
    return EngineFlags.model_validate(values | changes)


@asynccontextmanager
async def running(flags: EngineFlags) -> AsyncIterator[Engine]:
    """A started engine; closed (which saves live sessions) at the end."""
    torch.set_num_threads(2)
    engine = build_engine(flags).engine
    engine.start()
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


def random_tokens(count: int, seed: int) -> tuple[int, ...]:
    """Token ids that are no special tokens, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(64, 500, (count,), generator=generator).tolist())


def request_for(prompt: Sequence[int], output: int, parent: Answer | None = None, session: str | None = SESSION,
                **changes: Any) -> GenerationRequest:
    """A greedy request without stop tokens, stored."""
    return GenerationRequest(
        request_id=uuid.uuid4().hex * 2, tokens=tuple(prompt), sampling=Sampling(max_new_tokens=output),
        arrived=time.monotonic(), session=session, parent_response_id=parent.response_id if parent else None,
        response_id=f"resp_{uuid.uuid4().hex}", store=True, **changes)


async def ask(engine: Engine, request: GenerationRequest) -> Answer:
    """Run a request to its end and store its response, as the server does."""
    output: list[int] = []
    finished: Finished | None = None
    async for event in engine.generate(request):
        match event:
            case Token():
                output.append(event.token_id)
            case Finished():
                finished = event
    assert finished is not None
    assert tuple(output) == finished.output_tokens
    answer = Answer(request.response_id or "", tuple(request.tokens), tuple(output), finished)
    engine.responses.put(StoredResponse(
        response_id=answer.response_id, session=request.session, parent_id=request.parent_response_id,
        tokens=answer.tokens, prompt_tokens=len(answer.prompt), body={"id": answer.response_id}, input_items=(),
        context={}))
    return answer


async def fork(engine: Engine, base: Answer, seed: int, count: int = 40, output: int = 8) -> Answer:
    """A child of `base` with `count` new tokens of its own."""
    return await ask(engine, request_for((*base.tokens, *random_tokens(count, seed)), output, parent=base))
