"""Points in time as documents hold them: UTC, whole seconds, `Z`. A naive datetime has no place here."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from ninfer_lifecycle.errors import UsageError

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def parse_time(text: str) -> datetime:
    """The aware datetime of `2026-01-31T12:00:00Z`. Raises ValueError for anything else, naive times first."""
    return datetime.strptime(text, _FORMAT).replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    """UTC text of an aware datetime, down to the second below. Raises ValueError for a naive one."""
    if moment.tzinfo is None:
        raise ValueError("a time without its zone")
    return moment.astimezone(UTC).strftime(_FORMAT)


def _is_time(text: str) -> str:
    parse_time(text)
    return text


Timestamp = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"), AfterValidator(_is_time)
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_span(text: str) -> timedelta:
    """`90d`, `12h`, `30m`: a positive span. Raises UsageError."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and unit in _UNITS and 0 < int(number) < 1_000_000):
        raise UsageError(f"{text!r} is no span of time", "Write a number and s, m, h, d or w, as in 90d.")
    return timedelta(seconds=int(number) * _UNITS[unit])
