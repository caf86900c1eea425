"""A world a test, taken down at its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from release_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()
