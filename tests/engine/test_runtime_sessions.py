"""Saved sessions: the next process finds the template hot, the first sibling included."""

import asyncio
import shutil
from pathlib import Path

import pytest
from engine_cases import SESSION, ask, flags_for, fork, random_tokens, request_for, running
from session_cases import store_flags

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.objects import ObjectEntry, stored_bytes, write_objects
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.runtime.api import EngineRefusedError


@pytest.mark.parametrize("resume_first", [True, False])
async def test_after_a_restart_the_first_sibling_is_as_hot_as_the_fourth(tmp_path: Path, resume_first: bool) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(3000, 1), 40))
        edit = await fork(engine, base, 1, output=20)
        forks = [await fork(engine, base, seed) for seed in range(2, 6)]
        saved = await engine.save_session(SESSION)
    assert saved.response_records == 6
    async with running(store_flags(tmp_path)) as engine:
        assert engine.status().scheduler.computed_prefill_tokens == 0
        assert await engine.restore_session(SESSION)
        if resume_first:
            onward = await fork(engine, forks[-1], 9)
            assert onward.reused == len(forks[-1].tokens) - 1
        new = [await fork(engine, base, seed) for seed in range(12, 16)]
        again = [await fork(engine, base, seed) for seed in range(2, 6)]
        assert engine.responses.get(edit.response_id, SESSION) is not None
        assert engine.responses.get(edit.response_id, None) is None
    assert [one.output for one in again] == [one.output for one in forks]
    assert [one.reused for one in new] == [len(base.tokens) - 1] * 4
    assert [one.path for one in new] == ["private_long_anchor"] * 4
    assert all(one.reused >= len(base.tokens) - 1 for one in again)


async def test_a_second_save_writes_only_what_the_fork_added(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(6000, 1), 40))
        first = await engine.save_session(SESSION)
        await fork(engine, base, 1)
        second = await engine.save_session(SESSION)
        third = await engine.save_session(SESSION)
    assert second.generation == first.generation + 1
    assert second.written_bytes < first.written_bytes / 4
    assert third.written_bytes < second.written_bytes
    assert second.frontier_tokens > first.frontier_tokens


async def test_a_graceful_stop_saves_every_live_session(tmp_path: Path) -> None:
    other = "0f" * 32
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(800, 1), 8))
        await ask(engine, request_for(random_tokens(700, 2), 8, session=other))
    async with running(store_flags(tmp_path)) as engine:
        assert (await engine.checkpoint_status(SESSION)).state == "available"
        assert (await engine.checkpoint_status(other)).state == "available"
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1


async def test_nothing_to_save_no_store_and_no_session_are_told_apart(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        with pytest.raises(EngineRefusedError) as nothing:
            await engine.save_session(SESSION)
        assert not await engine.restore_session(SESSION)
        assert (await engine.checkpoint_status(SESSION)).state == "missing"
    async with running(flags_for()) as engine:
        with pytest.raises(EngineRefusedError) as storeless:
            await engine.save_session(SESSION)
        assert (await engine.checkpoint_status(SESSION)).state == "unavailable"
    assert nothing.value.code is ErrorCode.NOTHING_TO_SAVE
    assert storeless.value.code is ErrorCode.CHECKPOINT_UNAVAILABLE


async def test_a_deleted_session_is_gone(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        await ask(engine, request_for(random_tokens(400, 1), 8))
        await engine.save_session(SESSION)
        assert (await engine.delete_checkpoint(SESSION)).deleted
        assert (await engine.checkpoint_status(SESSION)).state == "missing"
    async with running(store_flags(tmp_path)) as engine:
        assert not await engine.restore_session(SESSION)


async def test_what_a_killed_save_left_is_collected_when_an_engine_starts(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(400, 1), 8))
    store = DurableStore.open(tmp_path / "store", {}, 1 << 40)
    left = {bytes([number]) * 32: bytes(300_000) for number in range(3)}  # objects first, and then no manifest
    write_objects(store.database(), [(name, data, ObjectEntry.of(name, data, OriginKey.from_secret(None)))
                                     for name, data in left.items()])
    kept = store.used_bytes() - sum(map(stored_bytes, map(len, left.values())))
    assert store.missing(left) == set()
    store.close()
    async with running(store_flags(tmp_path)) as engine:
        await asyncio.wrap_future(engine._sessions._keeper.submit(lambda: None))  # what the start asked for is done
        store = engine._sessions._opened.store  # type: ignore[union-attr]  # it has one
        assert store.missing(left) == set(left)
        assert store.used_bytes() == kept
        assert await engine.restore_session(SESSION)
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1


async def test_a_deleted_response_is_durable_when_the_reply_comes(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        base = await ask(engine, request_for(random_tokens(400, 1), 8))
        await engine.save_session(SESSION)
        assert engine.responses.delete(base.response_id, SESSION)
        await engine.forget_response(base.response_id, SESSION)
        shutil.copytree(tmp_path / "store", tmp_path / "copy")  # what a kill now would leave
    async with running(store_flags(tmp_path, session_checkpoint_dir=str(tmp_path / "copy"))) as engine:
        assert await engine.restore_session(SESSION)
        assert engine.responses.get(base.response_id, SESSION) is None


async def test_a_session_of_other_numerics_is_incompatible(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path)) as engine:
        await ask(engine, request_for(random_tokens(400, 1), 8))
        await engine.save_session(SESSION)
    async with running(store_flags(tmp_path, kv_dtype="bf16")) as engine:
        status = await engine.checkpoint_status(SESSION)
        assert not await engine.restore_session(SESSION)
    assert status.state == "incompatible"
    assert "kv_dtype" in (status.reason or "")


async def test_a_long_stored_turn_is_saved_by_itself_with_its_response(tmp_path: Path) -> None:
    async with running(store_flags(tmp_path, session_checkpoint_min_tokens=500)) as engine:
        await ask(engine, request_for(random_tokens(600, 1), 8))
        while (await engine.checkpoint_status(SESSION)).state != "available":
            await asyncio.sleep(0.02)
        status = await engine.checkpoint_status(SESSION)
    assert status.response_records == 1
    assert status.frontier_tokens == 607
