"""Names and words that gave way to the field's own, and what to write in their place."""

import re

# Pattern (of lower-case words, after identifiers were cut into theirs) and what to write.
WORDS = [
    (r"(?<!in )(?<!take )(?<!takes )(?<!decimal )(?<!last )places?\b", "index, position, offset or row"),
    (r"raised", "up_proj, or thrown of an exception"),
    (r"told(?! apart)", "kernel arguments (args), or: is given"),
    (r"softens?\b|softened", "online softmax step"),
    (r"turned(?! (on|off|into))", "transposed or rotated"),
    (r"(?<!\")ways?\b(?!\")", "configuration, plan or method"),
    (r"beside\b", "next to, relative to, in addition to, with"),
    (r"uses? up|used up|using up|uses \w+ up", "consumes"),
    (r"speaks? of|spoken of", "describes"),
    (r"bears?\b", "has, or concerns"),
]
PATTERNS = [(re.compile(r"\b(?:" + pattern + ")"), instead) for pattern, instead in WORDS]
CAMEL = re.compile(r"([a-z0-9])([A-Z])")


def find_words(text):
    """(line, word, instead) of each old word in `text`."""
    for number, line in enumerate(text.splitlines(), start=1):
        plain = CAMEL.sub(r"\1 \2", line).replace("_", " ").lower()
        for pattern, instead in PATTERNS:
            for match in pattern.finditer(plain):
                yield number, match[0], instead
