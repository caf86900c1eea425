"""Restoring beside other requests, whole or not at all, and only where it pays."""

import asyncio
import os
from pathlib import Path

import pytest
from engine_cases import SESSION, Answer, ask, fork, random_tokens, request_for, running
from session_cases import CHEAP, audit, reads_are_held, store_flags

from ninfer_engine.memory.store.datafile import Extent
from ninfer_engine.memory.store.reading import locate
from ninfer_engine.runtime.engine import Engine
from ninfer_engine.runtime.sessions import sessions_named

OTHER = "0f" * 32


async def saved_template(directory: Path, tokens: int = 1500) -> Answer:
    async with running(store_flags(directory)) as engine:
        return await ask(engine, request_for(random_tokens(tokens, 1), 8))


async def test_other_requests_and_the_status_document_go_on_while_a_session_is_read(tmp_path: Path) -> None:
    base = await saved_template(tmp_path)
    async with running(store_flags(tmp_path)) as engine:
        with reads_are_held(after=1) as disk:
            restore = asyncio.create_task(engine.restore_session(SESSION))
            again = asyncio.create_task(engine.restore_session(SESSION))
            await disk.until_reached()
            status = engine.status()
            assert (status.restore.state, status.restore.decision) == ("restoring", "restore")
            assert 0 < status.restore.bytes_done < status.restore.bytes_total
            assert status.scheduler.materializing == 1
            other = await ask(engine, request_for(random_tokens(700, 5), 8, session=OTHER))
            same = await ask(engine, request_for(random_tokens(1500, 1), 8, session=OTHER))  # not whole yet: from root
            assert (other.reused, same.reused) == (0, 0)
            disk.release()
            assert await restore
            assert await again
        assert engine.status().restore.state == "done"
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1
        audit(engine)
    assert same.output == base.output


async def test_pages_that_a_request_computed_meanwhile_are_not_kept_twice(tmp_path: Path) -> None:
    base = await saved_template(tmp_path)
    async with running(store_flags(tmp_path)) as engine:
        with reads_are_held(after=1) as disk:
            restore = asyncio.create_task(engine.restore_session(SESSION))
            await disk.until_reached()
            await ask(engine, request_for(random_tokens(1500, 1), 8, session=OTHER))
            before = engine.status().cache.device_kv.occupied
            disk.release()
            assert await restore
        await ask(engine, request_for(random_tokens(20, 8), 1, session=OTHER))
        assert engine.status().cache.device_kv.occupied <= before + 2
        audit(engine)
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1


async def test_damage_found_half_way_leaves_no_trace_but_the_reason(tmp_path: Path) -> None:
    base = await saved_template(tmp_path)
    async with running(store_flags(tmp_path)) as engine:
        page = engine._sessions._opened.store.load(SESSION).checkpoints[0].pages[-3]  # type: ignore[union-attr]
        with reads_are_held(after=1) as disk:
            restore = asyncio.create_task(engine.restore_session(SESSION))
            await disk.until_reached()
            damage(engine, page)
            await ask(engine, request_for(random_tokens(300, 5), 8, session=OTHER))
            disk.release()
            assert not await restore
        assert engine.status().restore.state == "failed"
        audit(engine)
        assert engine.responses.get(base.response_id, SESSION) is None
        assert (await engine.checkpoint_status(SESSION)).state == "corrupt"
        replayed = await ask(engine, request_for(random_tokens(1500, 1), 8))
        assert replayed.output == base.output
        assert (await engine.save_session(SESSION)).generation == 2
        assert (await engine.checkpoint_status(SESSION)).state == "available"


