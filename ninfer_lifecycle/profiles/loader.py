"""From a name or a path to a resolved profile: search, inheritance, merging, validation with positions.

A child's mapping is merged into its parent's key by key, all the way down; a list or a scalar replaces; null puts a
flag back to the engine's default. Every problem of a file is reported at once, each with file, line and column.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.schema import HOST_SET_FLAGS, Profile
from ninfer_lifecycle.profiles.yaml_source import KeyPath, Located, Position, read_mapping
from ninfer_lifecycle.text import did_you_mean

PACKAGED = Path(__file__).parent / "packaged"
_SUFFIXES = (".yaml", ".yml")
_MAX_PARENTS = 16


class ProfileError(UsageError):
    """A profile that breaks the schema; `problems` are whole lines, each beginning with a position."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems), "`ninfer profile validate` checks again")
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class LoadedProfile:
    """A profile and the files that it came from: the profile's own first, then its parents."""

    profile: Profile
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A profile file on the search path; `shadowed_by` is an earlier file of the same name."""

    name: str
    path: Path
    shadowed_by: Path | None = None


def search_path(directory: Path | None = None) -> tuple[Path, ...]:
    """Where names are looked up, first match wins: ./profiles, then the packaged profiles."""
    return ((directory or Path.cwd()) / "profiles", PACKAGED)


def list_profiles(path: Sequence[Path] | None = None) -> list[ProfileEntry]:
    """Every profile file on the search path, by name; a shadowed one of other content is listed too."""
    seen: dict[str, Path] = {}
    entries: list[ProfileEntry] = []
    for folder in search_path() if path is None else path:
        for file in sorted(folder.glob("*")) if folder.is_dir() else ():
            if file.suffix not in _SUFFIXES or not file.is_file():
                continue
            first = seen.setdefault(file.stem, file)
            if first == file:
                entries.append(ProfileEntry(file.stem, file))
            elif first.read_bytes() != file.read_bytes():
                entries.append(ProfileEntry(file.stem, file, shadowed_by=first))
    return sorted(entries, key=lambda entry: entry.name)


def find_profile(name: str, path: Sequence[Path] | None = None, beside: Path | None = None) -> Path:
    """The file of a name or a path. beside: directory that a relative path and a name start from (a child's own).

    Raises UsageError with the nearest name.
    """
    if "/" in name or name.endswith(_SUFFIXES):
        file = ((beside or Path()) / Path(name).expanduser())
        if not file.is_file():
            raise UsageError(f"no profile file {file}", "give the path of a YAML file, or a name from "
                             "`ninfer profile list`")
        return file
    folders = [beside, *(search_path() if path is None else path)] if beside else list(path or search_path())
    for folder in folders:
        for suffix in _SUFFIXES:
            if folder is not None and (folder / (name + suffix)).is_file():
                return folder / (name + suffix)
    known = [entry.name for entry in list_profiles(path)]
    raise UsageError(f"no profile named {name!r}{did_you_mean(name, known)}",
                     "`ninfer profile list` shows every profile; a path to a YAML file works too")


def load_profile(name: str, path: Sequence[Path] | None = None) -> LoadedProfile:
    """Find, resolve and validate. Raises UsageError, ProfileSyntaxError or ProfileError."""
    file = find_profile(name, path)
    located, files = _resolve(file, path, (), None)
    return LoadedProfile(_validate(located), files)


def _resolve(
    file: Path, path: Sequence[Path] | None, children: tuple[Path, ...], named_at: Position | None
) -> tuple[Located, tuple[Path, ...]]:
    """The mapping of `file` with its parents merged in, `extends` taken out."""
    real = file.resolve()
    if real in children:
        chain = " -> ".join(child.name for child in (*children[children.index(real):], real))
        raise UsageError(f"{named_at or file}: profiles extend each other in a circle: {chain}",
                         "take one `extends` out")
    if len(children) >= _MAX_PARENTS:
        raise UsageError(f"{file}: more than {_MAX_PARENTS} profiles extend each other", "make the chain shorter")
    located = _normalised(read_mapping(file))
    parent = located.value.pop("extends", None)
    if parent is None:
        return located, (file,)
    where = located.position(("extends",))
    if not isinstance(parent, str) or not parent:
        raise UsageError(f"{where}: extends takes the name or path of one profile", "write extends: NAME")
    try:
        parent_file = find_profile(parent, path, beside=file.parent)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.advice) from error
    inherited, files = _resolve(parent_file, path, (*children, real), where)
    if "name" not in located.value:
        raise UsageError(f"{file}: no name", "a profile that extends another has a name of its own")
    return _merged(inherited, located), (file, *files)


def _normalised(located: Located) -> Located:
    """Flag names in snake spelling; the same flag in both spellings is refused."""
    flags = located.value.get("flags")
    if not isinstance(flags, dict):
        return located
    renamed: dict[str, Any] = {}
    positions = dict(located.positions)
    for name, value in flags.items():
        snake = name.removeprefix("--").replace("-", "_")
        where = located.positions[("flags", name)]
        if snake in renamed:
            raise ProfileError([f"{where}: flag {name!r} a second time, in another spelling "
                                f"(first at {positions[('flags', snake)]})"])
        renamed[snake] = value
        positions[("flags", snake)] = where
    return Located({**located.value, "flags": renamed}, positions)


def _merged(parent: Located, child: Located) -> Located:
    return Located(_merge_values(parent.value, child.value), {**parent.positions, **child.positions})


def _merge_values(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(parent)
    for key, value in child.items():
        inherited = result.get(key)
        both = isinstance(inherited, dict) and isinstance(value, dict)
        result[key] = _merge_values(inherited, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return result


def _validate(located: Located) -> Profile:
    """The typed profile. Validated as strict JSON, so that no text turns into a number and no number into a switch."""
    value = dict(located.value)
    problems = _host_set_flags(located)
    if isinstance(value.get("flags"), dict):
        value["flags"] = {name: given for name, given in value["flags"].items()
                          if given is not None or name not in EngineFlags.model_fields}
    try:
        profile = Profile.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ProfileError(problems + _problems(error.errors(include_url=False), located)) from None
    if problems:
        raise ProfileError(problems)
    return profile


def _host_set_flags(located: Located) -> list[str]:
    flags = located.value.get("flags")
    if not isinstance(flags, dict):
        return []
    return [f"{located.position(('flags', name))}: flags.{name} is not a profile's to set: {HOST_SET_FLAGS[name]}"
            for name in flags if name in HOST_SET_FLAGS]


def _problems(errors: Sequence[ErrorDetails], located: Located) -> list[str]:
    """One line a wrong key, in the order of the files; the branches of a union are one line."""
    by_path: dict[KeyPath, list[str]] = {}
    for error in errors:
        path = _written_part(error["loc"], located)
        text = _unknown_key(error["loc"]) if error["type"] == "extra_forbidden" else _text(error)
        by_path.setdefault(path, []).append(text)
    lines = []
    for path in sorted(by_path, key=lambda path: _reading_order(located.position(path))):
        where = ".".join(str(part) for part in path)
        texts = ", or ".join(dict.fromkeys(by_path[path]))
        lines.append(f"{located.position(path)}: {where + ': ' if where else ''}{texts}")
    return lines


def _reading_order(where: Position | None) -> tuple[str, int, int]:
    return (where.file, where.line, where.column) if where else ("", 0, 0)


def _text(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return f"{error['loc'][-1]} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _written_part(loc: KeyPath, located: Located) -> KeyPath:
    """`loc` cut down to what stands in a file: pydantic adds the branch of a union, and keys that are missing."""
    for length in range(len(loc), 0, -1):
        if loc[:length] in located.positions:
            return loc[:length]
    return ()


def _unknown_key(loc: KeyPath) -> str:
    known = _known_keys(loc[:-1])
    return f"unknown {'flag' if loc[0] == 'flags' else 'key'}{did_you_mean(str(loc[-1]), known)}"


def _known_keys(path: KeyPath) -> list[str]:
    """The keys that the schema knows inside `path`."""
    model: type[BaseModel] = Profile
    for part in path:
        inner = _field_model(model, str(part))
        if inner is None:
            return []
        model = inner
    names = [info.alias or name for name, info in model.model_fields.items()] + ([] if path else ["extends"])
    return [name for name in names if name not in HOST_SET_FLAGS] if model is EngineFlags else names


def _field_model(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    for name, info in model.model_fields.items():
        if key == (info.alias or name):
            candidates = (info.annotation, *get_args(info.annotation))
            return next((item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)), None)
    return None
