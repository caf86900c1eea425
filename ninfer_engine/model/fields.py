"""Reading single fields of a config.json, with an error that names the one that is wrong."""

from collections.abc import Mapping
from typing import Any

from ninfer_engine.model.errors import ModelError

MOST = 2**27
"""No size of a model is larger. A damaged file can say four thousand million layers, and must not be believed."""


class Fields:
    """The fields of one JSON object; `prefix` is how its place is named in errors."""

    def __init__(self, document: Mapping[str, Any], prefix: str = "") -> None:
        self.document = document
        self.prefix = prefix

    def size(self, name: str, least: int = 1, default: int | None = None, most: int = MOST) -> int:
        """An integer from `least` to `most`; absent or null gives the default where there is one. Raises ModelError."""
        value = self.document.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"an integer of at least {least}")
        if value > most:
            raise self.wrong(name, f"an integer of at most {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; absent or null gives the default where there is one. Raises ModelError."""
        value = self.document.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise self.wrong(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises ModelError."""
        value = self.document.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def child(self, name: str) -> "Fields":
        """The object below `name`. Raises ModelError."""
        value = self.document.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.prefix}{name}.")

    def require(self, name: str, wanted: Any) -> None:
        """Refuse an option that would change the result and that the decoder does not implement. Raises ModelError."""
        if self.document.get(name, wanted) not in (wanted, None):
            raise self.wrong(name, repr(wanted))

    def wrong(self, name: str, wanted: str) -> ModelError:
        """The error for a field that is not what it must be."""
        found = repr(self.document[name]) if name in self.document else "missing"
        return ModelError(f"config.json: {self.prefix}{name} must be {wanted}, but is {found}")
