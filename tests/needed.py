"""Programs that some tests hold our output against: browsers, promtool, docker-compose, OpenSSL."""

import os
import shutil
from typing import NoReturn

import pytest

REQUIRED = "NINFER_REQUIRE_TOOLS"


def needed(package: str, *programs: str) -> str:
    """The first of these programs that is installed, else `absent`. package: Debian's, that brings it."""
    found = next((path for program in programs or (package,) if (path := shutil.which(program))), None)
    return found if found is not None else absent(f"{' or '.join(programs or (package,))} (Debian: {package})")


def absent(what: str) -> NoReturn:
    """Skips the test, saying why; fails it where NINFER_REQUIRE_TOOLS says that nothing may be missing, as in CI."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{what} is not installed, and {REQUIRED} is set")
    pytest.skip(f"{what} is not installed")
