"""The published schemas: as the models are, and true of real documents by another implementation's reading."""

import json
import subprocess
import sys

import jsonschema
import pytest
from receipt_cases import NOW, POLICY, honest_evidence, receipt, signer

from ninfer_lifecycle.receipts import dsse
from ninfer_lifecycle.receipts.keyring_edit import first_keyring
from ninfer_lifecycle.receipts.schema import DOCUMENTS, FOLDER, schema_text
from ninfer_lifecycle.receipts.trust import Role


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_schema_file_is_what_its_model_gives(name: str) -> None:
    written = (FOLDER / name).read_text(encoding="utf-8")
    assert written == schema_text(name), "run: python -m ninfer_lifecycle.receipts.schema"
    jsonschema.Draft202012Validator.check_schema(json.loads(written))


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / name).read_text(encoding="utf-8")))


def test_real_documents_fit_their_schemas() -> None:
    made = receipt()
    payload = json.loads(dsse.decode(dsse.parse_envelope(made.files[made.receipt_name])).payload)
    validator("qualification-statement-v1.json").validate(payload)
    validator("qualification-policy-v1.json").validate(POLICY.to_json())
    ring = first_keyring([(Role.ROOT, signer(1).public_key)], {}, NOW, NOW.replace(year=2027))
    validator("keyring-v1.json").validate(ring.to_json())
    for record in honest_evidence().requests:
        validator("evidence-requests-v1.json").validate(record.model_dump(mode="json", exclude_none=True))


@pytest.mark.parametrize("change", [
    {"sequence": 0}, {"sequence": "1"}, {"lane": "../x"}, {"result": "pending"}, {"more": 1},
    {"startedOn": "yesterday"},
])
def test_documents_that_break_the_shape_do_not_fit(change: dict[str, object]) -> None:
    made = receipt()
    payload = json.loads(dsse.decode(dsse.parse_envelope(made.files[made.receipt_name])).payload)
    payload["predicate"] |= change
    with pytest.raises(jsonschema.ValidationError):
        validator("qualification-statement-v1.json").validate(payload)


def test_verifying_needs_none_of_the_heavy_dependencies() -> None:
    code = (
        "import sys, ninfer_lifecycle.receipts.verify, ninfer_lifecycle.receipts.sources, "
        "ninfer_lifecycle.commands.receipt, ninfer_lifecycle.commands.key, ninfer_lifecycle.commands.gate\n"
        "heavy = {'torch', 'numpy', 'scipy', 'docker', 'httpx', 'requests', 'jinja2', 'transformers', 'fastapi'}\n"
        "found = sorted(heavy & set(sys.modules))\n"
        "assert 'cryptography' in sys.modules\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
