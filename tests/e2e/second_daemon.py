"""A Docker daemon of a test's own, beside the machine's: own data root, socket, bridge. Needs root."""

import os
import shutil
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import docker

IP, DOCKERD = shutil.which("ip") or "/sbin/ip", shutil.which("dockerd") or "/usr/sbin/dockerd"


class SecondDaemon:
    """Used as a context manager; leaving it stops the daemon, its containers and its bridge."""

    bridge = "ninfer-e2e0"

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory, self.url, self.options = directory, f"unix://{directory}/docker.sock", options
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        subprocess.run([IP, "link", "del", self.bridge], check=False, capture_output=True)  # of a run that was killed
        subprocess.run([IP, "link", "add", self.bridge, "type", "bridge"], check=True)
        subprocess.run([IP, "addr", "add", "10.231.77.1/24", "dev", self.bridge], check=True)
        subprocess.run([IP, "link", "set", self.bridge, "up"], check=True)
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        with suppress(docker.errors.DockerException), closing(docker.DockerClient(self.url, timeout=20)) as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
        self.stop()
        subprocess.run([IP, "link", "del", self.bridge], check=False)
        # A daemon that was killed leaves its mounts.
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        for place in reversed([line.split()[1] for line in mounts if f" {self.directory}/" in line]):
            subprocess.run([shutil.which("umount") or "umount", place], check=False)

    def start(self) -> None:
        """Start it and wait until it answers."""
        run = self.directory / "run"
        with (self.directory / "dockerd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [DOCKERD, "--data-root", str(self.directory / "data"), "--exec-root", str(run), "--pidfile",
                 str(self.directory / "pid"), "--host", self.url, "--bridge", self.bridge, "--iptables=false",
                 *self.options],
                stdout=log, stderr=log, start_new_session=True)
        ends = time.monotonic() + 60
        while True:
            try:
                with closing(docker.DockerClient(self.url, timeout=5)) as client:
                    client.ping()
                return
            except (docker.errors.DockerException, OSError) as error:
                if self.process.poll() is not None or time.monotonic() >= ends:
                    said = (self.directory / "dockerd.log").read_text(errors="replace")[-2000:]
                    raise AssertionError(f"the second daemon does not come up: {said}") from error
                time.sleep(0.1)

    def stop(self, kill: bool = False) -> None:
        """Stop it; its containers are stopped with it, unless it is killed."""
        if self.process is None:
            return
        if self.process.poll() is None:
            os.kill(self.process.pid, 9 if kill else 15)
        self.process.wait(60)
        self.process = None
        self._wait_for_its_containerd()

    def _wait_for_its_containerd(self) -> None:
        """It dies with the daemon, a moment later; a new daemon would take one that is dying for one to use."""
        pid = self.directory / "run" / "containerd" / "containerd.pid"
        ends = time.monotonic() + 30
        while pid.exists() and Path("/proc", pid.read_text(encoding="ascii").strip()).exists():
            assert time.monotonic() < ends, "containerd outlives its daemon"
            time.sleep(0.05)

    def load(self, client: docker.DockerClient, image: str) -> None:
        """Copy an image over."""
        with closing(docker.DockerClient(self.url, timeout=120)) as here:
            here.images.load(b"".join(client.images.get(image).save(named=True)))
