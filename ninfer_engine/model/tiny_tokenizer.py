"""The tiny model's tokenizer and chat template: byte-level, a few hundred merges, ChatML-like turns."""

from typing import Any

from ninfer_engine.model.tokenizer import byte_alphabet

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"

_CONTROL = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
_VISIBLE = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added tokens that count as text: a client must see where reasoning and tool calls begin and end."""

_FRAGMENTS = (
    " the", " and", " of", " to", " in", " is", " that", " for", " it", " with", " as", " on", " be", " at", " by",
    " this", "ing", "ed", "er", "ion", "tion", "ent", "ment", "ly", "al", "es", "re", "st", "th", "ou", "ar", "or",
    "en", "an", " from", " have", " not", " are", " was", " were", " you", " which", " one", " all", " can", " will",
    " there", " what", " line", " ledger", " entry", " account", " total", " amount", " number", " value", " page",
    " token", " cache", " state", "user", "assistant", "system", "tool", "name", "role", "content", "type", "string",
    " function", " answer", " question", "0", "00", "10", "20", "ness", "able", "ive", "ous", "ight", "ough", "qu",
    "ch", "sh", "wh", "ck", "ll", "ss", "ee", "oo", " un", " re", " pre", " con", " com", " pro", " dis", " ex",
    " no", " so", " if", " or", " do", " we", " he", " she", " my", " time", " work", " world", " people", " water",
    " between", " through", " because", " should", " would", " could",
)  # fmt: skip
"""Common fragments of English, most useful first; each brings the merges that build it from left to right."""

_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}
{%- for part in content -%}{{ part.text if part.text is defined else '' }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages and messages[0].role == 'system' -%}{{ text(messages[0].content) + '\\n\\n' }}{%- endif -%}
{{- 'Tools, one a line:\\n' -}}
{%- for tool in tools -%}{{ tool | tojson }}{{ '\\n' }}{%- endfor -%}
{{- 'Call one as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not (tools and loop.first) -%}
{{- '<|im_start|>system\\n' + text(message.content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- elif message.role == 'user' -%}
{{- '<|im_start|>user\\n' + text(message.content) + '<|im_end|>\\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if message.reasoning_content -%}{{ '<think>' + message.reasoning_content + '</think>' }}{%- endif -%}
{{- text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set called = call.function if call.function is defined else call -%}
{{- '<tool_call>{"name": ' + called.name | tojson + ', "arguments": ' -}}
{{- called.arguments if called.arguments is string else called.arguments | tojson -}}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<|im_start|>tool\\n<tool_response>' + text(message.content) + '</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- raise_exception('unknown role ' + message.role | string + ': use system, user, assistant or tool') -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def chat_template() -> str:
    """The jinja2 source: one block a turn, `<|im_start|>role`, newline, text, `<|im_end|>`, newline."""
    return _TEMPLATE


def tokenizer_document(vocab_size: int) -> dict[str, Any]:
    """A tokenizer.json document of exactly `vocab_size` tokens: 256 bytes, then merges, then added tokens."""
    letter = byte_alphabet()
    vocab = {letter[byte]: byte for byte in range(256)}
    room = vocab_size - len(_CONTROL) - len(_VISIBLE)
    merges: list[list[str]] = []
    for fragment in _FRAGMENTS + _digit_groups():
        letters = "".join(letter[byte] for byte in fragment.encode())
        for end in range(2, len(letters) + 1):
            merged = letters[:end]
            if merged not in vocab and len(vocab) < room:
                merges.append([merged[:-1], merged[-1]])
                vocab[merged] = len(vocab)
    if len(vocab) != room:
        raise ValueError(f"the fragments give {len(vocab)} tokens, but {room} are needed")
    added = [_added_token(len(vocab) + index, text) for index, text in enumerate(_CONTROL + _VISIBLE)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def unspoken_tokens(document: dict[str, Any]) -> list[int]:
    """Ids of tokens that are not made of printable ASCII alone: control bytes, halves of characters, added tokens."""
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    vocab: dict[str, int] = document["model"]["vocab"]
    silent = [index for text, index in vocab.items() if any(not 0x20 <= byte_of[letter] < 0x7F for letter in text)]
    return sorted(silent + [token["id"] for token in document["added_tokens"]])


def _digit_groups() -> tuple[str, ...]:
    """Two-digit numbers, to fill the vocabulary up."""
    return tuple(f"{number:02d}" for number in range(100))


def _added_token(index: int, text: str) -> dict[str, Any]:
    return {
        "id": index,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": text in _CONTROL,
    }
