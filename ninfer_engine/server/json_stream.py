"""A JSON object read character by character, so that its text can be passed on before it is whole.

What has been passed on can always be made a valid object by `closing`: text is held back while it could not (half a
key, a comma, half a number).
"""

import json
import re
from enum import Enum, auto

MAX_DEPTH = 100
_SPACE = " \t\n\r"
_LITERAL = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")


class _Want(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    NOTHING = auto()


class JsonObjectStream:
    """Feed it text that begins at the object's brace. `done`: the object is whole; `failed`: it is none. In both cases
    `rest` holds what was fed and not passed on."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.rest = ""
        self._stack: list[str] = []
        self._want = _Want.VALUE
        self._held = ""  # raw text that is not safe to pass on yet
        self._shown = ""  # the same as it will be passed on: control characters in strings are escaped
        self._literal = ""
        self._string = False
        self._cut_string = False  # what has been passed on ends inside a string
        self._key = False
        self._escape = 0  # 1: after a backslash; 2..5: inside \uXXXX

    @property
    def in_string(self) -> bool:
        """The next character belongs to a string."""
        return self._string and not self.failed

    @property
    def closing(self) -> str:
        """What makes the text passed on so far a valid object."""
        return ('"' if self._cut_string else "") + "".join("}" if one == "{" else "]" for one in reversed(self._stack))

    def feed(self, text: str) -> str:
        """The text that is now safe to pass on."""
        passed: list[str] = []
        for at, letter in enumerate(text):
            if self.done or self.failed:
                self.rest += text[at:]
                break
            self._held += letter
            self._shown += letter
            good = self._step(letter, passed)
            if not good:
                self._fail()
            elif self._safe:
                passed.append(self._shown)
                self._cut_string = self._string
                self._held = self._shown = ""
        return "".join(passed)

    @property
    def _safe(self) -> bool:
        if self._string:
            return not self._key and not self._escape
        return not self._literal and self._want in (
            _Want.KEY_OR_END, _Want.VALUE_OR_END, _Want.COMMA_OR_END, _Want.NOTHING)

    def _fail(self) -> None:
        self.failed = True
        self.rest, self._held = self._held, ""

    def _step(self, letter: str, passed: list[str]) -> bool:
        """Take one character; False when no object goes on with it."""
        if self._string:
            return self._in_string(letter)
        if self._literal:
            if letter not in ",]}" and letter not in _SPACE:
                self._literal += letter
                return len(self._literal) < 400
            if not _LITERAL.fullmatch(self._literal):
                return False
            self._literal = ""
            self._want = _Want.COMMA_OR_END
            passed.append(self._shown[:-1])
            self._held = self._shown = letter
            self._cut_string = False
        return letter in _SPACE or self._structural(letter)

    def _in_string(self, letter: str) -> bool:
        if self._escape == 1:
            self._escape = 2 if letter == "u" else 0
            return letter == "u" or letter in _ESCAPED
        if self._escape:
            self._escape = 0 if self._escape == 5 else self._escape + 1
            return letter in _HEX
        if letter == "\\":
            self._escape = 1
        elif letter == '"':
            self._string = False
            self._want = _Want.COLON if self._key else _Want.COMMA_OR_END
        elif letter < " ":
            self._shown = self._shown[:-1] + json.dumps(letter)[1:-1]  # models put raw newlines into strings
        return True

    def _structural(self, letter: str) -> bool:
        want = self._want
        match letter:
            case '"' if want in (_Want.KEY, _Want.KEY_OR_END):
                self._string = self._key = True
            case '"' if want in (_Want.VALUE, _Want.VALUE_OR_END) and self._stack:
                self._string, self._key = True, False
            case "{" if want in (_Want.VALUE, _Want.VALUE_OR_END):
                return self._open(letter, _Want.KEY_OR_END)
            case "[" if want in (_Want.VALUE, _Want.VALUE_OR_END) and self._stack:
                return self._open(letter, _Want.VALUE_OR_END)
            case "}" if want in (_Want.KEY_OR_END, _Want.COMMA_OR_END) and self._stack[-1] == "{":
                self._close()
            case "]" if want in (_Want.VALUE_OR_END, _Want.COMMA_OR_END) and self._stack[-1] == "[":
                self._close()
            case ":" if want is _Want.COLON:
                self._want = _Want.VALUE
            case "," if want is _Want.COMMA_OR_END:
                self._want = _Want.KEY if self._stack[-1] == "{" else _Want.VALUE
            case _ if want in (_Want.VALUE, _Want.VALUE_OR_END) and self._stack and letter in "-0123456789tfn":
                self._literal = letter
            case _:
                return False
        return True

    def _open(self, letter: str, want: _Want) -> bool:
        if len(self._stack) == MAX_DEPTH:
            return False
        self._stack.append(letter)
        self._want = want
        return True

    def _close(self) -> None:
        self._stack.pop()
        self._want = _Want.COMMA_OR_END if self._stack else _Want.NOTHING
        self.done = not self._stack
