"""Saving beside other requests, without losing what memory gave up, and refusing what could not come back."""

import asyncio
from pathlib import Path

import pytest
from engine_cases import SESSION, ask, fork, random_tokens, request_for, running
from session_cases import audit, store_flags, writes_are_held

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.memory.store.place import StorePlace
from ninfer_engine.runtime.api import EngineRefusedError

OTHER = "0f" * 32
SMALL = {"kv_capacity": 2560, "host_kv_mib": 0, "max_context": 2560}  # one session of 1,500 tokens at a time


async def test_a_stuck_disk_holds_the_save_and_nothing_else(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(1500, 1), 8))
        with writes_are_held() as disk:
            save = asyncio.create_task(engine.save_session(SESSION))
            await disk.until_reached()
            other = await ask(engine, request_for(random_tokens(700, 5), 40, session=OTHER))
            assert len(other.output) == 40
            assert not save.done()
            audit(engine)
            disk.release()
            assert (await save).engine_stall_s < 1
    async with running(store_flags(tmp_path)) as engine:
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1


async def test_memory_that_a_stuck_save_still_needs_is_given_to_whoever_asks_and_the_save_ends(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path, **SMALL)) as engine:
        await ask(engine, request_for(random_tokens(1500, 1), 8))
        with writes_are_held() as disk:
            save = asyncio.create_task(engine.save_session(SESSION))
            await disk.until_reached()
            other = await ask(engine, request_for(random_tokens(1500, 5), 8, session=OTHER))
            assert len(other.output) == 8
            audit(engine)
            disk.release()
            saved = await save
        assert saved.response_records == 1
        assert (await engine.checkpoint_status(SESSION)).state == "available"


async def test_what_another_session_pushed_out_of_memory_stays_in_the_next_generation(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path, **SMALL)) as engine:
        base = await ask(engine, request_for(random_tokens(1500, 1), 8))
        await engine.save_session(SESSION)
        await ask(engine, request_for(random_tokens(1500, 5), 8, session=OTHER))
        await ask(engine, request_for(random_tokens(300, 6), 8))
        second = await engine.save_session(SESSION)
        assert second.response_records == 2
        assert second.frontier_tokens == len(base.tokens) - 1
    async with running(store_flags(tmp_path, **SMALL)) as engine:
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1


async def test_a_session_spread_over_both_tiers_is_refused_when_asked_for_and_cut_when_not(tmp_path: Path) -> None:
    flags = store_flags(tmp_path, kv_capacity=2560, host_kv_mib=2, max_context=2560)
    async with running(flags) as engine:
        room = engine._driver.brain.capacities
        assert 20 <= room.host_pages < room.device_pages == 40
        first = await ask(engine, request_for(random_tokens(1500, 1), 8))
        await ask(engine, request_for(random_tokens(1500, 2), 8))
        held = engine._driver.brain.occupancy()
        assert held.device_pages + held.host_pages > room.device_pages
        with pytest.raises(EngineRefusedError) as refused:
            await engine.save_session(SESSION)
    assert refused.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE
    assert "--kv-capacity" in refused.value.message
    async with running(flags) as engine:
        assert (await engine.checkpoint_status(SESSION)).response_records == 2
        assert await engine.restore_session(SESSION)
        assert engine.responses.get(first.response_id, SESSION) is not None
        audit(engine)


async def test_a_fork_costs_its_suffix_on_disk_and_sixteen_siblings_less_than_twice_one(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path, expected_forks=16, check_invariants=False)) as engine:
        base = await ask(engine, request_for(random_tokens(12_000, 1), 8))
        store = engine._sessions._opened.store  # type: ignore[union-attr]  # it has one
        one = await engine.save_session(SESSION)
        before = set(store.load(SESSION).objects())
        await fork(engine, base, 2)
        second = await engine.save_session(SESSION)
        manifest = store.load(SESSION)
        pages = {page for record in manifest.checkpoints for page in record.pages} - before
        images = {record.image for record in manifest.checkpoints} - before
        needed = len(pages) * engine._driver.pages.page_bytes + len(images) * engine._driver.images.image_bytes
        assert len(pages) <= 4
        assert second.written_bytes <= 1.2 * needed
        for seed in range(3, 18):
            await fork(engine, base, seed)
        every = await engine.save_session(SESSION)
        assert every.response_records == 17
        assert every.bytes < 2 * second.bytes
        assert 0 <= store.used_bytes() - every.bytes < 4096  # the envelope of the record
        assert one.bytes < second.bytes < every.bytes


async def test_a_save_beyond_the_quota_is_refused_with_what_to_raise(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path, session_checkpoint_quota_mib=1)) as engine:
        await ask(engine, request_for(random_tokens(1500, 1), 8))
        with pytest.raises(EngineRefusedError) as refused:
            await engine.save_session(SESSION)
        assert (await engine.checkpoint_status(SESSION)).state == "missing"
    assert refused.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE
    assert "--session-checkpoint-quota-mib" in refused.value.message


async def test_a_full_disk_refuses_the_save_and_keeps_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(400, 1), 8))
        await engine.save_session(SESSION)
        await fork(engine, base, 2)
        with monkeypatch.context() as patch:
            patch.setattr(StorePlace, "free_on_disk", lambda _: 0)
            with pytest.raises(EngineRefusedError) as refused:
                await engine.save_session(SESSION)
            status = await engine.checkpoint_status(SESSION)
            assert (status.state, status.generation) == ("available", 1)
        assert refused.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE
        assert "disk" in refused.value.message
        assert (await engine.save_session(SESSION)).generation == 2


@pytest.mark.parametrize("deleted_before", ["save", "restart"])
async def test_a_deleted_response_never_comes_back_and_its_children_do(tmp_path: Path, deleted_before: str) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(1500, 1), 8))
        child = await fork(engine, base, 2)
        if deleted_before == "restart":
            await engine.save_session(SESSION)
        assert engine.responses.delete(base.response_id, SESSION)
        await engine.forget_response(base.response_id, SESSION)
    for round_ in range(2):
        async with running(store_flags(tmp_path)) as engine:
            assert await engine.restore_session(SESSION)
            assert engine.responses.get(base.response_id, SESSION) is None
            there = engine.responses.get(child.response_id, SESSION)
            assert there is not None
            assert list(there.tokens) == list(child.tokens)
            assert (await fork(engine, child, 4 + round_)).reused == len(child.tokens) - 1


async def test_a_new_conversation_after_a_restart_does_not_push_the_old_one_out_of_the_store(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(1500, 1), 8))
    async with running(store_flags(tmp_path)) as engine:
        await ask(engine, request_for(random_tokens(400, 2), 8))
    async with running(store_flags(tmp_path)) as engine:
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1
