"""Manifests and object names: what hangs together, and what names depend on."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from store_cases import FINGERPRINT, SavedSession

from ninfer_engine.memory.store.digests import ObjectNames, pack_tokens, unpack_tokens
from ninfer_engine.memory.store.manifest import CheckpointRecord, SessionManifest

NAME = bytes(range(32))


def checkpoint(number: int, frontier: int, parent: int | None = None, pages: int | None = None) -> CheckpointRecord:
    return CheckpointRecord(number=number, parent=parent, frontier_tokens=frontier, tokens=NAME, image=NAME,
                            pages=(NAME,) * (-(-frontier // 64) if pages is None else pages))


def manifest(*checkpoints: CheckpointRecord) -> SessionManifest:
    return SessionManifest(session="a" * 64, checkpoints=checkpoints)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=300))
def test_token_runs_come_back(tokens: list[int]) -> None:
    assert unpack_tokens(pack_tokens(tokens)) == tuple(tokens)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=300), st.data())
def test_pages_have_equal_names_exactly_up_to_the_first_different_token(tokens: list[int], data: st.DataObject) -> None:
    names = ObjectNames(FINGERPRINT)
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens[:at], tokens[at] + 1, *tokens[at + 1:]]
    left, right = names.pages(tokens), names.pages(other)
    assert left[:at // 64] == right[:at // 64]
    assert not set(left[at // 64:]) & set(right[at // 64:])
    assert names.pages(tokens[:at])[:at // 64] == left[:at // 64]


def test_names_differ_by_fingerprint_salt_kind_and_position() -> None:
    tokens = list(range(100))
    plain = ObjectNames(FINGERPRINT)
    several = [plain, ObjectNames({**FINGERPRINT, "model": "x"}), ObjectNames(FINGERPRINT, salt="tenant")]
    names = {namer.pages(tokens)[1] for namer in several} | {namer.image(NAME, 100) for namer in several}
    names |= {plain.image(NAME, 101), plain.pages([1])[0]}
    names |= {plain.content("tokens", b"x"), plain.content("response", b"x")}
    assert len(names) == 10
    assert plain.pages([1] * 64 + [1] * 64)[0] != plain.pages([1] * 128)[1]


def test_names_do_not_depend_on_the_process() -> None:
    script = ("from ninfer_engine.memory.store.digests import ObjectNames\n"
              f"print(ObjectNames({dict(reversed(FINGERPRINT.items()))!r}).pages(list(range(100)))[1].hex())")
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                           env={"PYTHONHASHSEED": "77"}).stdout.strip()
    assert ObjectNames(FINGERPRINT).pages(list(range(100)))[1].hex() == other


def test_a_manifest_survives_its_own_text() -> None:
    saved = SavedSession("text", base=200, page_bytes=1, image_bytes=1)
    saved.fork(0)
    assert SessionManifest.model_validate_json(saved.manifest().to_bytes()) == saved.manifest()


@pytest.mark.parametrize(("checkpoints", "complaint"), [
    ((checkpoint(0, 100), checkpoint(0, 120)), "twice"),
    ((checkpoint(1, 120, parent=0), checkpoint(0, 100)), "before its parent"),
    ((checkpoint(0, 100), checkpoint(1, 100, parent=0, pages=1)), "its parent at 100"),
    ((checkpoint(0, 100, pages=1),), "2 are needed"),
    ((checkpoint(0, 128), checkpoint(1, 129, parent=0, pages=2)), "1 are needed"),
    ((checkpoint(0, 100), checkpoint(1, 129, parent=0, pages=1)), "2 are needed"),
])
def test_a_lineage_that_does_not_hang_together_is_refused(
    checkpoints: tuple[CheckpointRecord, ...], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        manifest(*checkpoints)


def test_a_digest_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValidationError):
        CheckpointRecord(number=0, frontier_tokens=1, tokens=b"short", pages=(NAME,), image=NAME)
    with pytest.raises(ValidationError):
        CheckpointRecord(number=0, frontier_tokens=1, tokens=NAME, pages=(b"short",), image=NAME)
