"""The published JSON Schemas, made from the models: `python -m ninfer_lifecycle.receipts.schema` writes them anew.

A schema says the shape. What joins several fields (a result that follows from its checks, times in order) is in the
models alone, so a document that fits its schema is not yet one that verifies.
"""

import json
from pathlib import Path

from pydantic import BaseModel

from ninfer_lifecycle.evidence import KINDS
from ninfer_lifecycle.gates.release import ReleasePolicy
from ninfer_lifecycle.gates.thresholds import QualificationPolicy
from ninfer_lifecycle.receipts.decision import DecisionStatement
from ninfer_lifecycle.receipts.keyring import Keyring
from ninfer_lifecycle.receipts.statement import Statement

FOLDER = Path(__file__).parent / "schemas"
DOCUMENTS: dict[str, type[BaseModel]] = {
    "qualification-statement-v1.json": Statement,
    "qualification-policy-v1.json": QualificationPolicy,
    "release-policy-v1.json": ReleasePolicy,
    "release-decision-v1.json": DecisionStatement,
    "keyring-v1.json": Keyring,
    **{f"evidence-{kind}-v1.json": record for kind, record in KINDS.items()},
}


def schema_text(name: str) -> str:
    """The schema file `name`, as it should stand in the package."""
    schema = DOCUMENTS[name].model_json_schema(by_alias=True)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"https://ninfer.dev/schemas/{name}"}
    return json.dumps(head | schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas() -> None:
    """Effects: writes every schema file."""
    FOLDER.mkdir(exist_ok=True)
    for name in DOCUMENTS:
        (FOLDER / name).write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
