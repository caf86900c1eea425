"""Metrics of a real engine: saves that nobody asked for, and restores, are counted too."""

import asyncio
import re
from pathlib import Path

import pytest
from engine_cases import SESSION, ask, fork, random_tokens, request_for, running
from session_cases import store_flags

from ninfer_engine.runtime.api import EngineRefusedError
from ninfer_engine.runtime.engine import Engine
from ninfer_engine.server.metrics import Metrics


def scraped(engine: Engine) -> dict[str, float]:
    """Every sample by its name and labels."""
    text = Metrics(engine.status, engine.counts).render().decode()
    return {name: float(value) for name, value in re.findall(r"^([^#]\S*) (\S+)$", text, re.MULTILINE)}


async def test_saves_are_counted_by_mode_and_restores_by_outcome(tmp_path: Path) -> None:
    flags = store_flags(tmp_path, session_checkpoint_min_tokens=256)
    async with running(flags) as engine:
        with pytest.raises(EngineRefusedError):
            await engine.save_session(SESSION)
        base = await ask(engine, request_for(random_tokens(300, 1), 8))
        await asyncio.wrap_future(engine._sessions._writer.submit(lambda: None))  # after the save by itself
        told = await engine.save_session(SESSION)
        found = scraped(engine)
        assert found['ninfer_save_seconds_count{mode="automatic"}'] == 1
        assert found['ninfer_save_seconds_count{mode="explicit"}'] == 1
        assert found['ninfer_saves_refused_total{mode="explicit",reason="nothing_to_save"}'] == 1
        assert found['ninfer_save_session_bytes_total{mode="explicit"}'] == told.bytes
        assert found['ninfer_save_written_bytes_total{mode="explicit"}'] == told.written_bytes
        assert found['ninfer_save_written_bytes_total{mode="automatic"}'] >= told.bytes / 2
        assert found["ninfer_token_gap_seconds_count"] == len(base.output) - 1
    async with running(flags) as engine:
        assert await engine.restore_session(SESSION)
        await fork(engine, base, 2)
        found = scraped(engine)
    assert found['ninfer_session_restores_total{outcome="restored"}'] == 1
    assert found["ninfer_session_restore_seconds_count"] == 1
    assert found["ninfer_session_restore_bytes_total"] > 0
