"""A resolved profile as YAML text that another machine can load without its parents. Pure."""

from typing import Any

import yaml

from ninfer_lifecycle.profiles.schema import Profile


def profile_text(profile: Profile, lane: str) -> str:
    """YAML of `profile` on another lane: loading it gives the same profile, but for the lane."""
    value: dict[str, Any] = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    value["lane"] = lane
    value["flags"] = profile.flags_set()
    if profile.host.cpus is not None:
        value["host"]["cpus"] = f"{profile.host.cpus // 1000}.{profile.host.cpus % 1000:03d}"
    return yaml.safe_dump(value, sort_keys=True, allow_unicode=True)
