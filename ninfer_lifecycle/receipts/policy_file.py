"""Reading a release policy: YAML with unknown keys refused; the file's bytes are what a decision names by digest."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.gates.release import ReleasePolicy
from ninfer_lifecycle.receipts.attachments import first_error
from ninfer_lifecycle.receipts.times import parse_span

_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True)
class PolicyFile:
    """A release policy with the bytes that it was read from."""

    name: str
    raw: bytes
    policy: ReleasePolicy


def default_policy() -> PolicyFile:
    """The policy in the package."""
    name = "default-release-policy.yaml"
    return parse_policy(name, (files("ninfer_lifecycle.gates") / "data" / name).read_bytes())


def load_policy(path: Path) -> PolicyFile:
    """The policy in a file. Raises UsageError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Give a policy file, or leave --policy out.") from None
    return parse_policy(path.name, raw)


def parse_policy(name: str, raw: bytes) -> PolicyFile:
    """The policy in `raw`. Raises UsageError naming the key that is wrong."""
    advice = "See docs/receipts.md, or start from the default: ninfer gate --show-default-policy"
    if len(raw) > _MAX_BYTES:
        raise UsageError(f"{name} is too large for a policy", advice)
    try:
        value = yaml.load(raw, Loader=_Loader)  # noqa: S506  a SafeLoader that refuses doubled keys
        policy = ReleasePolicy.model_validate_json(json.dumps(value), strict=True)
        if policy.max_age is not None:
            parse_span(policy.max_age)
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML: {' '.join(str(error).split())[:200]}", advice) from None
    except ValidationError as error:
        raise UsageError(f"{name}: {first_error(error)}", advice) from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}", advice) from None
    return PolicyFile(name, raw, policy)


class _Loader(yaml.SafeLoader):
    """YAML where a key stands once."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} stands twice", node.start_mark)
    return dict(yaml.SafeLoader.construct_mapping(loader, node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
