"""How to ask a place: command line and environment of a lane's qualification, and how its receipt comes back."""

import hashlib
import io
import json
import os
import shlex
import subprocess  # argv lists, no shell of ours
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ninfer_lifecycle.errors import HostError, UsageError
from ninfer_lifecycle.fleet.schema import FleetLane, Place

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15")
# sshd ends nothing when its client goes. The watcher does, once standard input ends; it holds no stream of the session,
# which would otherwise last as long as it.
_REMOTE = (
    "mkdir -p {directory} && cd {directory} && head -c {size} > {file} && "
    "{{ exec 3<&0; {asked} </dev/null 3<&- & lane=$!; {{ cat <&3; kill -TERM $lane; }} >/dev/null 2>&1 & watcher=$!; "
    "wait $lane; code=$?; kill $watcher 2>/dev/null; exit $code; }}"
)
FETCH_S = 300.0
MAX_FETCHED = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """What to run for a lane. stdin: the profile, for a place that has no file of it. held: standard input stays open
    while it runs, and closing it is how the job is asked to end: a signal to ssh would not reach what runs there.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    stdin: bytes = b""
    held: bool = False


@dataclass(frozen=True, slots=True)
class Local:
    """What lanes of this machine share. program: this tool. options: of `ninfer qualify`, for every lane."""

    program: tuple[str, ...]
    folder: Path
    receipts_dir: Path
    options: tuple[str, ...] = ()
    remote_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


def job_of(lane: FleetLane, profile: str, local: Local) -> Job:
    """The job of a lane. profile: its YAML text. Raises UsageError where the place cannot be named to a program."""
    if lane.place.ssh is not None:
        return _over_ssh(lane, profile, local)
    path = local.folder / lane.name / "profile.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(profile, encoding="utf-8")
    host = ("--host", lane.host) if lane.host else ()
    argv = (*local.program, "qualify", str(path), *host, "--receipts-dir", str(local.receipts_dir), *local.options,
            "--json")
    return Job(argv, {**local.environment, **daemon_environment(lane.place)})


def _over_ssh(lane: FleetLane, profile: str, local: Local) -> Job:
    file = f"fleet-{lane.name}.yaml"
    host = ("--host", lane.host) if lane.host else ()
    asked = shlex.join((*shlex.split(lane.place.program), "qualify", f"./{file}", *host, *local.remote_options,
                        "--json"))
    sent = profile.encode()
    remote = _REMOTE.format(directory=shlex.quote(lane.place.directory), size=len(sent), file=shlex.quote(file),
                            asked=asked)
    return Job((*SSH, str(lane.place.ssh), remote), dict(local.environment), sent, held=True)


def daemon_environment(place: Place, home: Path | None = None) -> dict[str, str]:
    """What tells Docker's clients which daemon to ask; empty for this machine's own. Raises UsageError."""
    if place.url is not None:
        return _environment(place.url, place.tls_dir)
    if place.context is None or place.context == "default":
        return {}
    base = home or Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    digest = hashlib.sha256(place.context.encode()).hexdigest()
    try:
        meta = json.loads((base / "contexts" / "meta" / digest / "meta.json").read_bytes())
        url = str(meta["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"there is no Docker context {place.context}", "`docker context ls` shows those that there "
                         "are") from None
    if url.startswith("ssh://"):
        raise UsageError(f"context {place.context} goes over ssh: the engine's port and files are on that machine",
                         f"run the tool there: place: {{ssh: {url.removeprefix('ssh://').partition('/')[0]}}}")
    tls = base / "contexts" / "tls" / digest / "docker"
    return _environment(url, str(tls) if tls.is_dir() else None)


def _environment(url: str, tls_dir: str | None) -> dict[str, str]:
    return {"DOCKER_HOST": url, **({"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": tls_dir} if tls_dir else {})}


def fetch_receipt(lane: FleetLane, remote_path: str, into: Path) -> Path:
    """A receipt of a lane over ssh with everything beside it; the path of its copy. Raises HostError.

    Only regular files of the receipt's own stem are taken, by their bare names.
    """
    folder, _, name = remote_path.rpartition("/")
    stem = name.removesuffix(".intoto.json")
    directory = shlex.quote(lane.place.directory)
    pattern = f"{shlex.quote(stem)}.*"
    remote = f"cd {directory} && cd {shlex.quote(folder or '.')} && exec tar -cf - {pattern}"
    data = _run((*SSH, str(lane.place.ssh), remote))
    into.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                taken = archive.extractfile(member) if member.isreg() else None
                if taken is not None and member.name.startswith(f"{stem}.") and "/" not in member.name:
                    (into / member.name).write_bytes(taken.read())
    except tarfile.TarError as error:
        raise HostError(f"what {lane.place.told} sent is no archive: {error}", "run the lane again") from error
    if not (into / name).is_file():
        raise HostError(f"{lane.place.told} gave no receipt {name}", "run the lane again")
    return into / name


def _run(argv: Sequence[str]) -> bytes:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=FETCH_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"cannot fetch a receipt: {error}", "check the connection, then run the lane again") from error
    if done.returncode != 0 or len(done.stdout) > MAX_FETCHED:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise HostError(f"cannot fetch a receipt: {said[0]}", "check the connection, then run the lane again")
    return done.stdout
