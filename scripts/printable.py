"""Text of other people's files, made fit for a terminal, a table or a picture: streambp/printable.h, in Python."""

import unicodedata


def printable(text, most=300):
    """`text` on one line; what is invisible or changes how the rest is shown is escaped, and a long middle is cut."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, formats, lone surrogates, separators of lines and paragraphs
    shown = "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden else c for c in str(text))
    if len(shown) <= most:
        return shown
    head = (most - 2) // 2
    return shown[:head] + "..." + shown[len(shown) - (most - 3 - head) :]


def printable_values(value):
    """The same of every text within JSON's objects and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(one) for one in value]
    if isinstance(value, dict):
        return {printable(key): printable_values(one) for key, one in value.items()}
    return value
