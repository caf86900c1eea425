"""A swarm of three nodes on one machine: Docker daemons in network namespaces of their own, joined by a bridge.

    python tests/e2e/three_nodes.py up DIRECTORY      daemons, swarm; prints each node's DOCKER_HOST
    python tests/e2e/three_nodes.py down DIRECTORY    all of it away, also what a killed run left

Needs root, iproute2, nsenter, and a kernel with VXLAN. Each node has its own data root, exec root, socket, host name
and address (10.231.88.11 to .13); this machine is 10.231.88.254 on the same bridge, so a node's published ports can be
reached from here. The bridge lies in a namespace too: no rule of this machine's firewall is in the way.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import docker

NODES = 3
SUBNET, HERE = "10.231.88", "10.231.88.254/24"
HUB, LINK = "ninfer-3n-hub", "ninfer-3n"
_UP_S, _READY_S = 90.0, 60.0


@dataclass(frozen=True)
class NodePlace:
    """One node: 1 to 3."""

    number: int
    directory: Path

    @property
    def namespace(self) -> str:
        return f"ninfer-3n-{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{10 + self.number}"

    @property
    def url(self) -> str:
        return f"unix://{self.directory}/s"

    def client(self, timeout: int = 60) -> docker.DockerClient:
        return docker.DockerClient(self.url, timeout=timeout)


class ThreeNodes:
    """The swarm. Used as a context manager; leaving it takes all of it away."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes = [NodePlace(number, directory / f"n{number}") for number in range(1, NODES + 1)]

    @property
    def manager(self) -> NodePlace:
        return self.nodes[0]

    def __enter__(self) -> Self:
        self.down()
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.down()

    def up(self) -> None:
        """Namespaces, daemons, swarm. Every node is labelled `ninfer.lane=test`."""
        self._wire()
        for node in self.nodes:
            self._start(node)
        for node in self.nodes:
            self._await(node)
        with closing(self.manager.client()) as manager:
            manager.swarm.init(advertise_addr=self.manager.address, listen_addr=f"{self.manager.address}:2377")
            token = manager.api.inspect_swarm()["JoinTokens"]["Worker"]
            for node in self.nodes[1:]:
                with closing(node.client()) as worker:
                    worker.swarm.join([f"{self.manager.address}:2377"], token, advertise_addr=node.address,
                                      listen_addr=f"{node.address}:2377")
        for node in self.nodes:
            self.change(node, labels={"ninfer.lane": "test"})

    def down(self) -> None:
        """Everything away; what is not there is no error."""
        for node in self.nodes:
            with suppress(docker.errors.DockerException, OSError), closing(node.client(5)) as client:
                client.swarm.leave(force=True)
                for container in client.containers.list(all=True):
                    container.remove(force=True)
            self._stop(node)
        for name in (*(node.namespace for node in self.nodes), HUB):
            if _namespace(name).exists():
                _run("ip", "netns", "delete", name, check=False)
        if Path(f"/sys/class/net/{LINK}").exists():
            _run("ip", "link", "delete", LINK, check=False)
        for node in self.nodes:
            shutil.rmtree(node.directory, ignore_errors=True)

    def load(self, source: docker.DockerClient, image: str) -> str:
        """Copy an image of this machine's daemon to every node; its id, which is the same everywhere."""
        data = b"".join(source.images.get(image).save(named=True))
        for node in self.nodes:
            with closing(node.client(300)) as client:
                client.images.load(data)
        return str(source.images.get(image).id)

    def change(self, node: NodePlace, availability: str | None = None, labels: dict[str, str] | None = None) -> None:
        """Drain, activate or label a node."""
        def try_it() -> bool:
            with closing(self.manager.client()) as manager:
                found = [one for one in manager.nodes.list() if one.attrs["Description"]["Hostname"] == _host(node)]
                if not found or found[0].attrs["Status"]["State"] != "ready":
                    return False
                spec = dict(found[0].attrs["Spec"])
                spec |= {"Availability": availability} if availability else {}
                spec |= {"Labels": labels} if labels is not None else {}
                with suppress(docker.errors.APIError):  # out of sequence: the managers touched it; read it again
                    found[0].update(spec)
                    return True
                return False

        wait_for(try_it, f"{_host(node)} in the swarm", _READY_S)

    def _wire(self) -> None:
        def ip(*words: str, inside: str | None = None) -> None:
            _run("ip", *(("-n", inside) if inside else ()), *words)

        ip("netns", "add", HUB)
        ip("link", "add", "br0", "type", "bridge", inside=HUB)
        ip("link", "set", "br0", "up", inside=HUB)
        ip("link", "add", LINK, "type", "veth", "peer", "name", "here", "netns", HUB)
        ip("link", "set", "here", "master", "br0", "up", inside=HUB)
        ip("addr", "add", HERE, "dev", LINK)
        ip("link", "set", LINK, "up")
        for node in self.nodes:
            ip("netns", "add", node.namespace)
            ip("link", "add", "eth0", "type", "veth", "peer", "name", f"p{node.number}", "netns", HUB,
               inside=node.namespace)
            ip("link", "set", f"p{node.number}", "master", "br0", "up", inside=HUB)
            ip("addr", "add", f"{node.address}/24", "dev", "eth0", inside=node.namespace)
            ip("link", "set", "eth0", "up", inside=node.namespace)
            ip("link", "set", "lo", "up", inside=node.namespace)

    def _start(self, node: NodePlace) -> None:
        """In namespaces of its own: network, host name, mounts (over /run/docker too, which every daemon takes for its
        own), and processes: with the daemon, the first of them, all of them end. Not `ip netns exec`: that hides the
        control groups.
        """
        node.directory.mkdir(parents=True, exist_ok=True)
        here = node.directory
        script = 'hostname "$1"; mkdir -p /run/docker; mount -t tmpfs none /run/docker; shift; exec "$@"'
        with (here / "dockerd.log").open("ab") as log:
            subprocess.Popen(
                [_program("nsenter"), f"--net={_namespace(node.namespace)}", "unshare", "--uts", "--mount", "--pid",
                 "--fork", "--mount-proc", "sh", "-c", script, "sh", _host(node), _program("dockerd"),
                 "--data-root", str(here / "data"), "--exec-root", str(here / "run"), "--pidfile", str(here / "pid"),
                 "--host", node.url],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _await(self, node: NodePlace) -> None:
        def answers() -> bool:
            with suppress(docker.errors.DockerException, OSError), closing(node.client(5)) as client:
                return bool(client.ping())
            return False

        try:
            wait_for(answers, f"the daemon of {_host(node)}", _UP_S)
        except AssertionError as error:
            said = (node.directory / "dockerd.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"{error}: {said}") from error

    def kill(self, node: NodePlace) -> None:
        """As if its power were cut: daemon, engines, all at once."""
        self._signal(node, signal.SIGKILL)
        wait_for(lambda: not _processes_of(node.directory), f"the end of {_host(node)}", 30.0)

    def _stop(self, node: NodePlace) -> None:
        self._signal(node, signal.SIGTERM)
        with suppress(AssertionError):
            wait_for(lambda: not _processes_of(node.directory), f"the end of {_host(node)}", 15.0)
        self.kill(node)

    @staticmethod
    def _signal(node: NodePlace, number: int) -> None:
        for pid in _processes_of(node.directory):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def wait_for(look: Callable[[], bool], what: str, within_s: float) -> None:
    """Look until it is so. AssertionError after the deadline."""
    ends = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < ends, f"{what} did not come within {within_s:g} s"
        time.sleep(0.1)


def _host(node: NodePlace) -> str:
    return f"node{node.number}"


def _namespace(name: str) -> Path:
    return Path("/var/run/netns") / name


def _processes_of(directory: Path) -> list[int]:
    """The node's daemon: whatever else it has ends with it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"dockerd") and f"{directory}/data".encode() in words:
                found.append(int(entry.name))
    return found


def _run(*argv: str, check: bool = True) -> None:
    subprocess.run([_program(argv[0]), *argv[1:]], check=check, timeout=60)


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/sbin/{name}"


if __name__ == "__main__":
    swarm = ThreeNodes(Path(sys.argv[2]).resolve())
    if sys.argv[1] == "down":
        swarm.down()
    else:
        swarm.up()
        for place in swarm.nodes:
            sys.stdout.write(f"node{place.number}: DOCKER_HOST={place.url} address {place.address}\n")
