"""The tokenizer: exact round trips, incremental text, special tokens, clear refusals."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import tiny, tiny_directory
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models

from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.tokenizer import Tokenizer

TOKENIZER = tiny().tokenizer
anything = st.text(max_size=200)
ids = st.lists(st.integers(0, 511), max_size=60)


@settings(max_examples=200)
@given(anything)
def test_any_text_survives_encode_and_decode(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special=False) == text


@settings(max_examples=200)
@given(ids, st.booleans())
def test_decode_equals_the_tokenizers_library(sequence: list[int], skip: bool) -> None:
    library = HfTokenizer.from_file(str(tiny_directory() / "tokenizer.json"))
    # The library decodes runs between added tokens apart, so a character never spans one; bytes alone must agree.
    plain = [index for index in sequence if index not in library.get_added_tokens_decoder()]
    assert TOKENIZER.decode(plain, skip) == library.decode(plain, skip_special_tokens=skip)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["<|im_end|>", "<think>", " the ledger", "é", "\u4e2d", "\n", "x", "\0"]), max_size=20))
def test_encode_equals_the_tokenizers_library(parts: list[str]) -> None:
    library = HfTokenizer.from_file(str(tiny_directory() / "tokenizer.json"))
    text = "".join(parts)
    assert TOKENIZER.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    """Each turn of the other thread lets go of the interpreter and must get it back."""
    turns, encoded = 0, threading.Event()

    def other() -> None:
        nonlocal turns
        while not encoded.is_set():
            time.sleep(0.001)
            turns += 1

    thread = threading.Thread(target=other)
    thread.start()
    TOKENIZER.encode("The ledger has lines, and every line names an account. " * 10_000)
    encoded.set()
    thread.join()
    assert turns > 20


@settings(max_examples=200)
@given(ids, st.booleans())
def test_streamed_pieces_add_up_to_the_whole(sequence: list[int], skip: bool) -> None:
    stream = TOKENIZER.stream(skip)
    pieces = [stream.add(index) for index in sequence] + [stream.finish()]
    assert "".join(pieces) == TOKENIZER.decode(sequence, skip)


@given(st.text(min_size=1, max_size=40))
def test_a_stream_of_valid_text_never_hands_out_half_a_character(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    stream = TOKENIZER.stream(skip_special=False)
    seen = ""
    for index in TOKENIZER.encode(text):
        seen += stream.add(index)
        assert text.startswith(seen)
    assert stream.finish() == ""


def test_a_stream_that_ends_inside_a_character_says_so() -> None:
    first, *_ = TOKENIZER.encode("€")
    stream = TOKENIZER.stream()
    assert (stream.add(first), stream.finish()) == ("", "\ufffd")


def test_turn_markers_are_single_tokens_and_hidden_from_text() -> None:
    tokens = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>")
    assert tokens[0] == TOKENIZER.token_id("<|im_start|>")
    assert tokens[-1] == TOKENIZER.token_id("<|im_end|>")
    assert TOKENIZER.decode(tokens) == "user\nhi"


def test_reasoning_and_tool_markers_are_single_tokens_and_stay_visible() -> None:
    text = "<think>a</think><tool_call>b</tool_call>"
    tokens = TOKENIZER.encode(text)
    assert len(tokens) == 6
    assert TOKENIZER.decode(tokens) == text


def test_the_end_of_turn_is_the_end_of_text_token() -> None:
    assert TOKENIZER.eos_ids == {TOKENIZER.token_id("<|im_end|>")}
    assert TOKENIZER.eos_texts == {"<|im_end|>"}
    assert TOKENIZER.eos_ids <= TOKENIZER.special_ids


def test_common_words_are_few_tokens_and_a_decimal_line_is_stable() -> None:
    text = "the total of the account and the ledger is what you have"
    assert len(TOKENIZER.encode(text)) < len(text) / 2
    assert TOKENIZER.encode("entry 0042") == TOKENIZER.encode("entry ") + TOKENIZER.encode("0042")


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(ValueError, match="512 is not a token id"):
        TOKENIZER.decode([512])


def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path: Path) -> None:
    HfTokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="not byte-level"):
        Tokenizer.read(tmp_path, frozenset())


def test_a_missing_or_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer.read(tmp_path, frozenset())
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": 1}))
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.read(tmp_path, frozenset())


def test_an_end_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ModelError, match="eos_token_id 9999"):
        Tokenizer.read(tiny_directory(), frozenset({9999}))


def test_the_size_is_one_more_than_the_highest_id_so_that_no_text_gives_an_id_beyond_it() -> None:
    holes = Tokenizer(HfTokenizer(models.BPE(vocab={"a": 0, "b": 7}, merges=[])), frozenset({0}))
    assert max(holes.encode("ab")) < holes.size == 8
