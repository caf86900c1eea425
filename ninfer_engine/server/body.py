"""Reading a request body: bounded, strict JSON, strict models. What is wrong is an ApiError that names its place."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.server.errors import ApiError, ClientGoneError, invalid, unsupported

MAX_DEPTH = 100
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Body(BaseModel):
    """A request body or a part of one: no coercion, no unknown field, no NaN."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


M = TypeVar("M", bound=BaseModel)


def only(*allowed: str | bool, why: str) -> BeforeValidator:
    """Marks a field of the public API that is done at these values alone; others are refused as unsupported, with why.
    What is of another type is left to the field."""

    def check(value: Any) -> Any:
        if type(value) is type(allowed[0]) and value not in allowed:
            raise PydanticCustomError("unsupported", "{why}", {"why": why})
        return value

    return BeforeValidator(check)


def documented_as(kind: Any) -> BeforeValidator:
    """Marks a field that is read by code of ours: `kind` is what the OpenAPI document says of it."""
    return BeforeValidator(lambda value: value, json_schema_input_type=kind)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises request_too_large (without reading on) and ClientGoneError."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, an object, no key twice, no NaN or infinity, no lone surrogate, at most MAX_DEPTH deep."""
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except RecursionError:
        raise _bad_json(f"nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise _bad_json("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError as error:
        raise _bad_json(str(error) if isinstance(error, _StrictError) else "a number is out of range") from None
    if not isinstance(value, dict):
        raise _bad_json("the body must be a JSON object")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise _bad_json(f"nested deeper than {MAX_DEPTH} levels")
    if _SURROGATE.search(raw):
        _refuse_lone_surrogates(value)
    return value


class _StrictError(ValueError):
    """A reason of ours, safe to show."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _StrictError("an object has the same key twice")
    return made


def _no_constant(name: str) -> NoReturn:
    raise _StrictError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _StrictError("a number is out of range")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [value]
    for _ in range(limit + 1):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> list[Any]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in inner if isinstance(child, dict | list)]


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _bad_json("a string holds half of a surrogate pair") from None


def _bad_json(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_JSON, f"the body could not be read as JSON: {why}")


def _too_large(limit: int) -> ApiError:
    return ApiError(ErrorCode.REQUEST_TOO_LARGE, f"the body is larger than {limit} bytes; send less in one request")


def validate(model: type[M], value: Any, at: str = "", only: Mapping[str, tuple[Any, ...]] | None = None) -> M:
    """`value` as `model`, or the first thing wrong with it, `param` being its path under `at`.

    only: fields of the public API that are accepted at these values alone (what leaving them out would mean) and then
    dropped; any other value is refused as unsupported, by name.
    """
    if only and isinstance(value, dict):
        value = _drop_defaults(value, at, only)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _first(error, at) from None


def _drop_defaults(value: dict[str, Any], at: str, only: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    for name in value.keys() & only.keys():
        given = value[name]
        if given is None or any(type(given) is type(allowed) and given == allowed for allowed in only[name]):
            continue
        allowed_text = ", ".join(json.dumps(item) for item in only[name]) or "null"
        raise unsupported(_path(at, (name,)), f"leave it out, or send {allowed_text}")
    return {name: item for name, item in value.items() if name not in only}


def _first(error: ValidationError, at: str) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = _path(at, first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return ApiError(ErrorCode.UNKNOWN_PARAMETER, f"unknown parameter: {path}", path)
        case "unsupported":
            return unsupported(path, first["msg"])
        case "none_required":
            return unsupported(path, "leave it out")
        case "missing":
            return invalid(f"{path} is required", path)
        case _:
            return invalid(f"{path}: {first['msg']}", path or None)


def _path(at: str, loc: tuple[int | str, ...]) -> str:
    path = at
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path[:200]


def query_values(request: Request, allowed: frozenset[str]) -> dict[str, str]:
    """The query parameters; one that the route does not know, or that comes twice, is refused."""
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            raise ApiError(ErrorCode.UNKNOWN_PARAMETER, f"unknown query parameter: {name[:64]}", name[:64])
        if name in values:
            raise invalid(f"{name} is given twice", name)
        values[name] = value
    return values
