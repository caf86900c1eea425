"""What a command line changes in a profile for one run. The lock document, and so the receipt, is of the result."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from ninfer_engine.contract.flags import EngineFlags, option_name
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.schema import HOST_SET_FLAGS, ProbeSection, Profile
from ninfer_lifecycle.text import did_you_mean


def parse_engine_flags(given: Sequence[str]) -> dict[str, Any]:
    """`max-context=8192`, `no-prefix-reuse` or `--no-prefix-reuse`, by snake name. Raises UsageError."""
    flags: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        snake = name.strip().removeprefix("--").replace("-", "_")
        if snake in HOST_SET_FLAGS:
            raise UsageError(f"--engine-flag {text}: {option_name(snake)} is not yours to set here",
                             HOST_SET_FLAGS[snake])
        if snake not in EngineFlags.model_fields:
            raise UsageError(f"--engine-flag {text}: the engine has no flag {name!r}"
                             f"{did_you_mean(snake, settable())}",
                             "`ninfer-engine serve --help` lists its flags; write NAME=VALUE, or NAME for a switch")
        flags[snake] = yaml.safe_load(value) if equals else True
    return flags


def settable() -> list[str]:
    """The flags that a command line may set, as people write them."""
    return [option_name(name).removeprefix("--") for name in EngineFlags.model_fields if name not in HOST_SET_FLAGS]


def parse_sizes(text: str) -> tuple[int, ...]:
    """`512,1024` as token counts. Raises UsageError."""
    try:
        return tuple(int(part.replace("_", "")) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"--sizes {text}: not a list of token counts", "write them as 512,1024,2048") from None


def overridden(profile: Profile, flags: Mapping[str, Any], probes_changes: Mapping[str, Any]) -> Profile:
    """The profile with these flags and probe settings in place of its own, checked as if they were written in it."""
    try:
        engine = EngineFlags.model_validate({**profile.flags_set(), **flags})
        probes = ProbeSection.model_validate({**profile.probes.model_dump(by_alias=True), **probes_changes})
        # Sections are given as they are, not as a dump: cpus is written in one unit and held in another.
        return Profile.model_validate({
            **{info.alias or name: getattr(profile, name) for name, info in Profile.model_fields.items()},
            "flags": engine, "probes": probes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}",
                         "correct what was given by --engine-flag, --sizes, --baseline or --minutes") from None
