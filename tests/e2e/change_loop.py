"""Promotions and rollbacks by the command line, each in a forked child that sends itself a signal at one of its points.

Points are the steps of a change, and what a host does to containers in between: made, started, told to stop, removed.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from interrupt_loop import after
from receipt_cases import NOW, signer
from release_world import LANE, MODEL_SHA256, World, one_generation

from ninfer_lifecycle import cli
from ninfer_lifecycle.commands import lanes, options
from ninfer_lifecycle.commands import promote as command
from ninfer_lifecycle.hosts import docker_sdk, on_daemon
from ninfer_lifecycle.qualify.models import ModelOnDisk

Hit = Callable[[str], None]


@dataclass(frozen=True)
class Bench:
    """A world whose lane is changed by the command line."""

    world: World

    def promoting(self, name: str, model: str, strategy: str) -> list[str]:
        """The words of a promotion; its receipt is made here."""
        receipt, key = self.world.receipt(self.world.profile(name, model)), self.world.root / "key.pub"
        key.write_bytes(signer(1).public_key.pem())
        return ["promote", str(self.world.root / f"{name}.yaml"), "--host", "docker", "--strategy", strategy,
                "--receipt", str(receipt), "--trust", str(key), *self.place]

    def rolling_back(self, strategy: str) -> list[str]:
        """The words of a rollback."""
        return ["rollback", LANE, "--strategy", strategy, *self.place]

    @property
    def place(self) -> tuple[str, str]:
        """Where the state lies."""
        return "--state-dir", str(self.world.root / "state")

    def points(self, words: list[str]) -> list[str]:
        """The points of an undisturbed run."""
        assert os.waitstatus_to_exitcode(self.run(words)) == 0, self.output
        return (self.world.root / "points").read_text().splitlines()

    def run(self, words: list[str], at: int | None = None, number: int = 0) -> int:
        """Run it, with a signal at the point of that index, or with none; its wait status."""
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = self._in_child(words, at, number)
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1]

    @property
    def output(self) -> str:
        """What the last run said."""
        return (self.world.root / "output").read_text()

    def _in_child(self, words: list[str], at: int | None, number: int) -> int:
        seen: list[str] = []

        def hit(point: str) -> None:
            seen.append(point)
            if at is not None and len(seen) == at + 1:
                os.kill(os.getpid(), number)

        pretend(self.world, hit)
        with (self.world.root / "output").open("w", buffering=1) as sys.stdout:
            sys.stderr = sys.stdout
            code = cli.run(words)
        (self.world.root / "points").write_text("\n".join(seen))
        return code


def pretend(world: World, hit: Hit) -> None:
    """In this process from now on: `hit` is told each point, the clock is that of the receipts, and whatever preflight
    would look at is well.
    """
    real = lanes.wiring_of
    patched: dict[tuple[Any, str], object] = {
        (options, "now"): lambda: NOW + timedelta(minutes=1),
        (lanes, "heal_command"): lambda *_: (),
        (command, "wiring_of"): lambda files: replace(real(files), reached=hit),
        (command, "ensure_model"): lambda *_: ModelOnDisk(world.root / "model", MODEL_SHA256),
        (command, "preflight"): lambda *_: (),
        (command, "QuickCheck"): lambda: one_generation}
    for (owner, name), value in patched.items():
        setattr(owner, name, value)
    for name, point in (("create", "container made"), ("start", "container started"), ("signal", "container signalled"),
                        ("remove", "container removed")):
        after(docker_sdk.SdkDaemon, name, point, hit)
    after(on_daemon, "wait_until_ready", "engine says it is ready", hit)


def key_copies(root: Path) -> set[Path]:
    """Copies of keys that engines were given."""
    return {path for path in root.rglob("*") if path.name.startswith("key-") or (path.name == "api.key" and
                                                                                  path.parent.parent.name == "runs")}
