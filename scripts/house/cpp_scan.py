"""Finds namespaces, types and functions in C++ source without a compiler: enough for a formatted code base.

scan(path, text) gives a Definition for every class, struct, union, enum and function with a body at namespace or class
scope. Preprocessor lines are skipped, so both branches of an #if are read.
"""

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<raw>\bu?8?R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)")
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
      | (?P<number>\.?\d(?:'?[\w.]|[eEpP][+-])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<punctuation>::|->|\[\[|\]\]|[^\s\w])""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
TYPE_WORDS = {"class", "struct", "union", "enum"}
SIGNATURE_NOISE = {"inline", "static", "constexpr", "virtual", "explicit", "extern", "friend", "typename", "const"}


@dataclass
class Definition:
    kind: str  # "type" or "function"
    name: str  # qualified by namespaces and types
    signature: str  # of a function, its parameters without names of their own; of a type, ""
    body: str  # tokens, one space apart
    path: str
    line: int
    end_line: int
    local: bool  # in an unnamed namespace, or a static function
    member: bool  # of a type

    @property
    def lines(self):
        return self.end_line - self.line + 1


@dataclass
class Scope:
    kind: str  # "namespace", "type", "function", "block"
    name: str
    local: bool
    head: list
    start: int  # index of the first token of the body


def tokens_of(text):
    """(text, line) of each token that counts."""
    line, position = 1, 0
    tokens = []
    for match in TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        if match.lastgroup not in ("comment", "directive"):
            tokens.append((match.group(0), line))
    return tokens


def outside_brackets(words):
    """The words of `words` that are in no parentheses, brackets or template arguments, with their positions."""
    depth = 0
    result = []
    for i, word in enumerate(words):
        if word in ("(", "[", "[[") or (word == "<" and i > 0 and re.match(r"[A-Za-z_]", words[i - 1])):
            depth += 1
        elif word in (")", "]", "]]") or (word == ">" and depth > 0):
            depth -= 1
        elif depth == 0:
            result.append((word, i))
    return result


def group_end(words, begin):
    """The position of the parenthesis that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(words)):
        depth += {"(": 1, ")": -1}.get(words[i], 0)
        if depth == 0:
            return i
    return len(words) - 1


def parameters_at(words):
    """Where a function's parameters begin: the first parenthesis after a name, or None."""
    for i, word in enumerate(words):
        if word == "operator":
            following = next((j for j in range(i + 2, len(words)) if words[j] == "("), None)
            return following
        if word == "(" and i > 0 and re.match(r"[A-Za-z_~]", words[i - 1]) and words[i - 1] not in ("alignas", "decltype"):
            return i
    return None


def classify(words):
    """What a `{` opens after the words of its declaration, and the name of it."""
    if not words:
        return "block", ""
    plain = outside_brackets(words)
    names = [word for word, _ in plain]
    if "namespace" in names:
        name = "".join(names[names.index("namespace") + 1 :])
        return "namespace", name
    if words[0] == "extern" and len(words) == 2:
        return "namespace", "-"  # extern "C"
    begin = parameters_at(words)
    assigned = next((i for word, i in plain if word == "=" and (i == 0 or words[i - 1] != "operator")), None)
    kinds = [i for word, i in plain if word in TYPE_WORDS]
    if kinds and assigned is None and (begin is None or "(" not in words[kinds[0] :]):
        after = names[[i for _, i in plain].index(kinds[0]) + 1 :]
        colon = after.index(":") if ":" in after else len(after)
        named = [word for word in after[:colon] if re.match(r"[A-Za-z_]", word) and word not in ("final", *TYPE_WORDS)]
        return "type", "::".join(named) if named else ""
    if begin is None or (assigned is not None and assigned < begin):
        return "block", ""
    end = group_end(words, begin)
    # A member's braces in a constructor's list: `: name_{`.
    if ":" in words[end:] and words[-1] not in (")", "}", "try") and re.match(r"[A-Za-z_>]", words[-1]):
        return "block", ""
    start = words.index("operator") if "operator" in words[:begin] else begin - 1
    if words[start - 1] == "~":
        start -= 1
    while start > 1 and words[start - 1] == "::" and re.match(r"[A-Za-z_>]", words[start - 2]):
        start -= 2
        if words[start] == ">":
            start = len(words[:start]) - words[start::-1].index("<") - 1  # the arguments of a class template
    return "function", "".join(words[start:begin])


def signature_of(words):
    """The parameters' types: names of parameters are left out, where there are some."""
    begin = parameters_at(words)
    end = group_end(words, begin)
    parameters, depth, current = [], 0, []
    for word in words[begin + 1 : end]:
        depth += {"(": 1, "<": 1, "{": 1, ")": -1, ">": -1, "}": -1}.get(word, 0)
        if word == "," and depth == 0:
            parameters.append(current)
            current = []
        else:
            current.append(word)
    parameters.append(current)
    texts = []
    for parameter in parameters:
        if "=" in parameter:
            parameter = parameter[: parameter.index("=")]
        if len(parameter) > 1 and re.match(r"[A-Za-z_]", parameter[-1]) and parameter[-2] != "::":
            parameter = parameter[:-1]
        texts.append(" ".join(word for word in parameter if word not in SIGNATURE_NOISE))
    suffix = "const" if words[end + 1 : end + 2] == ["const"] else ""
    return ", ".join(texts) + suffix


def scan(path, text):
    """Every type and function with a body, in the order of their ends."""
    tokens = tokens_of(text)
    scopes = []
    pending = 0  # index of the first token of the declaration that is being read
    found = []
    depth = 0  # of parentheses: a brace within them opens a value
    for i, (word, _) in enumerate(tokens):
        inside = any(scope.kind in ("function", "block") for scope in scopes)
        if word == "(":
            depth += 1
        elif word == ")":
            depth -= 1
        if word == "{":
            words = [token for token, _ in tokens[pending:i]]
            kind, name = ("block", "") if inside or depth > 0 else classify(words)
            static = kind == "function" and "static" in words and not any(scope.kind == "type" for scope in scopes)
            local = static or any(scope.local for scope in scopes) or (kind == "namespace" and name == "")
            scopes.append(Scope(kind, name, local, words, i + 1))
            scopes[-1].first_line = tokens[pending][1] if pending < len(tokens) else 0
            scopes[-1].depth = depth
            if kind in ("namespace", "type"):
                pending = i + 1
                depth = 0
        elif word == "}" and scopes:
            scope = scopes.pop()
            depth = scope.depth
            if scope.kind in ("type", "function") and scope.name:
                outer = [one.name for one in scopes if one.kind in ("namespace", "type") and one.name not in ("", "-")]
                found.append(
                    Definition(
                        kind=scope.kind,
                        name="::".join([*outer, scope.name]),
                        signature=signature_of(scope.head) if scope.kind == "function" else "",
                        body=" ".join(token for token, _ in tokens[scope.start : i]),
                        path=path,
                        line=scope.first_line,
                        end_line=tokens[i][1],
                        local=scope.local,
                        member=any(one.kind == "type" for one in scopes) or "::" in scope.name,
                    )
                )
            if scope.kind in ("namespace", "function"):
                pending = i + 1
        elif not inside and depth == 0:
            labelled = word == ":" and i > 0 and tokens[i - 1][0] in ("public", "private", "protected")
            if word == ";" or labelled:
                pending = i + 1
    return found
