"""Locks of profiles: made from parts, read from files, compared with each other and with what a profile is now."""

from pathlib import Path

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.configuration import ProfileLock, build_configuration, build_lock
from ninfer_lifecycle.profiles.schema import Profile

LOCK_SUFFIX = ".lock.json"
_MAX_BYTES = 4 * 2**20


def lock_profile(
    profile: Profile, model_sha256: str, image: str | None, engine_tree_sha256: str | None = None
) -> ProfileLock:
    """The lock of a profile on these parts. image: sha256:<64 hex>, None outside containers; then the tree is given."""
    return build_lock(profile, build_configuration(profile, model_sha256, image, engine_tree_sha256))


def locked_as(profile: Profile, lock: ProfileLock) -> ProfileLock:
    """What the lock of `profile` would be on the parts of `lock`; where the two are equal, it is this profile's."""
    parts = lock.configuration
    return lock_profile(profile, profile.model.sha256 or parts.model_sha256, parts.image, parts.engine_tree_sha256)


def read_profile_lock(path: Path) -> ProfileLock:
    """The lock in a file. UsageError when it is none, when a digest in it is not that of its part, or when its bytes
    are not canonical: then it would have another digest than the receipt names.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        document = ProfileLock.model_validate_json(data).checked()
        if document.canonical() != data:
            raise ValueError("its bytes are not canonical")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no lock file: {error}", "`ninfer profile lock` writes one") from error
    return document


def parts_of_lock(lock: ProfileLock) -> dict[str, str]:
    """Every part that the lock pins, by digest. policy: probe plan and gates, which a receipt is held to."""
    configuration = lock.configuration
    parts = {
        "lock": lock.sha256, "configuration": lock.configuration_sha256, "model": configuration.model_sha256,
        "image": (configuration.image or "").removeprefix("sha256:"), "engineTree": configuration.engine_tree_sha256,
        "probes": lock.probes_sha256, "gates": lock.gates_sha256, "corpus": lock.corpus_sha256,
    }
    return {name: digest for name, digest in parts.items() if digest}


def is_lock_file(name: str) -> bool:
    """Whether a person means a lock file, not a profile."""
    return name.endswith(".json")
