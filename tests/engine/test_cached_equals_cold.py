"""Rule 7: a request resumed from a checkpoint answers what the same request computed from root answers.

Where prefill splits at the same frontiers the logits are equal bit for bit. Elsewhere the order of additions differs:
the reply's own tokens were computed one at a time when they were said, and in chunks when they are read again. The
bound for that, in fp32 on a CPU, is BOUND on every log-probability.
"""

from collections.abc import Iterator

import pytest
import torch
from engine_cases import ask, flags_for, fork, random_tokens, request_for, running
from torch import Tensor

from ninfer_engine.runtime.api import Token
from ninfer_engine.runtime.sampler import Draw, Sampler

BOUND = 1e-3


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The logits of every sampled token, in order."""
    seen: list[Tensor] = []
    choose = Sampler.choose

    def record(self: Sampler, row: Tensor, draw: Draw) -> Token:
        seen.append(row.clone())
        return choose(self, row, draw)

    monkeypatch.setattr(Sampler, "choose", record)
    return seen


async def test_a_resend_gives_the_same_bits(logits: list[Tensor]) -> None:
    async with running(flags_for()) as engine:
        first = await ask(engine, request_for(random_tokens(3000, 1), 12))
        again = await ask(engine, request_for(random_tokens(3000, 1), 12))
    assert again.reused == 2999
    assert first.output == again.output
    assert all(torch.equal(a, b) for a, b in zip(logits[:12], logits[12:], strict=True))


async def test_a_branch_from_a_chunk_boundary_gives_the_bits_of_the_cold_run(logits: list[Tensor]) -> None:
    flags = flags_for(max_shared_prefixes=0)  # a junction would be one more split, which the cold run has not
    trunk = random_tokens(8192, 2)
    branch = (*trunk[:6000], *random_tokens(2192, 3))
    async with running(flags) as engine:
        await ask(engine, request_for(trunk, 1))
        warm = await ask(engine, request_for(branch, 8))
    async with running(flags) as engine:
        cold = await ask(engine, request_for(branch, 8))
    assert 2048 <= warm.reused <= 6000
    assert warm.reused % 512 == 0
    assert cold.reused == 0
    assert warm.output == cold.output
    assert all(torch.equal(a, b) for a, b in zip(logits[1:9], logits[9:], strict=True))


@pytest.mark.parametrize("size", [200, 1500, 6000])
async def test_a_fork_stays_within_the_stated_bound_of_the_cold_run(size: int, logits: list[Tensor]) -> None:
    async with running(flags_for()) as engine:
        base = await ask(engine, request_for(random_tokens(size, 4), 40))
        warm = await fork(engine, base, 5, output=16)
    async with running(flags_for(no_prefix_reuse=True)) as engine:
        cold = await ask(engine, request_for(warm.prompt, 16))
    assert warm.reused == len(base.tokens) - 1
    assert warm.output == cold.output
    for a, b in zip(logits[40:56], logits[56:], strict=True):
        difference = torch.log_softmax(a, -1) - torch.log_softmax(b, -1)
        assert float(difference.abs().max()) < BOUND


async def test_sent_again_after_a_stay_on_the_host_tier_the_answer_is_the_cold_one() -> None:
    narrow = flags_for(kv_capacity=8192, max_context=8192, host_kv_mib=64, device_state_slots=1, host_state_slots=8)
    async with running(narrow) as engine:
        base = await ask(engine, request_for(random_tokens(5000, 6), 8))
        before = await fork(engine, base, 7)
        for stranger in range(3):
            await ask(engine, request_for(random_tokens(6000, 60 + stranger), 8))
        assert engine.status().cache.host_kv.occupied_bytes > 0
        after = await fork(engine, base, 7)
    assert after.output == before.output
    assert after.reused >= 5000
