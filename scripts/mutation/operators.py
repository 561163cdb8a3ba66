"""Which expressions and statements of a C++ file become mutants, and what each of them becomes."""

from dataclasses import dataclass

import tree_sitter
import tree_sitter_cpp

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))
CALL = "streambp::mutant"  # of the schemata: mutant(7) is true where mutant 7 is chosen

SWAPPED = {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["*"], "<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"],
           "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"], "+=": ["=", "-="], "-=": ["=", "+="], "*=": ["="], "/=": ["="],
           "&=": ["="], "|=": ["="]}
METHODS = {"add_": "sub_", "sub_": "add_", "mul_": "div_", "div_": "mul_", "add": "sub", "sub": "add", "mul": "div", "div": "mul",
           "lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "amax": "amin", "logical_and": "logical_or",
           "logical_or": "logical_and", "exp": "expm1", "log": "log1p", "clamp_min": "clamp_max", "clamp_max": "clamp_min",
           "masked_fill_": "masked_fill", "rbegin": "begin", "min": "max", "max": "min"}
# A sum that becomes a store, or a store that becomes a sum.
STORES = {"add_": "copy_", "copy_": "add_", "index_add_": "index_copy_"}
FUNCTIONS = {"std::min": "std::max", "std::max": "std::min", "at::minimum": "at::maximum", "at::maximum": "at::minimum",
             "at::logsumexp": "at::amax", "at::exp": "at::expm1"}
BOUNDS = {"narrow": (1, 2), "slice": (1, 2), "rows": (0, 1), "within": (0, 1)}  # arguments that are positions or lengths
# What holds no value that a run could change.
SKIPPED = {"template_argument_list", "static_assert_declaration", "preproc_include", "preproc_def", "preproc_if", "preproc_ifdef",
           "enumerator_list", "sizeof_expression", "decltype", "noexcept", "requires_clause", "string_literal", "comment",
           "parameter_list", "field_initializer_list", "attribute_declaration", "using_declaration", "alias_declaration"}


@dataclass
class Mutant:
    number: int
    file: str
    line: int
    kind: str
    before: str
    after: str


