"""A configuration: everything that decides what an engine answers, how fast and how much it holds, by digest.

Its identity is the SHA-256 of its canonical JSON. A profile's name, lane, description, host, probes and gates are not
in it: two profiles that start the same engine have one identity. The lock document is what a receipt is about: the
configuration with the digests of the probe plan, its corpus and the gates.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from ninfer_engine.contract.base import Document, Sha256Hex, canonical_json, sha256_hex
from ninfer_engine.contract.flags import EngineFlags, identity_flags
from ninfer_lifecycle.profiles.schema import Profile

ImageDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Configuration(Document):
    """The identity part. flags: every identity flag, defaults included. image: digest, None outside containers.

    engine_tree_sha256: digest of the installed engine where no image pins it, None where it is not known.
    """

    schema_version: Literal[1] = 1
    flags: dict[str, Any]
    image: ImageDigest | None
    model_sha256: Sha256Hex
    engine_tree_sha256: Sha256Hex | None = None

    def canonical(self) -> bytes:
        """The bytes that the identity is taken of."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def identity_sha256(self) -> str:
        """64 hex digits; what --config-sha256 gives to the engine and the status document echoes."""
        return sha256_hex(self.canonical())


class ProfileLock(Document):
    """The lock document. `canonical()` are the bytes of `NAME.lock.json`, the one subject of a receipt.

    configuration_sha256 repeats the identity, so that a reader need not compute it; `checked` does. corpus_sha256:
    digest of the template corpus, None when the plan alone decides it (seed and generator).
    """

    artifact_type: Literal["ninfer_profile_lock"] = "ninfer_profile_lock"
    schema_version: Literal[1] = 1
    configuration: Configuration
    configuration_sha256: Sha256Hex
    probes: dict[str, Any]
    probes_sha256: Sha256Hex
    gates: dict[str, Any]
    gates_sha256: Sha256Hex
    corpus_sha256: Sha256Hex | None = None

    def canonical(self) -> bytes:
        """Canonical JSON of the whole document; what is None is written as null."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def sha256(self) -> str:
        """Digest of the lock's bytes."""
        return sha256_hex(self.canonical())

    def checked(self) -> "ProfileLock":
        """This lock, when each digest in it is that of its part. Raises ValueError naming the first that is not."""
        parts = {
            "configuration_sha256": (self.configuration_sha256, self.configuration.identity_sha256),
            "probes_sha256": (self.probes_sha256, sha256_hex(canonical_json(self.probes))),
            "gates_sha256": (self.gates_sha256, sha256_hex(canonical_json(self.gates))),
        }
        for name, (said, computed) in parts.items():
            if said != computed:
                raise ValueError(f"{name} is {said} and the part's digest is {computed}")
        return self


def configured_flags(profile: Profile, model_sha256: str) -> EngineFlags:
    """The profile's flags with what the model section says: public id and expected digest."""
    return profile.flags.model_copy(update={"model_id": public_model_id(profile), "model_sha256": model_sha256})


def public_model_id(profile: Profile) -> str:
    """The name that the engine serves the model under; never derived from where the model happens to lie."""
    return profile.model.id or ("ninfer-tiny" if profile.model.source == "tiny" else profile.name)


def build_configuration(
    profile: Profile, model_sha256: str, image: str | None = None, engine_tree_sha256: str | None = None
) -> Configuration:
    """The configuration of a profile on given parts. image: sha256:<64 hex>, as the container engine reports it."""
    return Configuration(flags=identity_flags(configured_flags(profile, model_sha256)), image=image,
                         model_sha256=model_sha256, engine_tree_sha256=engine_tree_sha256)


def build_lock(profile: Profile, configuration: Configuration, corpus_sha256: str | None = None) -> ProfileLock:
    """The lock document of a profile and its configuration."""
    probes = profile.probes.model_dump(mode="json", by_alias=True)
    gates = profile.gates.model_dump(mode="json", by_alias=True)
    return ProfileLock(
        configuration=configuration, configuration_sha256=configuration.identity_sha256,
        probes=probes, probes_sha256=sha256_hex(canonical_json(probes)),
        gates=gates, gates_sha256=sha256_hex(canonical_json(gates)), corpus_sha256=corpus_sha256,
    )
