"""The front of a deployment before engines on real sockets: a fork reaches the replica that holds its template."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fault_engine import FaultEngine
from hypothesis import given
from hypothesis import strategies as st

from ninfer_lifecycle.replicas.affinity import Belongs, belongs, preferred
from ninfer_lifecycle.replicas.bundle import MAX_BYTES, front_bundle
from ninfer_lifecycle.replicas.front import ByName, Front
from ninfer_lifecycle.replicas.holders import Holders

KEY = "the-key"
SESSION = "5" * 64


@pytest.fixture
def engines() -> Iterator[list[FaultEngine]]:
    """Three replicas: each holds what it made, and nothing of the others."""
    with ExitStack() as stack:
        yield [stack.enter_context(FaultEngine(api_key=KEY)) for _ in range(3)]


def address(engine: FaultEngine) -> str:
    return engine.base_url.removeprefix("http://")


@asynccontextmanager
async def front_of(engines: list[FaultEngine], hold_s: float = 10.0) -> AsyncIterator[tuple[httpx.AsyncClient, Front]]:
    """A front on a port of its own, and a client that has the key."""

    addresses = {id(engine): address(engine) for engine in engines}

    async def look_up() -> list[str]:
        return [addresses[id(engine)] for engine in engines]

    front = Front(look_up, hold_s)
    server = await asyncio.start_server(front.client, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=30) as client:
        yield client, front
    server.close()


def turn(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "pretend", "input": text, "store": True, "temperature": 0, "max_output_tokens": 4, **more}


@pytest.mark.parametrize("session", [None, SESSION])
async def test_a_fork_through_the_front_is_hot_where_two_of_three_replicas_would_miss(
    engines: list[FaultEngine], session: str | None
) -> None:
    headers = {} if session is None else {"X-NInfer-Session": session}
    async with front_of(engines) as (client, _):
        base = await client.post("/v1/responses", json=turn("word " * 200), headers=headers)
        held_by, parent = base.headers["x-ninfer-replica"], base.json()["id"]
        for number in range(9):
            fork = await client.post("/v1/responses", json=turn(f"fork {number}", previous_response_id=parent),
                                     headers=headers)
            assert (fork.status_code, fork.headers["x-ninfer-replica"]) == (200, held_by)
            assert fork.headers["x-ninfer-pinned"] == "holder"
            assert fork.json()["ninfer"]["reused_tokens"] >= base.json()["usage"]["input_tokens"]
        # What the routing mesh does: each connection to the next replica, whatever the request.
        straight = [await client.post(f"{engine.base_url}/v1/responses", headers=headers,
                                      json=turn("fork", previous_response_id=parent)) for engine in engines]
    assert sorted(reply.status_code for reply in straight) == [200, 404, 404]
    assert {address(engine) for engine, reply in zip(engines, straight, strict=True) if reply.is_success} == {held_by}


async def test_two_fronts_that_know_nothing_of_each_other_agree(engines: list[FaultEngine]) -> None:
    async with front_of(engines) as (first, _), front_of(list(reversed(engines))) as (second, _):
        for number in range(8):
            session = f"{number:064x}"
            headers = {"X-NInfer-Session": session}
            base = await first.post("/v1/responses", json=turn("word " * 100), headers=headers)
            new = await second.post("/v1/responses", json=turn("another base"), headers=headers)
            fork = await second.post("/v1/responses", headers=headers,
                                     json=turn("fork", previous_response_id=base.json()["id"]))
            assert {one.headers["x-ninfer-replica"] for one in (base, new, fork)} == {
                base.headers["x-ninfer-replica"]}


async def test_a_session_named_in_the_body_alone_is_found_too(engines: list[FaultEngine]) -> None:
    async with front_of(engines) as (client, _):
        base = await client.post("/v1/responses", json=turn("word " * 100, ninfer_session=SESSION))
        fork = await client.post("/v1/responses", json=turn("x", ninfer_session=SESSION,
                                                            previous_response_id=base.json()["id"]))
        assert (fork.status_code, fork.headers["x-ninfer-pinned"]) == (200, "holder")
        assert fork.headers["x-ninfer-replica"] == base.headers["x-ninfer-replica"]


async def test_after_a_restart_the_replica_whose_store_has_the_session_is_asked(engines: list[FaultEngine]) -> None:
    headers = {"X-NInfer-Session": SESSION}
    async with front_of(engines) as (client, _):
        # Not where a front would put a new session: only the store can tell.
        elsewhere = next(one for one in engines if address(one) != preferred(
            SESSION, [address(engine) for engine in engines]))
        base = await client.post(f"{elsewhere.base_url}/v1/responses", json=turn("word " * 100), headers=headers)
        elsewhere.restart()
        fork = await client.post("/v1/responses", json=turn("fork", previous_response_id=base.json()["id"]),
                                 headers=headers)
        assert (fork.status_code, fork.headers["x-ninfer-replica"]) == (200, address(elsewhere))
        # A response that nobody has in memory: the checkpoint of its session is what is left of it.
        passed = [(b"authorization", f"Bearer {KEY}".encode()), (b"x-ninfer-session", SESSION.encode())]
        replicas = [address(engine) for engine in engines]
        assert await Holders().find(Belongs("resp_forgotten", SESSION), replicas, passed) == address(elsewhere)
        assert await Holders().find(Belongs("resp_forgotten", "6" * 64), replicas, passed) is None


async def test_a_response_is_fetched_deleted_and_saved_where_it_is(engines: list[FaultEngine]) -> None:
    headers = {"X-NInfer-Session": SESSION}
    async with front_of(engines) as (client, _):
        base = await client.post("/v1/responses", json=turn("word " * 100), headers=headers)
        where, parent = base.headers["x-ninfer-replica"], base.json()["id"]
        for reply in (await client.get(f"/v1/responses/{parent}", headers=headers),
                      await client.post("/v1/ninfer/checkpoints", json={"session_sha256": SESSION}),
                      await client.get(f"/v1/ninfer/checkpoints/{SESSION}/status"),
                      await client.delete(f"/v1/responses/{parent}", headers=headers)):
            assert (reply.status_code, reply.headers["x-ninfer-replica"]) == (200, where), reply.text


async def test_who_may_not_read_a_response_does_not_learn_where_it_is(engines: list[FaultEngine]) -> None:
    async with front_of(engines) as (client, _):
        base = await client.post("/v1/responses", json=turn("word " * 100), headers={"X-NInfer-Session": SESSION})
        for headers in ({"X-NInfer-Session": "6" * 64}, {"Authorization": "Bearer wrong"}):
            reply = await client.post("/v1/responses", headers=headers,
                                      json=turn("x", previous_response_id=base.json()["id"]))
            assert reply.status_code in {401, 404} and reply.headers["x-ninfer-pinned"] != "holder"


async def test_a_replica_that_goes_takes_its_own_sessions_with_it_and_no_others(engines: list[FaultEngine]) -> None:
    async with front_of(engines) as (client, _):
        bases = {}
        for number in range(6):
            headers = {"X-NInfer-Session": f"{number:064x}"}
            base = await client.post("/v1/responses", json=turn("word " * 100), headers=headers)
            bases[f"{number:064x}"] = base.headers["x-ninfer-replica"], base.json()["id"]
        gone = engines.pop(0)
        went = address(gone)
        gone.stop()
        for session, (where, parent) in bases.items():
            fork = await client.post("/v1/responses", json=turn("fork", previous_response_id=parent),
                                     headers={"X-NInfer-Session": session})
            assert (fork.status_code == 200) == (where != went)


async def test_a_replica_that_is_gone_and_still_named_costs_no_request_of_the_others(
    engines: list[FaultEngine]
) -> None:
    async with front_of(engines) as (client, _):
        base = await client.post("/v1/responses", json=turn("word " * 100))
        next(one for one in engines if address(one) != base.headers["x-ninfer-replica"]).stop()
        fork = await client.post("/v1/responses", json=turn("x", previous_response_id=base.json()["id"]))
        assert fork.status_code == 200


async def test_without_any_replica_a_request_is_held_and_then_refused() -> None:
    async with front_of([], hold_s=0.3) as (client, _):
        reply = await client.get("/v1/models")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    assert reply.headers["retry-after"]


async def test_a_body_beyond_what_an_engine_reads_is_refused_before_it_is_all_held(
    engines: list[FaultEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninfer_lifecycle.replicas.front.MOST_BODY", 1000)
    async with front_of(engines) as (client, _):
        reply = await client.post("/v1/responses", content=b"{" + b" " * 5000)
    assert reply.status_code == 413


async def test_what_is_known_is_not_asked_again_until_it_is_old(engines: list[FaultEngine]) -> None:
    at = [0.0]
    holders, replicas = Holders(lambda: at[0]), [address(engine) for engine in engines]
    async with front_of(engines) as (client, _):
        base = await client.post("/v1/responses", json=turn("word"))
    wanted, headers = Belongs(base.json()["id"]), [(b"authorization", f"Bearer {KEY}".encode())]
    found = [await holders.find(wanted, replicas, headers) for _ in range(3)]
    assert found == [base.headers["x-ninfer-replica"]] * 3 and holders.asked == 1
    at[0] = 60.0
    assert await holders.find(wanted, replicas, headers) == found[0] and holders.asked == 2
    assert await holders.find(wanted, [one for one in replicas if one != found[0]], headers) is None


async def test_a_name_that_nobody_answers_to_has_no_replicas() -> None:
    assert list(await ByName("localhost", 81)()) == ["127.0.0.1:81"]
    assert list(await ByName("nobody.invalid", 80)()) == []


# The file that runs in a container


def test_the_bundle_is_the_same_every_time_and_fits_a_config() -> None:
    assert front_bundle() == front_bundle() and len(front_bundle()) < MAX_BYTES


def test_the_bundle_alone_serves_and_ends_at_sigterm(tmp_path: Path, engines: list[FaultEngine]) -> None:
    """Without this tool and without any package of this environment: -I and -S."""
    file = tmp_path / "front.pyz"
    file.write_bytes(front_bundle())
    host, _, port = address(engines[0]).rpartition(":")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-I", "-S", str(file), host, port, str(listen)],
                               stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None and '"listens"' in process.stderr.readline()
        reply = httpx.get(f"http://127.0.0.1:{listen}/health")
        assert (reply.status_code, reply.headers["x-ninfer-replica"]) == (200, f"{host}:{port}")
    finally:
        process.terminate()
        assert process.wait(30) == 0
        if process.stderr is not None:
            process.stderr.close()


# What a request belongs to


@pytest.mark.parametrize(("target", "header", "body", "expected"), [
    (b"/v1/responses", None, {"previous_response_id": "resp_1"}, Belongs("resp_1")),
    (b"/v1/responses", SESSION.encode(), {"input": "x"}, Belongs(None, SESSION)),
    (b"/v1/responses", None, {"ninfer_session": SESSION, "previous_response_id": "resp_1"}, Belongs("resp_1", SESSION)),
    (b"/v1/responses/resp_7/input_items?limit=1", None, None, Belongs("resp_7")),
    (b"/v1/responses/resp_7?x=/v1/", SESSION.encode(), None, Belongs("resp_7", SESSION)),
    (b"/v1/responses/input_tokens", None, {"previous_response_id": "resp_1"}, Belongs("resp_1")),
    (b"/v1/ninfer/checkpoints", None, {"session_sha256": SESSION}, Belongs(None, SESSION)),
    (b"/v1/ninfer/checkpoints/" + SESSION.encode() + b"/status", None, None, Belongs(None, SESSION)),
    (b"/v1/ninfer/checkpoints/status", SESSION.encode(), None, Belongs(None, SESSION)),
    (b"/v1/responses", b"not a session", {"previous_response_id": "a/../b"}, Belongs()),
    (b"/v1/responses", None, ["previous_response_id"], Belongs()),
])
def test_a_request_says_what_it_stands_on(
    target: bytes, header: bytes | None, body: object, expected: Belongs
) -> None:
    assert belongs(target, header, b"" if body is None else json.dumps(body).encode()) == expected


@given(st.binary(), st.binary() | st.none(), st.binary() | st.recursive(
    st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["previous_response_id", "ninfer_session"]), inner)).map(lambda one: json.dumps(one).encode()))
def test_whatever_is_sent_belongs_somewhere_or_nowhere_and_never_fails(
    target: bytes, header: bytes | None, body: bytes
) -> None:
    found = belongs(target, header, body)
    assert found.response is None or "/" not in found.response
    assert found.session is None or len(found.session) == 64


@given(st.text(), st.lists(st.text(min_size=1), min_size=2, unique=True), st.data())
def test_a_session_moves_only_when_its_own_replica_goes(session: str, replicas: list[str], data: st.DataObject) -> None:
    own = preferred(session, replicas)
    assert preferred(session, data.draw(st.permutations(replicas))) == own
    gone = data.draw(st.sampled_from([one for one in replicas if one != own]))
    assert preferred(session, [one for one in replicas if one != gone]) == own


def test_sessions_are_spread_over_the_replicas() -> None:
    """A binomial of 3000 at a third lies within five standard deviations: 1000 +- 130."""
    counts = [sum(preferred(str(number), ["a", "b", "c"]) == name for number in range(3000)) for name in "abc"]
    assert all(870 < count < 1130 for count in counts)


