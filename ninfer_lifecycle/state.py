"""Where this machine keeps its own keys and models."""

import os
from pathlib import Path


def default_state_dir() -> Path:
    """NINFER_STATE_DIR, or the place that the XDG rules name."""
    given = os.environ.get("NINFER_STATE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ninfer"


def own_public_key() -> Path:
    """The public half of the key that `ninfer qualify` signs with when it is given none."""
    return default_state_dir() / "keys" / "qualifier.pub"
