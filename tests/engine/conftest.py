"""Fixtures of the server tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_harness import Served, running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server without a key."""
    with running(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for the tests of one module that leave nothing behind."""
    with running(tmp_path_factory.mktemp("shared")) as server:
        yield server
