"""YAML as plain values plus the position of each key, from the safe loader's node graph.

Refused, with file, line and column: duplicate keys, keys that are not text, aliases and merge keys (a profile inherits
by `extends`), tags, more than one document, files above 1 MiB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ninfer_lifecycle.errors import UsageError

KeyPath = tuple[str | int, ...]
MAX_PROFILE_BYTES = 2**20
MAX_DEPTH = 16
_OPENING = (yaml.BlockMappingStartToken, yaml.BlockSequenceStartToken, yaml.FlowMappingStartToken,
            yaml.FlowSequenceStartToken)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)


@dataclass(frozen=True, slots=True)
class Position:
    """Where something stands in a file; line and column count from one."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Located:
    """Plain values (dict, list, str, int, float, bool, None) and, by key path, where each was written."""

    value: dict[str, Any]
    positions: Mapping[KeyPath, Position]

    def position(self, path: KeyPath) -> Position | None:
        """The position of `path`, or of the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if found := self.positions.get(path[:length]):
                return found
        return None


class ProfileSyntaxError(UsageError):
    """A profile that is no YAML mapping of the kind described above."""


def read_mapping(file: Path) -> Located:
    """The mapping in `file`. Raises ProfileSyntaxError or UsageError (cannot be read)."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read profile {file}: {error.strerror}", "give a name from `ninfer profile list`, or "
                         "the path of a YAML file") from error
    if len(data) > MAX_PROFILE_BYTES:
        raise ProfileSyntaxError(f"{file}: a profile of more than 1 MiB", "a profile is a short YAML file")
    return parse_mapping(data, str(file))


def parse_mapping(data: bytes, file: str) -> Located:
    """The mapping in `data`; `file` names it in errors."""
    try:
        text = data.decode("utf-8")
        _refuse_tokens(text, file)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ProfileSyntaxError(f"{file}: not UTF-8 (byte {error.start})", "save the profile as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Position(file, mark.line + 1, mark.column + 1) if mark else file
        raise ProfileSyntaxError(f"{where}: {error.problem or 'not YAML'}", "fix the YAML there") from error
    except yaml.YAMLError as error:
        raise ProfileSyntaxError(f"{file}: not YAML: {error}", "fix the YAML") from error
    if not isinstance(root, yaml.MappingNode):
        raise ProfileSyntaxError(f"{file}:1:1: a profile is a mapping of keys to values",
                                 "start from one that `ninfer profile show NAME` prints")
    positions: dict[KeyPath, Position] = {(): Position(file, root.start_mark.line + 1, root.start_mark.column + 1)}
    value = _plain(root, (), file, positions)
    return Located(value, positions)


def _refuse_tokens(text: str, file: str) -> None:
    """Aliases, tags and deep nesting, before anything is built from them."""
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        where = Position(file, token.start_mark.line + 1, token.start_mark.column + 1)
        if isinstance(token, yaml.AliasToken | yaml.TagToken):
            what = "alias" if isinstance(token, yaml.AliasToken) else "tag"
            raise ProfileSyntaxError(f"{where}: a YAML {what}", "write the value out, or inherit with `extends`")
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > MAX_DEPTH:
            raise ProfileSyntaxError(f"{where}: more than {MAX_DEPTH} levels deep", "a profile is four levels deep")


def _plain(node: yaml.Node, path: KeyPath, file: str, positions: dict[KeyPath, Position]) -> Any:
    match node:
        case yaml.MappingNode():
            return _plain_mapping(node, path, file, positions)
        case yaml.SequenceNode():
            items: list[Any] = []
            for index, item in enumerate(node.value):
                positions[(*path, index)] = _position(item, file)
                items.append(_plain(item, (*path, index), file, positions))
            return items
        case _:
            return _scalar(node, file)


def _plain_mapping(
    node: yaml.MappingNode, path: KeyPath, file: str, positions: dict[KeyPath, Position]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = _position(key_node, file)
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise ProfileSyntaxError(f"{where}: a YAML merge key", "inherit with `extends`")
        key = _scalar(key_node, file) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise ProfileSyntaxError(f"{where}: a key that is not text", "put the key in quotes")
        if key in result:
            raise ProfileSyntaxError(f"{where}: key {key!r} a second time",
                                     f"the first is at {positions[(*path, key)]}; keep one of them")
        positions[(*path, key)] = where
        result[key] = _plain(value_node, (*path, key), file, positions)
    return result


def _scalar(node: yaml.Node, file: str) -> Any:
    """A scalar's value. Dates stay text: nothing in a profile is a date."""
    if node.tag == "tag:yaml.org,2002:timestamp":
        return str(node.value)
    constructor = yaml.SafeLoader("")
    try:
        return constructor.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise ProfileSyntaxError(f"{_position(node, file)}: {node.value!r} is no value", "put it in quotes") from error
    finally:
        constructor.dispose()


def _position(node: yaml.Node, file: str) -> Position:
    return Position(file, node.start_mark.line + 1, node.start_mark.column + 1)
