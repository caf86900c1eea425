"""The process host against real child processes that misbehave by name."""

import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import ExitCode, HostError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity
from ninfer_lifecycle.hosts.placing import PortTakenError, free_port, port_is_free
from ninfer_lifecycle.hosts.process import ProcessHost
from ninfer_lifecycle.hosts.readiness import EngineEndedError, ForeignServerError, NeverReadyError

FAKE = Path(__file__).with_name("fake_engine_server.py")
CONFIG, MODEL = "a" * 64, "b" * 64


def host(behaviour: str = "ok") -> ProcessHost:
    return ProcessHost((sys.executable, str(FAKE), behaviour))


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    key = tmp_path / "key"
    key.write_text("secret-key\n")
    model = tmp_path / "model"
    model.mkdir()
    return EngineSpec(run_id="r1", flags=EngineFlags(model_sha256=MODEL), model_dir=model, run_dir=tmp_path / "run",
                      expected=ExpectedIdentity(CONFIG, MODEL), store_dir=tmp_path / "store", key_file=key, ready_s=20)


def changed(spec: EngineSpec, **values: object) -> EngineSpec:
    return replace(spec, **values)  # type: ignore[arg-type]  # fields by name


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pid: int) -> None:
    ends = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < ends, f"process {pid} lives on"
        time.sleep(0.02)


def test_an_engine_is_ready_with_its_identity_and_gone_when_the_host_closes(spec: EngineSpec) -> None:
    with host() as place:
        engine = place.start(spec)
        facts = place.inspect(engine)
        assert facts.running and facts.pid and facts.exit_code is None
        assert engine.base_url.startswith("http://127.0.0.1:")
        assert "kernel" in facts.environment
        pid = facts.pid
    wait_until_gone(pid)


def test_the_key_is_in_no_argument_and_in_no_log(spec: EngineSpec) -> None:
    with host() as place:
        engine = place.start(spec)
        pid = place.inspect(engine).pid
        assert b"secret-key" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert "secret-key" not in place.logs(engine)


def test_a_restart_is_a_new_life_on_the_same_store_and_tells_how_the_old_one_ended(spec: EngineSpec) -> None:
    with host() as place:
        first = place.start(spec)
        second = place.restart(first)
        assert second.epoch == 1 and second.handle != first.handle
        assert second.previous is not None
        assert second.previous.exit_code == 0 and second.previous.finished_at is not None
        assert not place.inspect(first).running and place.inspect(second).running
        assert spec.store_dir is not None
        assert (spec.store_dir / "lives").read_text() == "life\nlife\n"


def test_an_engine_that_dies_is_reported_at_once_with_its_last_lines_and_exit_code(spec: EngineSpec) -> None:
    with host("dies_at_once") as place, pytest.raises(EngineEndedError) as caught:
        place.start(changed(spec, ready_s=300))
    assert "exit code 3" in caught.value.message and "the reason is on this line" in caught.value.message
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE


def test_the_last_lines_are_those_of_this_life_only(spec: EngineSpec) -> None:
    with host("dies_at_once") as place, pytest.raises(EngineEndedError):
        place.start(spec)
    with host("wrong_model") as place, pytest.raises(EngineEndedError) as caught:
        place.start(spec)
    assert "model digest differs" in caught.value.message and "the reason is" not in caught.value.message


@pytest.mark.parametrize("behaviour", ["never_healthy", "silent"])
def test_an_engine_never_healthy_ends_at_the_deadline_and_is_removed(spec: EngineSpec, behaviour: str) -> None:
    with host(behaviour) as place:
        with pytest.raises(NeverReadyError, match="not ready after 1 s"):
            place.start(changed(spec, ready_s=1))
        assert not place._children


def test_another_identity_at_the_address_never_counts_as_ready(spec: EngineSpec) -> None:
    with host("foreign_identity") as place, pytest.raises(ForeignServerError, match=r"its configuration is e+"):
        place.start(changed(spec, ready_s=300))


def test_a_taken_port_is_refused_before_anything_starts(spec: EngineSpec) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with host() as place, pytest.raises(PortTakenError, match=f"port {port}"):
            place.start(changed(spec, port=port))
    assert not (spec.run_dir / "engine.log").exists()


class NotFound(BaseHTTPRequestHandler):
    """A server of something else: healthy, and it knows no status document."""

    def do_GET(self) -> None:
        body = b"{}" if self.path == "/health" else b'{"error":{"message":"no","type":"t","code":"not_found"}}'
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""


def looks_free_once(really: Callable[[int], bool]) -> Callable[[int], bool]:
    """The port is taken right after it was found free."""
    asked: list[int] = []

    def is_free(port: int) -> bool:
        asked.append(port)
        return len(asked) == 1 or really(port)

    return is_free


