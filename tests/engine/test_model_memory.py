"""A prompt's memory: what its keys and values take, and a constant that docs/models.md states."""

import json
import subprocess
import sys
from pathlib import Path

from model_cases import tiny_directory

SCRIPT = Path(__file__).with_name("prefill_peak.py")
CHUNK = 1024
CONSTANT = 64 << 20  # docs/models.md
GROWTH = 12 << 20  # slack of the allocator, page tables; scores of 1,024 by 16,384 tokens would be 64 MiB a head


def rise_beyond_kv(tokens: int) -> int:
    done = subprocess.run([sys.executable, str(SCRIPT), str(tiny_directory()), str(tokens), str(CHUNK)],
                          check=True, capture_output=True, text=True, timeout=280)
    told = json.loads(done.stdout)
    assert told["rise"] > told["kv"], "the keys and values themselves were written"
    return int(told["rise"] - told["kv"])


def test_a_long_prompt_takes_its_keys_and_values_and_a_constant_whatever_its_length() -> None:
    short, long = rise_beyond_kv(4096), rise_beyond_kv(16384)
    assert short <= CONSTANT
    assert long <= CONSTANT
    assert long - short <= GROWTH
