"""Text from receipts and engines, made safe for a terminal and for a log that is read by machines."""


def plain(text: str) -> str:
    """`text` on one line, without control characters, line breaks or direction marks: those stand as escapes.

    A receipt's words can then add no line, no terminal sequence and no workflow command.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)
