"""The JSON Schema of a profile *file*, for editors: derived from the models, plus what a file may write otherwise.

A file differs from the resolved profile: it may inherit, and then leave out anything but its name; flags come in snake
or kebab spelling, and null puts one back to the engine's default; sizes have units. What joins several keys (templates
must fit the context) only `ninfer profile validate` checks.
"""

import copy
from typing import Any

from ninfer_lifecycle.profiles.schema import HOST_SET_FLAGS, Profile

SCHEMA_ID = "https://ninfer.dev/schemas/profile-v1.json"
_SIZE = {"anyOf": [{"type": "integer", "minimum": 1},
                   {"type": "string", "pattern": r"^\s*[0-9]+\s*([kKmMgGtT]([iI]?[bB])?|[bB])?\s*$"},
                   {"type": "null"}]}
_CPUS = {"anyOf": [{"type": "number", "exclusiveMinimum": 0},
                   {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]{1,3})?\s*$"}, {"type": "null"}]}


def profile_schema() -> dict[str, Any]:
    """The schema, draft 2020-12. Every call gives a new value."""
    schema = copy.deepcopy(Profile.model_json_schema(by_alias=True))
    parts = schema["$defs"]
    parts["EngineFlags"] = _flags(parts["EngineFlags"])
    parts["HostSection"]["properties"].update(
        memory=_described(_SIZE, "memory of the container, as 8g or 512m"),
        shm=_described(_SIZE, "shared memory, as 256m"), cpus=_described(_CPUS, "CPUs, as 2 or 1.5"))
    whole = {name: part.pop("required", []) for name, part in parts.items()}
    required = schema.pop("required")
    schema["properties"]["extends"] = {"type": "string", "minLength": 1,
                                       "description": "name or path of the profile that this one inherits from"}
    schema["required"] = ["name"]
    schema["if"] = {"not": {"required": ["extends"]}}
    schema["then"] = {"required": required, "properties": {
        key: {"required": whole[name]} for key, name in _sections(schema).items() if whole[name]}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


def _flags(part: dict[str, Any]) -> dict[str, Any]:
    """Flags that a profile may set, in both spellings."""
    properties: dict[str, Any] = {}
    for name, told in part["properties"].items():
        if name in HOST_SET_FLAGS:
            continue
        described = {key: told[key] for key in ("description", "default") if key in told}
        kind = {key: value for key, value in told.items() if key not in ("description", "default", "role", "title")}
        nullable = kind if {"type": "null"} in kind.get("anyOf", []) else {"anyOf": [kind, {"type": "null"}]}
        for spelling in dict.fromkeys((name.replace("_", "-"), name)):
            properties[spelling] = {**described, **nullable}
    return {**part, "properties": properties}


def _described(kind: dict[str, Any], text: str) -> dict[str, Any]:
    return {**kind, "description": text, "default": None}


def _sections(schema: dict[str, Any]) -> dict[str, str]:
    """Keys of the profile that are sections of their own, with the name of their definition."""
    return {key: told["$ref"].rsplit("/", 1)[1] for key, told in schema["properties"].items() if "$ref" in told}
