"""Sizes and shares of a machine as people write them, to integers."""

import re

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"^(\d+)\s*(?:([kmgt])(?:i?b)?|b)?$", re.IGNORECASE)
_CPUS = re.compile(r"^(\d+)(?:\.(\d{1,3}))?$")


def parse_bytes(text: str | int) -> int:
    """`512m`, `8g`, `8GiB` or a number of bytes; units are powers of 1024, as Docker reads them.

    Raises ValueError with an example.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 1:
            raise ValueError("a size is at least one byte")
        return text
    match = _SIZE.match(text.strip()) if isinstance(text, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError("a size is a number and a unit, such as 512m or 8g")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]


def parse_milli_cpus(value: str | int | float) -> int:
    """`2`, `1.5` or "0.25" CPUs, in thousandths. Raises ValueError with an example."""
    match = _CPUS.match(str(value).strip()) if not isinstance(value, bool) else None
    milli = int(match[1]) * 1000 + int((match[2] or "0").ljust(3, "0")) if match else 0
    if milli == 0:
        raise ValueError("cpus is a number such as 2 or 1.5, at most three decimals")
    return milli
