"""Text to token ids and back. Byte-level tokenizers only, so that text can be produced token by token, exactly."""

import codecs
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

from ninfer_engine.model.errors import ModelError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time has no use for the library's threads


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's mapping).

    Bytes that print as themselves in Latin-1 keep their character; the others follow from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


class Tokenizer:
    """A tokenizer.json. Encoding is that of the `tokenizers` library; no special tokens are added on either side."""

    def __init__(self, hf: HfTokenizer, eos_token_ids: frozenset[int]) -> None:
        self._hf = hf
        self.eos_ids = eos_token_ids
        self.size = 1 + max(hf.get_vocab(with_added_tokens=True).values(), default=-1)  # ids may have holes
        added = hf.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._bytes = _token_bytes(hf, {index: token.content for index, token in added.items()})

    @classmethod
    def read(cls, directory: Path, eos_token_ids: frozenset[int]) -> "Tokenizer":
        """Read `directory`/tokenizer.json. Raises ModelError when missing, damaged or not byte-level."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"tokenizer.json is missing in {directory}", "fetch it with the weights")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}", "fetch the file again") from None
        return cls.of_document(document, eos_token_ids, "tokenizer.json")

    @classmethod
    def of_document(cls, document: Any, eos_token_ids: frozenset[int], where: str) -> "Tokenizer":
        """From a tokenizer.json document; `where` is what errors call it. Raises ModelError as `read` does."""
        try:
            hf = HfTokenizer.from_str(json.dumps(document))
        except Exception as error:  # noqa: BLE001  # the library raises plain Exception for any damage
            raise ModelError(f"{where} cannot be read: {error}", "fetch the file again") from None
        if not _is_byte_level(document.get("decoder")):
            raise ModelError(f"{where} is not byte-level", "only byte-level tokenizers are supported")
        unknown = sorted(index for index in eos_token_ids if hf.id_to_token(index) is None)
        if unknown:
            raise ModelError(f"eos_token_id {unknown[0]} is not a token of {where}")
        return cls(hf, eos_token_ids)

    @property
    def eos_texts(self) -> frozenset[str]:
        """The texts of the end-of-text tokens."""
        return frozenset(self._bytes[index].decode("utf-8", "replace") for index in self.eos_ids)

    def token_id(self, text: str) -> int | None:
        """The id of the token whose content is exactly `text`, or None."""
        found: int | None = self._hf.token_to_id(text)
        return found

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; the texts of special tokens in it become those tokens. Other threads run meanwhile: the
        library lets go of the interpreter for batches alone, and takes two seconds for a megabyte."""
        [encoding] = self._hf.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Raises ValueError for an unknown id."""
        stream = self.stream(skip_special)
        return "".join([stream.add(index) for index in ids]) + stream.finish()

    def stream(self, skip_special: bool = True) -> "TextStream":
        """A fresh decoder of one reply, token by token."""
        return TextStream(self, skip_special)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token stands for. Raises ValueError for an unknown id."""
        try:
            return self._bytes[token_id]
        except KeyError:
            raise ValueError(f"{token_id} is not a token id of this model") from None


class TextStream:
    """Incremental detokenisation: the pieces' concatenation equals `Tokenizer.decode` of all tokens.

    A character is handed out only when all of its bytes have arrived, so no piece ever splits one.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        if token_id in self._skipped:
            return ""
        return self._utf8.decode(self._tokenizer.bytes_of(token_id))

    def finish(self) -> str:
        """What is left: U+FFFD for a character whose last bytes never came, else nothing."""
        return self._utf8.decode(b"", True)


def _is_byte_level(decoder: Any) -> bool:
    match decoder:
        case {"type": "ByteLevel"}:
            return True
        case {"type": "Sequence", "decoders": list() as parts}:
            return any(_is_byte_level(part) for part in parts)
        case _:
            return False


def _token_bytes(hf: HfTokenizer, added: dict[int, str]) -> dict[int, bytes]:
    """Bytes of every token: added tokens are plain text, all others spell bytes in the byte alphabet."""
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    table: dict[int, bytes] = {}
    for text, index in hf.get_vocab(with_added_tokens=True).items():
        if index in added or any(character not in byte_of for character in text):
            table[index] = added.get(index, text).encode()
        else:
            table[index] = bytes(byte_of[character] for character in text)
    return table
