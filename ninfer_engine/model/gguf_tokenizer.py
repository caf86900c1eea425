"""From a GGUF file's metadata to a tokenizer and a chat template."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.errors import ModelError
from ninfer_engine.model.gguf_file import GgufFile
from ninfer_engine.model.tokenizer import Tokenizer

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""Token types of the format. Control tokens are special; user-defined ones are found whole in text and stay visible."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _WORDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = _WORDS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}" + _MARKS


def _split(pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, _bytes(False)]


def _bytes(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_PRE: Mapping[str, list[dict[str, Any]]] = MappingProxyType({
    "gpt-2": [_bytes(True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _bytes(True)],
    "llama-bpe": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
    "qwen35": _split(_QWEN35),
})
"""tokenizer.ggml.pre -> the pre-tokenizers of the model's tokenizer.json."""

_NFC = frozenset({"qwen2", "qwen35"})
_WHOLE_FIRST = frozenset({"llama-bpe"})  # a word that is a token is taken whole, whatever the merges would make of it


def gguf_tokenizer(file: GgufFile, eos_token_ids: frozenset[int]) -> Tokenizer:
    """The file's tokenizer: byte-level BPE only. Raises ModelError that names the metadata."""
    model = file.need("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelError(f"tokenizer.ggml.model {model!r} is not supported", "only byte-level BPE ('gpt2') is")
    pre = file.get("tokenizer.ggml.pre", "gpt-2")
    if not isinstance(pre, str) or pre not in _PRE:
        raise ModelError(f"tokenizer.ggml.pre {pre!r} is not supported", f"supported: {', '.join(_PRE)}")
    try:
        document = _document(file, pre)
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{file.path.name}: the tokenizer's metadata is of the wrong kind: {error}",
                         "the file is damaged: fetch it again") from None
    return Tokenizer.of_document(document, eos_token_ids, file.path.name)


def gguf_chat(file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate:
    """The file's chat template. Raises ModelError when there is none."""
    source = file.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise ModelError(f"{file.path.name} has no chat template", "use a file of a model that was tuned for chat")
    keys = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id",
            "pad_token": "padding_token_id"}
    ids = {name: file.get(f"tokenizer.ggml.{key}") for name, key in keys.items()}
    tokens = {name: tokenizer.bytes_of(index).decode("utf-8", "replace")
              for name, index in ids.items() if isinstance(index, int) and 0 <= index < tokenizer.size}
    return ChatTemplate(source, tokenizer.eos_texts, tokens)


def _document(file: GgufFile, pre: str) -> dict[str, Any]:
    tokens, merges = file.need("tokenizer.ggml.tokens"), file.need("tokenizer.ggml.merges")
    types = file.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(f"{file.path.name}: tokenizer.ggml.tokens and token_type do not fit each other",
                         "the file is damaged: convert it again")
    added = [_added(index, text, kind == _CONTROL) for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
             if kind in (_CONTROL, _USER_DEFINED)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE[pre]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_FIRST,
            "vocab": {text: index for index, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def _added(index: int, text: str, special: bool) -> dict[str, Any]:
    return {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}