def ports_in_order(monkeypatch: pytest.MonkeyPatch, *first: int) -> list[int]:
    """The host is given these ports first, and free ones afterwards; what it was given is noted."""
    given: list[int] = []

    def choose() -> int:
        given.append(first[len(given)] if len(given) < len(first) else free_port())
        return given[-1]

    monkeypatch.setattr("ninfer_lifecycle.hosts.process.free_port", choose)
    return given


def test_a_port_that_another_process_took_before_the_bind_is_chosen_anew(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        given = ports_in_order(monkeypatch, listener.getsockname()[1])
        with host() as place:
            assert place.start(spec).base_url == f"http://127.0.0.1:{given[1]}"
            assert len(place._children) == 1


def test_a_stranger_that_answers_on_the_chosen_port_while_the_engine_loads_makes_it_choose_anew(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninfer_lifecycle.hosts.readiness.FOREIGN_GRACE_S", 0.2)
    with ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as stranger:
        threading.Thread(target=stranger.serve_forever, args=(0.02,), daemon=True).start()
        given = ports_in_order(monkeypatch, stranger.server_port)
        with host("loads_while_a_stranger_has_its_port") as place:
            engine = place.start(spec)
            assert engine.base_url == f"http://127.0.0.1:{given[1]}"
        stranger.shutdown()


def test_a_port_that_was_asked_for_and_is_lost_to_a_stranger_is_not_exchanged(
    spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninfer_lifecycle.hosts.readiness.FOREIGN_GRACE_S", 0.2)
    monkeypatch.setattr("ninfer_lifecycle.hosts.process.port_is_free", looks_free_once(port_is_free))
    with ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as stranger:
        threading.Thread(target=stranger.serve_forever, args=(0.02,), daemon=True).start()
        with host("loads_while_a_stranger_has_its_port") as place, pytest.raises(PortTakenError):
            place.start(changed(spec, port=stranger.server_port))
        stranger.shutdown()


def test_a_missing_model_is_refused_before_anything_starts(spec: EngineSpec, tmp_path: Path) -> None:
    with host() as place, pytest.raises(HostError, match="no model at"):
        place.start(changed(spec, model_dir=tmp_path / "nowhere"))


def test_an_engine_that_ignores_sigterm_is_killed_after_its_grace(spec: EngineSpec) -> None:
    with host("ignores_sigterm") as place:
        facts = place.stop(place.start(spec), grace_s=0.3)
    assert not facts.running and facts.exit_code == -9


def test_a_worker_left_behind_goes_with_its_engine(spec: EngineSpec) -> None:
    with host("leaves_a_worker") as place:
        engine = place.start(spec)
        found = re.search(r"worker (\d+)", place.logs(engine))
        assert found is not None
        place.stop(engine)
        wait_until_gone(int(found[1]))


def test_an_engine_that_floods_its_log_is_ready_and_its_last_lines_are_read(spec: EngineSpec) -> None:
    with host("floods_its_log") as place:
        assert place.logs(place.start(spec), tail=2).splitlines()[-1].startswith("line 199999 ")


def test_stopping_twice_and_closing_twice_is_no_error(spec: EngineSpec) -> None:
    with host() as place:
        engine = place.start(spec)
        assert place.stop(engine) == place.stop(engine)
        place.cleanup()


def test_a_released_engine_outlives_its_host_and_another_host_can_stop_it(spec: EngineSpec) -> None:
    with host() as place:
        engine = place.start(spec)
        place.release(engine)
    with host() as other:
        assert other.inspect(engine).running
        assert not other.stop(engine).running


def test_a_stale_handle_never_reaches_a_process_that_took_the_number(spec: EngineSpec) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        with host() as place:
            engine = place.start(spec)
            stale = replace(engine, handle=f"{bystander.pid}@1")
            assert not place.inspect(stale).running
            place.stop(stale)
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_an_interrupted_tool_leaves_no_engine_behind(spec: EngineSpec, tmp_path: Path, number: int, code: int) -> None:
    script = textwrap.dedent(f"""
        import signal, sys
        from pathlib import Path
        from ninfer_engine.contract.flags import EngineFlags
        from ninfer_lifecycle.hosts.base import EngineSpec
        from ninfer_lifecycle.hosts.process import ProcessHost
        from ninfer_lifecycle.hosts.signals import Terminated, sigterm_raises
        try:
            with sigterm_raises(), ProcessHost((sys.executable, {str(FAKE)!r}, "ok")) as place:
                engine = place.start(EngineSpec("r", EngineFlags(), Path({str(spec.model_dir)!r}),
                                                Path({str(tmp_path / "r")!r})))
                print(place.inspect(engine).pid, flush=True)
                signal.pause()
        except KeyboardInterrupt:
            sys.exit(130)
        except Terminated:
            sys.exit(143)
    """)
    tool = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert tool.stdout is not None
    pid = int(tool.stdout.readline())
    tool.send_signal(number)
    assert tool.wait(30) == code
    wait_until_gone(pid)
