"""The base of documents that are signed or hashed by the gates: lowerCamelCase keys, frozen, unknown keys refused."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Ppm = Annotated[int, Field(ge=0, le=1_000_000)]
RatioPpm = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
PPM = 1_000_000


class SignedDocument(BaseModel):
    """A value whose JSON goes under a digest or a signature. Strict: `true` is no integer and "1" is no count."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True,
        protected_namespaces=(),
    )

    def to_json(self) -> dict[str, Any]:
        """JSON value under its published names; what was not measured is an absent key, never null or 0."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
