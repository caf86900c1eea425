"""What differs between two JSON documents, one line a leaf. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT = object()


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """`path: left -> right` for each leaf that differs, by path; a leaf on one side only is `(absent)` on the other."""
    leaves_left, leaves_right = dict(_leaves(left, "")), dict(_leaves(right, ""))
    lines = []
    for path in sorted(leaves_left.keys() | leaves_right.keys()):
        before, after = leaves_left.get(path, _ABSENT), leaves_right.get(path, _ABSENT)
        if _text(before) != _text(after):
            lines.append(f"{path}: {_text(before)} -> {_text(after)}")
    return lines


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Mappings are opened; lists are leaves, since their order is part of what they say."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _text(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, sort_keys=True, ensure_ascii=False)
