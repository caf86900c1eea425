"""The metadata of a GGUF file as a config.json document: sizes only, read without the file's tensors.

Layout as the GGUF specification has it (versions 2 and 3, little-endian): magic, version, number of tensors, number of
values; then a value each: name, type, content.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from ninfer_lifecycle.errors import UsageError

MAGIC = b"GGUF"
_NUMBERS: Mapping[int, str] = MappingProxyType(
    {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"})
_TEXT, _ARRAY = 8, 9
_LONGEST = 1 << 24  # bytes of a text, entries of an array: more is damage
_SIZES: Mapping[str, str] = MappingProxyType({
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "head_dim": "attention.key_length",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "full_attention_interval": "full_attention_interval",
})


class _DamagedError(Exception):
    """The file is no GGUF file, or ends too soon."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def gguf_document(path: Path) -> dict[str, Any]:
    """What a config.json of the same model says of its sizes; what the file lacks is left out. Raises UsageError."""
    try:
        with path.open("rb") as file:
            values = _values(file)
    except (_DamagedError, struct.error, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read as GGUF: {error}", "fetch the file again") from None
    name = values.get("general.architecture")
    found: dict[str, Any] = {"model_type": name}
    found |= {ours: values[key] for ours, theirs in _SIZES.items() if (key := f"{name}.{theirs}") in values}
    heads = values.get(f"{name}.attention.head_count_kv")
    # Some converters write a number a layer, zero where a layer has no keys.
    found["num_key_value_heads"] = max(heads, default=None) if isinstance(heads, list) else heads
    inner, count = values.get(f"{name}.ssm.inner_size"), values.get(f"{name}.ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(count, int) and count > 0:
        found["linear_value_head_dim"] = inner // count
    return found


def _values(file: BinaryIO) -> dict[str, Any]:
    magic, version, _, count = struct.unpack("<4sIQQ", _read(file, 24))
    if magic != MAGIC or version not in (2, 3):
        raise _DamagedError(f"it begins with {magic!r}, version {version}")
    values: dict[str, Any] = {}
    for _ in range(count):
        name = _text(file)
        values[name] = _value(file, _number(file, "<I"))
    return values


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _ARRAY:
        inner, count = _number(file, "<I"), _length(file)
        if inner == _ARRAY:
            raise _DamagedError("an array holds arrays")
        return [_value(file, inner) for _ in range(count)]
    if kind not in _NUMBERS:
        raise _DamagedError(f"there is no type {kind}")
    return _number(file, _NUMBERS[kind])


def _text(file: BinaryIO) -> str:
    return _read(file, _length(file)).decode("utf-8", "replace")


def _length(file: BinaryIO) -> int:
    length = int(_number(file, "<Q"))
    if length > _LONGEST:
        raise _DamagedError(f"a text or an array has {length} entries")
    return length


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, _read(file, struct.calcsize(form)))[0]


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise _DamagedError("it ends within its metadata")
    return data
