"""Profiles to render, and what they should become: `python tests/releases/render_cases.py` writes the files anew."""

import sys
from pathlib import Path

from ninfer_lifecycle.profiles.configuration import ProfileLock
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.render.deployment import Deployment, Places, deployment_of
from ninfer_lifecycle.render.files import Kind, render

GOLDEN = Path(__file__).parents[1] / "data" / "render"
PLAIN = """
schemaVersion: 1
name: plain
lane: tiny
model: {source: tiny, id: tiny}
flags: {max-context: 8192, expected-forks: 4}
probes: {sizes: [512]}
"""
GPUS = """
schemaVersion: 1
name: two-gpus
lane: rtx
model: {source: path, path: /srv/models/some model, id: big, sha256: "MODEL"}
image: {repository: registry.example/ninfer, digest: "sha256:IMAGE"}
flags: {device: cuda, max-context: 131072}
host: {kind: docker, memory: 64g, cpus: 3.5, shm: 1g, gpus: [GPU-1, GPU-2], readySeconds: 900, stopSeconds: 300}
probes: {sizes: [57853]}
""".replace("MODEL", "a" * 64).replace("IMAGE", "d" * 64)
ALL_GPUS = GPUS.replace("two-gpus", "all-gpus").replace("[GPU-1, GPU-2]", "all").replace("some model", "m")
LIMITS = PLAIN.replace("plain", "limits").replace(
    "probes:", "host: {memory: 1g, tmpfs: 64m, shm: 32m, ulimits: {nofile: 65536, memlock: -1}}\nprobes:")
BOXED = GPUS.replace("two-gpus", "boxed").replace(
    "shm: 1g", "shm: 1g, runtime: nvidia, seccomp: /etc/ninfer/seccomp.json, ulimits: {memlock: -1}")
"""With what only a container of one machine can be told."""
PROFILES = {"plain": PLAIN, "two-gpus": GPUS, "all-gpus": ALL_GPUS, "limits": LIMITS}
ON_ONE_MACHINE = (Kind.COMPOSE, Kind.SYSTEMD_DOCKER)


def deployment(name: str, folder: Path, *, locked: bool = True, image: str | None = None) -> Deployment:
    """A profile on /srv/model, with its lock where `locked`. image: the lock's image id."""
    path = folder / f"{name}.yaml"
    path.write_text({**PROFILES, "boxed": BOXED}[name])
    profile = load_profile(str(path)).profile
    lock: ProfileLock | None = lock_profile(profile, profile.model.sha256 or "b" * 64, image or "sha256:" + "e" * 64,
                                            None) if locked else None
    places = Places(profile.model.path or "/srv/model", lock_file="/etc/ninfer/profile.lock.json" if locked else None)
    return deployment_of(profile, places, lock)


def cases(folder: Path) -> dict[str, str]:
    """Every golden file by name."""
    made = {}
    wanted = [(name, kind) for name in PROFILES for kind in Kind] + [("boxed", kind) for kind in ON_ONE_MACHINE]
    for name, kind in wanted:
        suffix = "service" if kind.value.startswith("systemd") else "yaml"
        made[f"{name}.{kind.value}.{suffix}"] = render(kind, deployment(name, folder, locked=is_locked(name)))
    return made


def is_locked(name: str) -> bool:
    """Whether a profile is rendered with a lock: where no repository digest names the image, a swarm takes none."""
    return name not in {"plain", "limits"}


if __name__ == "__main__":
    import tempfile
    GOLDEN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for file, text in cases(Path(place)).items():
            (GOLDEN / file).write_text(text)
            sys.stdout.write(f"{file}\n")
