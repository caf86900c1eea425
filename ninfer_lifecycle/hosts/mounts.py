"""What a container brings along: model, store, log directory and key, each readable by its user and by no one else."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ninfer_engine.contract.flags import to_argv
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec
from ninfer_lifecycle.hosts.container import ENGINE_PORT, KEY_AT, LOG_AT, MODEL_AT, STORE_AT, BoundPath
from ninfer_lifecycle.hosts.placing import REQUEST_LOG, Places, placed_flags

CONTAINER_UID = 10001
"""The engine's user in the image. A caller who is not root keeps their own number: they could not give files away."""


@dataclass(frozen=True, slots=True)
class Belongings:
    """Mounts, the arguments that name them, and the user who reads them. request_log: on this machine."""

    user: str
    mounts: tuple[BoundPath, ...]
    argv: tuple[str, ...]
    request_log: Path | None
    key_copy: Path | None

    def forget_key(self) -> None:
        """Remove the copy of the key."""
        if self.key_copy is not None:
            self.key_copy.unlink(missing_ok=True)


def prepare_belongings(spec: EngineSpec) -> Belongings:
    """Make the directories, copy the key (mode 0600, the engine's user). HostError when the model cannot be read."""
    uid, gid = container_user()
    check_readable(spec.model_dir.resolve(), uid)
    if spec.store_dir is not None:
        _give(spec.store_dir, uid, gid)
    if spec.request_log:
        _log_dir(spec).mkdir(exist_ok=True)
        _give(_log_dir(spec), uid, gid)
    if spec.key_file is not None:
        _copy_key(spec.key_file, _key_copy(spec), uid, gid)
    return describe_belongings(spec)


def describe_belongings(spec: EngineSpec) -> Belongings:
    """The same value without any effect: for a container that runs already."""
    uid, gid = container_user()
    model = spec.model_dir.resolve()
    model_at = MODEL_AT if model.is_dir() else f"{MODEL_AT}/{model.name}"
    mounts = [BoundPath(str(model), model_at, read_only=True)]
    if spec.store_dir is not None:
        mounts.append(BoundPath(str(spec.store_dir.resolve()), STORE_AT, read_only=False))
    if spec.request_log:
        mounts.append(BoundPath(str(_log_dir(spec).resolve()), LOG_AT, read_only=False))
    if spec.key_file is not None:
        mounts.append(BoundPath(str(_key_copy(spec).resolve()), KEY_AT, read_only=True))
    places = Places(
        model=model_at, host="0.0.0.0", port=ENGINE_PORT,  # noqa: S104  # in a network of its own
        key_file=KEY_AT if spec.key_file else None, store_dir=STORE_AT if spec.store_dir else None,
        request_log=f"{LOG_AT}/{REQUEST_LOG}" if spec.request_log else None)
    return Belongings(f"{uid}:{gid}", tuple(mounts), tuple(to_argv(placed_flags(spec, places))),
                      _log_dir(spec) / REQUEST_LOG if spec.request_log else None,
                      _key_copy(spec) if spec.key_file else None)


def _log_dir(spec: EngineSpec) -> Path:
    return spec.run_dir / "engine"


def _key_copy(spec: EngineSpec) -> Path:
    return spec.run_dir / f"key-{spec.run_id}"


def container_user() -> tuple[int, int]:
    """User and group that an engine's container runs as."""
    return (CONTAINER_UID, CONTAINER_UID) if os.getuid() == 0 else (os.getuid(), os.getgid())


def forget_keys(run_dir: Path) -> None:
    """Remove what a killed tool left of keys: in a run directory, and in those of engines beside its own."""
    for copy in (*run_dir.glob("key-*"), *run_dir.glob("*/key-*")):
        copy.unlink(missing_ok=True)


def _give(directory: Path, uid: int, gid: int) -> None:
    """A directory and what lies in it to the engine's user; a no-op for what is theirs already."""
    if os.getuid() != 0:
        return
    for path in (directory, *directory.rglob("*")):
        if path.lstat().st_uid != uid:
            os.chown(path, uid, gid, follow_symlinks=False)


def _copy_key(source: Path, target: Path, uid: int, gid: int) -> None:
    """A copy that no one but the engine's user can open, made so from its first moment."""
    target.unlink(missing_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file, source.open("rb") as key:
        shutil.copyfileobj(key, file)
        if os.getuid() == 0:
            os.fchown(file.fileno(), uid, gid)


def check_readable(model: Path, uid: int) -> None:
    """Refuse a model that the container's user could not open; owner and others are looked at, groups are not."""
    for path in (model, *(model.iterdir() if model.is_dir() else ())):
        info = path.stat()
        needed = 0o5 if path.is_dir() else 0o4
        granted = (info.st_mode >> 6) if info.st_uid == uid else info.st_mode
        if granted & needed != needed:
            raise HostError(f"{path} cannot be read by user {uid}, which the container runs as",
                            f"chmod o+r{'x' if path.is_dir() else ''} it: the model is mounted read-only")
