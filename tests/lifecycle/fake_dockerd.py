"""A Docker daemon that runs nothing and misbehaves by name: the Engine API 1.41 on a unix socket, as far as it is used.

A "container" is a thread that serves the smallest engine on a port of this machine. The real docker-py talks to it.
"""

import socketserver
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fake_engine_server
from fake_containers import IMAGE, NEVER, FakeContainer, Fault, stamp
from fake_docker_api import Handler

__all__ = ["FakeContainer", "FakeDockerd", "Fault"]


class FakeDockerd:
    """The daemon. `stop` takes it away in mid-run, `start` brings it back with the containers that it had."""

    handler = Handler

    def __init__(self, socket: Path, *faults: Fault, behaviour: str = "ok") -> None:
        self.path, self.faults, self.behaviour = socket, set(faults), behaviour
        self.containers: dict[str, FakeContainer] = {}
        self.networks: dict[str, dict[str, Any]] = {}
        self.volumes: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.news = threading.Condition()
        self.gone = threading.Event()
        self.server: socketserver.BaseServer | None = None
        self.connections: set[Any] = set()
        self.ports_refused = 0

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()
        for container in self.containers.values():
            self.end(container, 137)

    def start(self) -> None:
        """Listen."""
        self.gone.clear()
        self.path.unlink(missing_ok=True)
        daemon = self

        class Bound(self.handler):  # type: ignore[name-defined, misc]  # a daemon with more routes has another
            owner = daemon

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads, request_queue_size = True, 64

        server = Server(str(self.path), Bound)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.server = server

    def stop(self) -> None:
        """Be gone in the middle of everything: open streams break, and nobody listens any more."""
        self.gone.set()
        with self.news:
            self.news.notify_all()
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None
        for connection in list(self.connections):
            try:
                connection.shutdown(2)
            except OSError:
                continue
        self.path.unlink(missing_ok=True)

    def has(self, fault: Fault) -> bool:
        return fault in self.faults

    # What happens to containers

    def run(self, container: FakeContainer) -> None:
        """Begin a life."""
        container.lives += 1
        container.asked = 0
        container.state, container.exit_code, container.oom = "running", 0, False
        container.started_at, container.finished_at = stamp(), NEVER
        self.say(container, f"life {container.lives} begins\n")
        if self.has(Fault.ENDS_AT_ONCE):
            self.say(container, "the reason is on this line\n")
            return self.end(container, 3)
        if self.has(Fault.ENDS_WELL):
            return self.end(container, 0)
        if self.has(Fault.OUT_OF_MEMORY):
            self.tell("oom", container)
            return self.end(container, 137, oom=True)
        arguments = (container.body.get("Cmd") or [])[1:]
        options = fake_engine_server.parse_options(arguments)  # type: ignore[no-untyped-call]  # standard library only

        class Engine(fake_engine_server.Handler):
            pass

        Engine.behaviour, Engine.options = self.behaviour, options
        container.engine = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
        container.engine.daemon_threads = True
        container.port = container.engine.server_address[1]
        threading.Thread(target=container.engine.serve_forever, args=(0.02,), daemon=True).start()
        return None

    def end(self, container: FakeContainer, code: int, oom: bool = False) -> None:
        """End a life: the engine is gone, the state says so, and the event follows."""
        if container.state != "running":
            return
        if container.engine is not None:
            container.engine.shutdown()
            container.engine.server_close()
            container.engine = None
        self.say(container, "the last line\n")
        container.state, container.exit_code, container.port = "exited", code, None
        container.oom = oom and not self.has(Fault.LACKS_THE_OOM_FLAG)
        container.finished_at = stamp()
        self.tell("die", container)

    def say(self, container: FakeContainer, text: str) -> None:
        """The container writes."""
        with self.news:
            container.entries.append((stamp(), text.encode()))
            self.news.notify_all()

    def tell(self, action: str, container: FakeContainer) -> None:
        """An event."""
        if self.has(Fault.LOSES_EVENTS):
            return
        with self.news:
            self.events.append({"Type": "container", "Action": action, "timeNano": time.time_ns(),
                                "Actor": {"ID": container.id, "Attributes": {"exitCode": str(container.exit_code)}}})
            self.news.notify_all()

    def attrs(self, container: FakeContainer) -> dict[str, Any]:
        """The inspect document."""
        host = dict(container.body.get("HostConfig") or {})
        state = container.state
        container.asked += 1
        if self.has(Fault.STAYS_CREATED) and container.lives and container.asked < 4 and state == "exited":
            state = "created"
        port = container.port
        if self.has(Fault.NEVER_BINDS_PORTS) or (self.has(Fault.BINDS_PORTS_LATE) and container.asked < 6):
            port = None
        if self.has(Fault.DRIFTS):
            host["Privileged"] = True
        mounts = [{"Type": "bind", "Source": one["Source"], "Destination": one["Target"], "RW": not one["ReadOnly"]}
                  for one in host.get("Mounts") or ()]
        return {
            "Id": container.id, "Name": f"/{container.name}", "Image": IMAGE, "Mounts": mounts,
            "State": {"Status": state, "Running": state == "running", "OOMKilled": container.oom, "Error": "",
                      "Pid": 0, "ExitCode": container.exit_code, "StartedAt": container.started_at,
                      "FinishedAt": container.finished_at},
            "Config": {"Cmd": container.body.get("Cmd"), "User": container.body.get("User", ""), "Tty": False,
                       "Labels": container.labels},
            "HostConfig": host,
            "NetworkSettings": {"Ports": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]
                                          if port else None}},
        }
