"""From a deployment to text, by jinja2 with every name required, and with one quoting filter for each syntax."""

import json
import re
from enum import StrEnum
from pathlib import Path

import jinja2

from ninfer_lifecycle.errors import HostError, UsageError
from ninfer_lifecycle.hosts.swarm.service import refuse_what_a_swarm_cannot_say
from ninfer_lifecycle.render.deployment import Deployment

TEMPLATES = Path(__file__).parent / "templates"


class Kind(StrEnum):
    """What to render. systemd: the engine as a unit; systemd-docker: a unit that runs the container."""

    COMPOSE = "compose"
    SWARM = "swarm"
    SYSTEMD = "systemd"
    SYSTEMD_DOCKER = "systemd-docker"


def render(kind: Kind, deployment: Deployment) -> str:
    """The file's text. The same deployment gives the same bytes. Raises UsageError for what the kind cannot say."""
    if kind is Kind.SWARM:
        try:
            refuse_what_a_swarm_cannot_say(deployment.limits)
        except HostError as error:
            raise UsageError(error.message, error.advice) from error
    if kind is Kind.SYSTEMD and deployment.limits.seccomp is not None:
        raise UsageError("a unit of systemd takes no seccomp profile in Docker's form", "render systemd-docker, or "
                         "leave host.seccomp out")
    needs_digest = kind is Kind.SWARM and deployment.image.startswith("sha256:")
    if needs_digest:
        raise UsageError("a swarm needs an image that its nodes can pull; the lock knows this machine's image id only",
                         "set image.digest in the profile to the repository digest (docker image inspect), or leave "
                         "--lock out")
    return environment().get_template(f"{kind.value}.jinja2").render(deployment.to_template())


def yaml_text(value: object) -> str:
    """A double-quoted YAML scalar for Compose: JSON's quoting is YAML's, and a dollar sign stands for itself."""
    return json.dumps(str(value), ensure_ascii=False).replace("$", "$$")


def unit_text(value: object) -> str:
    """One word of a systemd command line. Specifiers (%d, %S) at its start are kept; any other % stands for itself."""
    text = str(value)
    if any(char in text for char in "\n\r\0"):
        raise UsageError(f"{text!r} cannot stand in a unit file", "take the line break out of it")
    specifier = re.match(r"%[dS](?=/)", text)
    head = specifier.group(0) if specifier else ""
    rest = text[len(head):].replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./$-]+", head + rest):
        return head + rest
    return '"' + head + rest.replace("\\", "\\\\").replace('"', '\\"') + '"'


def environment() -> jinja2.Environment:
    """Templates of this package, every name required, with a quoting filter for each syntax."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - no HTML; see the filters
    made.filters["yaml"] = yaml_text
    made.filters["unit"] = unit_text
    made.filters["plain_unit"] = lambda value: str(value).replace("%", "%%")
    return made
