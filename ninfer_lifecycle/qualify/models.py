"""The model of a profile on this machine: a path that is there, or the tiny model, made once and kept."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ninfer_lifecycle.errors import HostError, UsageError
from ninfer_lifecycle.profiles.schema import ModelSection

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
MAKE_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model, and the digest that the engine will report for it."""

    path: Path
    sha256: str


def run_process(argv: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program of ours and keep what it says."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=MAKE_DEADLINE_S, check=False)


def ensure_model(model: ModelSection, models_dir: Path, run: Run = run_process) -> ModelOnDisk:
    """The model of `model`; the tiny one is made below `models_dir` when it is not there.

    Raises UsageError when a path is missing, has no digest in the profile, or when the tiny model's digest is not the
    one that the profile names; HostError when it cannot be made. The digest of a given path is *not* computed here: the
    engine computes it when it starts, and refuses another one.
    """
    if model.source == "path":
        return _given(model)
    found = _made(model.seed, models_dir, run)
    if model.sha256 is not None and model.sha256 != found.sha256:
        raise UsageError(f"the tiny model of seed {model.seed} has sha256 {found.sha256} and the profile names "
                         f"{model.sha256}", "correct model.sha256 in the profile, or leave it out")
    return found


def _given(model: ModelSection) -> ModelOnDisk:
    path = Path(model.path or "")
    if not path.exists():
        raise UsageError(f"no model at {path}",
                         "set model.path in the profile to a directory in HF layout or a GGUF file")
    if model.sha256 is None:
        raise UsageError(f"the profile names no digest of the model at {path}",
                         "set model.sha256: a receipt is about exactly one model")
    return ModelOnDisk(path, model.sha256)


def _made(seed: int, models_dir: Path, run: Run) -> ModelOnDisk:
    """A directory is trusted only with the note that is written last, and only for the engine version that made it."""
    models_dir.mkdir(parents=True, exist_ok=True)
    version = _engine(["version"], run).strip()
    target = models_dir / f"tiny-seed{seed}-{version}"
    note = target / "made.json"
    if note.is_file():
        return ModelOnDisk(target, _digest_of(note.read_text(encoding="utf-8")))
    work = Path(tempfile.mkdtemp(prefix=".making-", dir=models_dir))
    try:
        said = _engine(["make-model", str(work / "model"), "--seed", str(seed), "--json"], run)
        digest = _digest_of(said)
        shutil.rmtree(target, ignore_errors=True)
        (work / "model").replace(target)
        note.write_text(json.dumps({"sha256": digest}) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return ModelOnDisk(target, digest)


def _engine(arguments: Sequence[str], run: Run) -> str:
    argv = [sys.executable, "-m", "ninfer_engine.cli", *arguments]
    try:
        done = run(argv)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"the engine's tool did not run: {error}", _INSTALL) from error
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise HostError(f"ninfer-engine {arguments[0]} failed with {done.returncode}: {last[0]}", _INSTALL)
    return done.stdout


def _digest_of(text: str) -> str:
    try:
        digest = str(json.loads(text)["sha256"])
    except (ValueError, KeyError, TypeError):
        raise HostError("the engine's tool did not name a sha256", _INSTALL) from None
    return digest


_INSTALL = "install the engine beside the tool: pip install 'ninfer[engine]'"