def damage(engine: Engine, name: bytes) -> None:
    """Flip a byte of a stored page on the disk, behind the store's back."""
    store = engine._sessions._opened.store  # type: ignore[union-attr]  # it has one
    with store.database().read() as view, (store.context.place.database / "data.mdb").open("r+b") as file:
        (piece,) = locate(view, [name])[0].pieces
        assert isinstance(piece, Extent)
        file.seek(piece.offset + piece.size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


async def test_where_computing_is_quicker_the_responses_come_back_and_the_pages_do_not(tmp_path: Path) -> None:
    base = await saved_template(tmp_path)
    async with running(store_flags(tmp_path, CHEAP)) as engine:
        assert await engine.restore_session(SESSION)
        told = engine.status().restore
        assert told.decision == "recompute"
        assert told.predicted_recompute_ns < told.predicted_restore_ns
        assert engine.responses.get(base.response_id, SESSION) is not None
        onward = await fork(engine, base, 3)
        audit(engine)
    assert onward.reused == 0
    async with running(store_flags(tmp_path)) as engine:  # dear again: what was saved since is not poorer
        assert await engine.restore_session(SESSION)
        assert engine.status().restore.decision == "restore"
        assert (await fork(engine, base, 5)).reused == len(base.tokens) - 1


async def test_named_sessions_are_back_before_anyone_asks(tmp_path: Path) -> None:
    base = await saved_template(tmp_path)
    (tmp_path / "names").write_text(f"# the templates\n{SESSION}\n{OTHER}\n")
    async with running(store_flags(tmp_path, restore_on_start=str(tmp_path / "names"))) as engine:
        assert await engine.restore_session(SESSION)  # shares the one that the start began
        assert engine.status().restore.state == "done"
        assert engine.responses.get(base.response_id, SESSION) is not None
        assert (await fork(engine, base, 3)).reused == len(base.tokens) - 1


def test_a_name_that_is_no_session_is_a_usage_error() -> None:
    assert sessions_named(f"{SESSION},{OTHER}") == [SESSION, OTHER]
    with pytest.raises(ValueError, match="64 lowercase hex"):
        sessions_named(f"{SESSION},{OTHER[:-1]}")


@pytest.mark.parametrize("resume_first", [True, False])
async def test_after_a_restart_sixteen_forks_are_all_hot_the_first_included(tmp_path: Path, resume_first: bool) -> None:
    flags = store_flags(tmp_path, expected_forks=16)
    async with running(flags) as engine:
        base = await ask(engine, request_for(random_tokens(1500, 1), 8))
        last = [await fork(engine, base, seed) for seed in range(2, 6)][-1]
    async with running(flags) as engine:
        assert await engine.restore_session(SESSION)
        if resume_first:
            assert (await fork(engine, last, 99)).reused == len(last.tokens) - 1
        forks = [await fork(engine, base, seed) for seed in range(20, 36)]
        if not resume_first:
            assert (await fork(engine, last, 99)).reused >= len(base.tokens) - 1
        audit(engine)
    assert [one.reused for one in forks] == [len(base.tokens) - 1] * 16


async def test_two_sessions_that_fit_only_one_at_a_time_alternate_and_none_starts_at_root(tmp_path: Path) -> None:
    flags = store_flags(tmp_path, kv_capacity=2560, host_kv_mib=0, max_context=2560)
    sessions = [SESSION, OTHER]
    async with running(flags) as engine:
        ends = []
        for seed, session in enumerate(sessions):
            ends.append(await ask(engine, request_for(random_tokens(1500, seed + 1), 8, session=session)))
            await engine.save_session(session)
        for turn in range(20):  # forty turns
            for which, session in enumerate(sessions):
                end = ends[which]
                prompt = (*end.tokens, *random_tokens(8, 100 * turn + which))
                ends[which] = await ask(engine, request_for(prompt, 4, parent=end, session=session))
                assert ends[which].reused >= 1507, (turn, which)  # the first end; later ones stay by value
                assert ends[which].finished.record.timings.restore_s > 0
                await engine.save_session(session)
        audit(engine)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_conversation_that_is_deleted_as_it_goes_holds_no_image_in_the_end(
    tmp_path: Path, restarted: bool
) -> None:
    async def forgotten(engine: Engine, response_id: str) -> None:
        assert engine.responses.delete(response_id, SESSION)
        await engine.forget_response(response_id, SESSION)

    async with running(store_flags(tmp_path)) as engine:
        turn = await ask(engine, request_for(random_tokens(700, 1), 8))
        for seed in range(2, 5):
            before, turn = turn, await fork(engine, turn, seed)
            await forgotten(engine, before.response_id)
        if not restarted:
            await forgotten(engine, turn.response_id)
            assert held(engine) == 0
            return
    async with running(store_flags(tmp_path)) as engine:
        assert await engine.restore_session(SESSION)
        assert held(engine) > 0
        last = await fork(engine, turn, 5)
        for response_id in (turn.response_id, last.response_id):
            await forgotten(engine, response_id)
        assert held(engine) == 0
        audit(engine)


def held(engine: Engine) -> int:
    """Images on both tiers, once everything that was asked of the engine's thread is done."""
    engine._loop.call(engine._board.refresh).result()
    cache = engine.status().cache
    return cache.device_state.occupied + cache.host_state.occupied