class Rewriter:
    """One file's text with all its mutants in it. `dropped`: (line, kind) of those that don't compile."""

    def __init__(self, file, text, first_number, dropped=frozenset()):
        self.file, self.text, self.dropped = file, text.encode(), dropped
        self.next = first_number
        self.mutants = []

    def rewritten(self):
        return self.rewrite(PARSER.parse(self.text).root_node).decode()

    def of(self, node):
        return self.text[node.start_byte:node.end_byte].decode()

    def new(self, node, kind, after):
        """A mutant's number; None where it is not wanted or was dropped, which leaves its number free: the others' files stay as they are."""
        mutant = Mutant(self.next, self.file, node.start_point[0] + 1, kind, " ".join(self.of(node).split()), " ".join(after.split()))
        if not self.is_wanted(mutant):
            return None
        self.next += 1
        if (mutant.line, kind) in self.dropped:
            return None
        self.mutants.append(mutant)
        return mutant.number

    def is_wanted(self, mutant):
        return True

    def skips(self, node):
        if node.type in SKIPPED:
            return True
        if node.type in ("declaration", "function_definition") and any(
                child.type == "type_qualifier" and self.of(child) == "constexpr" for child in node.children):
            return True
        if node.type == "declaration" and node.parent.type in ("namespace_definition", "declaration_list", "translation_unit"):
            return True
        if node.type == "declaration" and any(child.type == "storage_class_specifier" and self.of(child) == "static"
                                              for child in node.children):
            return True
        if node.type == "call_expression" and self.of(node).startswith(f"{CALL}("):  # a named mutant's number
            return True
        return node.type == "declaration" and self.of(node).startswith(("const Span", "Span"))

    def rewrite(self, node):
        if self.skips(node):
            return self.text[node.start_byte:node.end_byte]
        if node.type == "throw_statement":
            return self.deletable(node, self.of(node)).encode()
        if node.type == "case_statement":
            value = node.child_by_field_name("value")
            return self.children(node, skipped=value)
        if node.type == "if_statement" and any(child.type == "constexpr" for child in node.children):
            return self.children(node, skipped=node.child_by_field_name("condition"))
        if node.type in ("conditional_expression", "if_statement"):
            condition = node.child_by_field_name("condition")
            if self.of(condition).lstrip("( ").startswith(CALL):  # a named mutant's own
                return self.children(node, skipped=(condition, node.child_by_field_name("consequence")))
        if node.type in ("unary_expression", "binary_expression") and self.of(node).startswith(f"!{CALL}("):
            left = node.child_by_field_name("left")
            return self.children(node, skipped=left) if left else self.text[node.start_byte:node.end_byte]
        if node.type == "binary_expression" and self.of(node.child_by_field_name("right")).startswith(f"{CALL}("):  # what a named mutant adds
            return self.children(node)
        inner = self.children(node).decode()
        if node.type in ("expression_statement", "break_statement", "continue_statement"):
            return self.statement(node, inner).encode()
        alternatives = [(number, after) for kind, after in self.alternatives(node)
                        if (number := self.new(node, kind, after)) is not None]
        if not alternatives:
            return inner.encode()
        choices = "".join(f"{CALL}({number}) ? ({after}) : " for number, after in alternatives)
        return f"({choices}({inner}))".encode()

    def children(self, node, skipped=()):
        skipped = skipped if isinstance(skipped, tuple) else (skipped,)
        parts, at = [], node.start_byte
        for child in node.children:
            parts.append(self.text[at:child.start_byte])
            kept = any(child == other for other in skipped)
            parts.append(self.text[child.start_byte:child.end_byte] if kept else self.rewrite(child))
            at = child.end_byte
        parts.append(self.text[at:node.end_byte])
        return b"".join(parts)

    def deletable(self, node, inner):
        number = self.new(node, "delete statement", "")
        return inner if number is None else f"{{ if (!{CALL}({number})) {inner} }}"

    def statement(self, node, inner):
        text = self.of(node)
        if node.type == "expression_statement":
            if not node.named_children or node.named_children[0].type not in ("call_expression", "assignment_expression"):
                return inner
            if ".reserve(" in text or text.startswith(("static_cast<void>", CALL)):
                return inner
            if node.parent.type == "for_range_loop" and node == node.parent.child_by_field_name("initializer"):
                return inner
        return self.deletable(node, inner)

    def alternatives(self, node):
        """(kind, text) of what an expression may become instead."""
        kind = node.type
        if kind in ("binary_expression", "assignment_expression"):
            yield from self.of_operator(node)
        elif kind == "number_literal" and node.parent.type not in ("array_declarator", "bitfield_clause"):
            text = self.of(node)
            if any(c in text for c in ".e") and not text.startswith("0x"):
                yield ("constant", "1.0") if float(text.rstrip("fF")) == 0 else ("constant", f"2.0 * {text}")
            else:
                yield "constant", f"{text} + 1"
        elif kind in ("true", "false"):
            yield "constant", "false" if kind == "true" else "true"
        elif kind == "unary_expression" and self.of(node)[0] in "!-":
            # A truth value in both branches: with an optional in one, the other's `false` would be an optional that holds something.
            yield "unary", ("!!" if self.of(node)[0] == "!" else "") + self.of(node.child_by_field_name("argument"))
        elif kind == "conditional_expression":
            parts = [self.of(node.child_by_field_name(name)) for name in ("condition", "consequence", "alternative")]
            yield "condition", f"{parts[0]} ? {parts[2]} : {parts[1]}"
        elif kind == "call_expression":
            yield from self.of_call(node)
        if node.parent is not None and node.parent.type == "condition_clause" and node.parent.parent.type == "if_statement" \
                and node == node.parent.child_by_field_name("value") and kind not in ("declaration", "init_statement"):
            yield "condition", f"!({self.of(node)})"
            yield "never", f"false && ({self.of(node)})"
        if node.parent is not None and node.parent.type == "argument_list" and node.is_named:
            yield from self.of_bound(node)

    def of_operator(self, node):
        operator = self.of(node.child_by_field_name("operator"))
        left, right = (node.child_by_field_name(side) for side in ("left", "right"))
        if '"' in self.of(left) + self.of(right) and operator in ("+", "+="):
            return
        for other in SWAPPED.get(operator, []):
            kind = {"&&": "logical", "||": "logical"}.get(operator, "assignment" if operator.endswith("=") and operator not in
                                                          ("==", "!=", "<=", ">=") else
                                                          "relational" if operator[0] in "<>=!" else "arithmetic")
            yield kind, f"{self.of(left)} {other} {self.of(right)}"

    def of_call(self, node):
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        given = [child for child in arguments.named_children if child.type != "comment"]
        name = self.of(function)
        if function.type == "field_expression":
            field = function.child_by_field_name("field")
            method, before = self.of(field), self.text[function.start_byte:field.start_byte].decode()
            if method in METHODS:
                yield "method", f"{before}{METHODS[method]}{self.of(arguments)}"
            if method in STORES:
                yield "store", f"{before}{STORES[method]}{self.of(arguments)}"
            if method == "detach" and not given:
                yield "attached", self.of(function.child_by_field_name("argument"))
        base = name.split("<")[0]
        if base in FUNCTIONS:
            yield "function", f"{name.replace(base, FUNCTIONS[base])}{self.of(arguments)}"
        if base == "at::where" and len(given) == 3:
            yield "function", f"at::where({self.of(given[0])}, {self.of(given[2])}, {self.of(given[1])})"

    def of_bound(self, node):
        call = node.parent.parent
        if call.type != "call_expression" or node.type in ("number_literal", "string_literal"):
            return
        method = self.of(call.child_by_field_name("function")).replace("->", ".").split(".")[-1]
        given = [child for child in node.parent.named_children if child.type != "comment"]
        if method in BOUNDS and given.index(node) in BOUNDS[method]:
            yield "bound", f"({self.of(node)}) + 1"
            yield "bound", f"({self.of(node)}) - 1"
