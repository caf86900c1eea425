"""Words from outside made safe for one line, and the word that a person probably meant. Pure."""

import difflib
from collections.abc import Iterable


def plain(text: str) -> str:
    """`text` on one line, without control characters, line breaks or direction marks: those stand as escapes.

    A receipt's words can then add no line, no terminal sequence and no workflow command.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known word that `name` is most like, case, dashes and underscores aside; None when none is near."""
    folded = {_folded(item): item for item in known}
    found = difflib.get_close_matches(_folded(name), list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, to stand at the end of an error's message, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found is not None else ""


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
