"""The routes of `fake_dockerd`: the Engine API 1.41 as far as it is used, over HTTP on a unix socket."""

import json
import re
import secrets
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fake_containers import IMAGE, FakeContainer, Fault

ROUTES = [
    ("GET", "/version", "version"), ("GET", "/info", "info"), ("GET", "/images/(.+)/json", "image"),
    ("GET", "/events", "event_stream"), ("GET", "/containers/json", "list_containers"),
    ("POST", "/containers/create", "create"), ("GET", "/containers/([^/]+)/json", "inspect"),
    ("POST", "/containers/([^/]+)/start", "start_container"), ("POST", "/containers/([^/]+)/kill", "kill"),
    ("DELETE", "/containers/([^/]+)", "remove"), ("GET", "/containers/([^/]+)/logs", "logs"),
    ("POST", "/containers/([^/]+)/exec", "exec_create"), ("POST", "/exec/([^/]+)/start", "exec_start"),
    ("GET", "/exec/([^/]+)/json", "exec_inspect"), ("GET", "/networks", "networks"), ("GET", "/volumes", "volumes"),
    ("DELETE", "/networks/([^/]+)", "remove_network"), ("DELETE", "/volumes/([^/]+)", "remove_volume"),
]


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    owner: Any  # the FakeDockerd that it answers for
    routes = ROUTES

    def setup(self) -> None:
        super().setup()
        self.client_address = ("fake", 0)
        self.owner.connections.add(self.connection)

    def finish(self) -> None:
        self.owner.connections.discard(self.connection)
        try:
            super().finish()
        except OSError:
            return

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, ValueError):
            self.close_connection = True

    def do_GET(self) -> None:
        self.route()

    do_POST = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def route(self) -> None:
        parts = urlsplit(self.path)
        path = re.sub(r"^/v1\.\d+", "", parts.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.body = json.loads(raw) if raw else {}
        self.owner.calls.append(f"{self.command} {path}")
        found = next(((name, match) for verb, pattern, name in self.routes
                      if verb == self.command and (match := re.fullmatch(pattern, path))), None)
        if found is None:
            return self.answer(404, {"message": f"page not found: {path}"})
        name, match = found
        self.subject = (match.groups() or ("",))[0]
        if not path.startswith("/containers/") or name in {"list_containers", "create"}:
            getattr(self, name)()
            return None
        container = self.owner.containers.get(self.subject) or next(
            (one for one in self.owner.containers.values() if one.name == self.subject), None)
        if container is None:
            return self.answer(404, {"message": f"No such container: {self.subject}"})
        getattr(self, name)(container)
        return None

    def answer(self, status: int, body: Any = None, raw: bytes | None = None) -> None:
        data = raw if raw is not None else (b"" if body is None else json.dumps(body).encode())
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    # The daemon

    def version(self) -> None:
        self.answer(200, {"Version": "20.10.0-fake", "ApiVersion": "1.41", "MinAPIVersion": "1.12"})

    def info(self) -> None:
        self.answer(200, {"Driver": "fake", "CgroupVersion": "2", "DockerRootDir": "/nowhere", "MemTotal": 2**34,
                          "Runtimes": {"runc": {}}, "SystemTime": datetime.now(UTC).isoformat()})

    def image(self) -> None:
        self.answer(200, {"Id": IMAGE, "RepoDigests": [], "Size": 1})

    def event_stream(self) -> None:
        if self.owner.has(Fault.STALLS_AT_EVENTS):
            self.owner.gone.wait()
            return
        self.stream(self.event_chunks())

    def event_chunks(self) -> Iterator[bytes]:
        sent = 0
        while not self.owner.gone.is_set():
            with self.owner.news:
                if len(self.owner.events) == sent and not self.owner.gone.is_set():
                    self.owner.news.wait(0.2)
                fresh, sent = self.owner.events[sent:], len(self.owner.events)
            for event in fresh:
                if event["timeNano"] >= int(self.query.get("since", 0)) * 10**9:
                    yield json.dumps(event).encode() + b"\n"
            if self.owner.has(Fault.BREAKS_EVENT_STREAMS) and len(self.owner.calls) % 2:
                return
            yield b""

    def stream(self, chunks: Iterator[bytes]) -> None:
        """Chunks as they come. The empty ones only look whether somebody still listens."""
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.docker.raw-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        for chunk in chunks:
            if chunk:
                self.wfile.write(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
                self.wfile.flush()
            elif _hung_up(self.connection):
                return
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    # Containers

    def create(self) -> None:
        if self.owner.has(Fault.REFUSES_TO_CREATE):
            return self.answer(400, {"message": "Unknown runtime specified crun"})
        made = FakeContainer(secrets.token_hex(32), self.query.get("name", "x"), self.body)
        self.owner.containers[made.id] = made
        if self.owner.has(Fault.STALLS_AT_CREATE):
            self.owner.gone.wait()
            return None
        return self.answer(201, {"Id": made.id, "Warnings": []})

    def inspect(self, container: FakeContainer) -> None:
        if self.owner.has(Fault.STALLS_AT_INSPECT) and container.lives:
            self.owner.gone.wait()
            return None
        if self.owner.has(Fault.SPEAKS_GARBAGE) and container.lives:
            return self.answer(200, raw=b"<html>502 Bad Gateway</html>")
        return self.answer(200, self.owner.attrs(container))

    def list_containers(self) -> None:
        found = [{"Id": one.id, "Names": [f"/{one.name}"], "Labels": one.labels, "State": one.state, "Image": IMAGE}
                 for one in self.owner.containers.values() if _labelled(one.labels, self.query)]
        if self.owner.has(Fault.VANISHES_WHILE_LISTING):
            for entry in found[:1]:
                self.owner.end(self.owner.containers.pop(str(entry["Id"])), 137)
        self.answer(200, found)

    def start_container(self, container: FakeContainer) -> None:
        refused = (self.owner.has(Fault.TAKES_THE_PORT)
                   or (self.owner.has(Fault.TAKES_A_FREE_PORT_TWICE) and self.owner.ports_refused < 2))
        if refused:
            self.owner.ports_refused += 1
            return self.answer(500, {"message": "driver failed programming external connectivity: Bind for "
                                                "127.0.0.1:4711 failed: port is already allocated"})
        self.owner.run(container)
        if self.owner.has(Fault.STALLS_AT_START):
            self.owner.gone.wait()
            return None
        return self.answer(204)

    def kill(self, container: FakeContainer) -> None:
        if self.owner.has(Fault.STALLS_AT_KILL):
            self.owner.gone.wait()
            return None
        if container.state != "running":
            return self.answer(409, {"message": f"Container {container.id} is not running"})
        if self.query.get("signal") == "SIGTERM":
            if not self.owner.has(Fault.IGNORES_SIGTERM):
                self.owner.end(container, 0)
        elif not self.owner.has(Fault.IGNORES_SIGKILL):
            self.owner.end(container, 137)
        return self.answer(204)

    def remove(self, container: FakeContainer) -> None:
        if self.owner.has(Fault.REFUSES_TO_REMOVE):
            return self.answer(500, {"message": "device or resource busy"})
        self.owner.end(container, 137)
        del self.owner.containers[container.id]
        if self.owner.has(Fault.REMOVAL_IN_PROGRESS):
            return self.answer(409, {"message": f"removal of container {container.id} is already in progress"})
        return self.answer(204)

    def logs(self, container: FakeContainer) -> None:
        if self.owner.has(Fault.STALLS_AT_LOGS):
            self.owner.gone.wait()
            return None
        if self.query.get("follow") == "1":
            return self.stream(self.log_chunks(container))
        entries = container.entries
        if (tail := self.query.get("tail", "all")) != "all":
            entries = entries[-int(tail):]
        return self.stream(iter([frame(self.line(*entry)) for entry in entries if self.wanted(entry[0])]))

    def log_chunks(self, container: FakeContainer) -> Iterator[bytes]:
        sent = 0
        while True:
            with self.owner.news:
                if len(container.entries) == sent and not self.owner.gone.is_set():
                    self.owner.news.wait(0.1)
                fresh, sent = container.entries[sent:], len(container.entries)
            for number, (at, text) in enumerate(fresh):
                if self.wanted(at):
                    entry = frame(self.line(at, text))
                    if self.owner.has(Fault.BREAKS_LOG_STREAMS) and number == len(fresh) - 1 and len(fresh) > 1:
                        yield entry[:-3]
                        return
                    yield entry
            if self.owner.gone.is_set() or (container.state != "running" and len(container.entries) == sent):
                return
            yield b""

    def wanted(self, at: str) -> bool:
        return datetime.fromisoformat(at[:19] + "+00:00").timestamp() >= float(self.query.get("since", 0))

    def line(self, at: str, text: bytes) -> bytes:
        return at.encode() + b" " + text if self.query.get("timestamps") == "1" else text

    # Programs inside

    def exec_create(self, container: FakeContainer) -> None:
        self.answer(201, {"Id": container.id})

    def exec_start(self) -> None:
        container = self.owner.containers[self.subject]
        lost = self.owner.has(Fault.LOSES_THE_GPUS) and container.lives > 1
        text = b"Failed to initialize NVML: Unknown Error\n" if lost else b"GPU 0: Fake (UUID: GPU-1)\n"
        self.stream(iter([frame(text)]))

    def exec_inspect(self) -> None:
        container = self.owner.containers[self.subject]
        self.answer(200, {"ExitCode": 255 if self.owner.has(Fault.LOSES_THE_GPUS) and container.lives > 1 else 0})

    # Networks and volumes

    def networks(self) -> None:
        self.answer(200, [{"Id": name, "Name": name, "Labels": labels} for name, labels in self.owner.networks.items()
                          if _labelled(labels, self.query)])

    def volumes(self) -> None:
        self.answer(200, {"Volumes": [{"Name": name, "Labels": labels} for name, labels in self.owner.volumes.items()
                                      if _labelled(labels, self.query)]})

    def remove_network(self) -> None:
        del self.owner.networks[self.subject]
        self.answer(204)

    def remove_volume(self) -> None:
        del self.owner.volumes[self.subject]
        self.answer(204)


def frame(data: bytes) -> bytes:
    """One entry of a multiplexed stream, of stdout."""
    return struct.pack(">BxxxL", 1, len(data)) + data


def _labelled(labels: dict[str, str], query: dict[str, str]) -> bool:
    wanted = json.loads(query.get("filters", "{}")).get("label", [])
    return all(labels.get(pair.partition("=")[0]) == pair.partition("=")[2] for pair in wanted)


def _hung_up(connection: Any) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1) == b"")
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)
