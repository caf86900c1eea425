"""What the swarm's tests in real daemons share: the pretend engine as an image with a store of its user's, and runs of
the tool in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

REPOSITORY = Path(__file__).parents[2]
LIFECYCLE, E2E = REPOSITORY / "tests" / "lifecycle", REPOSITORY / "tests" / "e2e"
TAG = "ninfer-pretend-swarm"
MODEL = "1" * 64
_DIES = 'ENTRYPOINT ["python3", "-c", "import sys; print(\'the flag is not known\'); sys.exit(4)"]\n'


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Its --json."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def build_images(client: docker.DockerClient, base: str, folder: Path) -> None:
    """TAG:good serves, TAG:bad ends at once and says why, TAG:other is the good one by another id."""
    for name in ("fake_engine_server", "fault_engine", "fault_model"):
        shutil.copy(LIFECYCLE / f"{name}.py", folder)
    shutil.copy(E2E / "pretend_engine.py", folder)
    good = (f"FROM {base}\nRUN mkdir -p /model /var/lib/ninfer/store && chown 10001:10001 /var/lib/ninfer/store\n"
            'COPY *.py /engine/\nENTRYPOINT ["python3", "/engine/pretend_engine.py"]\n')
    for tag, text in (("good", good), ("bad", good + _DIES), ("other", good + "LABEL other=yes\n")):
        (folder / "Dockerfile").write_text(text)
        client.images.build(path=str(folder), tag=f"{TAG}:{tag}", rm=True, forcerm=True, network_mode="none")


def remove_images(client: docker.DockerClient) -> None:
    """Away with them."""
    for tag in ("good", "bad", "other"):
        client.images.remove(f"{TAG}:{tag}", force=True)


@dataclass(frozen=True)
class Bench:
    """A place for profiles, runs and keys. docker_host: the daemon that the tool asks."""

    root: Path
    docker_host: str

    def profile(self, tag: str = "good", *, name: str = "pretend", forks: int = 1, repeats: int = 1,
                context: int = 131072, host: str = "") -> Path:
        """A profile on the pretend engine."""
        model = self.root / "model"
        model.mkdir(exist_ok=True)
        path = self.root / f"{name}-{tag}-{forks}-{repeats}-{context}.yaml"
        path.write_text(
            f"schemaVersion: 1\nname: {name}\nlane: test\n"
            f'model: {{source: path, path: {model}, id: pretend, sha256: "{MODEL}"}}\n'
            f"image: {{repository: {TAG}, tag: {tag}}}\nflags: {{max-context: {context}}}\n"
            f"host: {{kind: swarm, memory: 256m, readySeconds: 30, stopSeconds: 10{host}}}\n"
            f"probes: {{plan: fanout, sizes: [200], forks: {forks}, repeats: {repeats}}}\n")
        return path

    def argv(self, *words: str) -> list[str]:
        """The tool's command line, with this bench's places."""
        places = {"qualify": ("--runs-dir", "--receipts-dir", "--state-dir", "--models-dir"),
                  "deploy": ("--runs-dir", "--state-dir", "--models-dir"), "up": ("--state-dir", "--models-dir"),
                  "down": ("--state-dir",)}
        return [sys.executable, "-m", "ninfer_lifecycle.cli", *words, *(
            word for option in places.get(words[0], ())
            for word in (option, str(self.root / option.removeprefix("--").removesuffix("-dir"))))]

    def ninfer(self, *words: str) -> Ran:
        """Run it to its end."""
        done = subprocess.run(self.argv(*words), capture_output=True, text=True, check=False, timeout=400,
                              env=self.environment())
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Run it beside the test. What it says goes to files, out and err: a pipe that nobody reads would stop it."""
        with (self.root / "out").open("wb") as out, (self.root / "err").open("wb") as err:
            return subprocess.Popen(self.argv(*words), stdout=out, stderr=err, env=self.environment())

    def said(self, name: str) -> str:
        """What it has said so far: out or err."""
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def environment(self) -> dict[str, str]:
        """This one's, with the bench's daemon."""
        return {**os.environ, "DOCKER_HOST": self.docker_host}
