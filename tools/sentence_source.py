"""Reads the messages out of source code and binaries, by parsing and never by importing.

A message is a `Message`: its text between its values, how it is said, where, and which
configuration fields decide about it.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sparkbook.logs.sentences import shingles, words

LEVELS = {
    **dict.fromkeys(("error", "exception", "critical", "fatal", "error_once"), "error"),
    **dict.fromkeys(("warning", "warn", "warning_once", "warn_once"), "warning"),
    **dict.fromkeys(("info", "info_once", "debug", "debug_once", "print"), "info"),
}
MAX_TEXT_WORDS = 60
"""A longer string that no statement says is a prompt, a page of help or a program."""
NOT_SAID = {"help", "description", "epilog", "metavar", "usage", "dest"}
HOLE = re.compile(
    r"%(?:\([^)]*\))?[-#0 +]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?"
    r"[sdrfgxiuXcpeaEGovwqtTU]"
    r"|\{[^{}\n]{0,60}\}"
)


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of a program.

    Attributes:
        pieces: its text between its values.
        kind: `raise`, `assert`, `error`, `warning`, `info` or `text`.
        module: dotted module, source file or binary.
        function: function with its class; empty if unknown.
        conditions: configuration fields of the conditions around it.
        named: configuration fields among its values and its words.
    """

    pieces: tuple[str, ...]
    kind: str
    module: str
    function: str = ""
    conditions: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


# ---- Python


@dataclass
class Template:
    """A string expression: its pieces, and the expressions between them."""

    pieces: list[str]
    values: list[ast.AST] = field(default_factory=list)

    def __add__(self, other: Template) -> Template:
        joined = self.pieces[-1] + other.pieces[0]
        return Template(
            [*self.pieces[:-1], joined, *other.pieces[1:]], [*self.values, *other.values]
        )


VALUE = Template(["", ""])


@dataclass
class Scope:
    """What a function's body tells about its names.

    Attributes:
        name: function, with its class.
        owner: configuration class around it, in snake case: `speculative_config`.
        texts: names that hold a string, with their expressions.
        values: names that hold something else.
    """

    name: str = ""
    owner: str = ""
    texts: dict[str, list[ast.AST]] = field(default_factory=dict)
    values: dict[str, ast.AST] = field(default_factory=dict)


class Reader:
    """The messages of one Python file.

    Args:
        module: its dotted name.
        fields: configuration fields; None for a package whose fields are any attribute of a
            `config` or of `args`.
    """

    def __init__(self, module: str, fields: frozenset[str] | None) -> None:
        self.module = module
        self.fields = fields
        self.used: set[int] = set()
        self.constants: dict[str, list[ast.AST]] = {}

    def read(self, text: str) -> list[Message]:
        """Return the messages of a file's text; none if it does not parse."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return []
        scope = self._scope(tree, "", "")
        self.constants = scope.texts
        found = [*self._statements(tree, scope), *self._strings(tree)]
        return [message for message in found if shingles(message.pieces)]

    # -- statements that say something

    def _statements(self, tree: ast.AST, scope: Scope) -> Iterator[Message]:
        """Yield what raises, assertions and loggers say."""
        stack: list[tuple[ast.AST, Scope, tuple[ast.AST, ...]]] = [(tree, scope, ())]
        while stack:
            node, scope, tests = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{scope.name}.{node.name}" if scope.name else node.name
                is_class = isinstance(node, ast.ClassDef)
                scope = self._scope(node, name, _snake(node.name) if is_class else scope.owner)
                tests = ()
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield from self._said("raise", _arguments(node.exc), scope, tests)
            elif isinstance(node, ast.Assert) and node.msg is not None:
                yield from self._said("assert", [node.msg], scope, (*tests, node.test))
            elif isinstance(node, ast.Call) and (kind := LEVELS.get(_last(node.func))):
                yield from self._said(kind, _arguments(node), scope, tests)
            inner = (*tests, node.test) if isinstance(node, ast.If) else tests
            stack += [(child, scope, inner) for child in ast.iter_child_nodes(node)][::-1]

    def _said(
        self, kind: str, given: list[ast.AST], scope: Scope, tests: tuple[ast.AST, ...]
    ) -> Iterator[Message]:
        for argument in given:
            templates = [t for t in self._templates(argument, scope) if any(t.pieces)]
            for template in templates:
                yield self._message(kind, template, scope, tests)
            if any(shingles(template.pieces) for template in templates):
                return

    def _message(
        self, kind: str, template: Template, scope: Scope, tests: tuple[ast.AST, ...]
    ) -> Message:
        conditions = [name for test in tests for name in self._named(test, scope)]
        named = [name for value in template.values for name in self._named(value, scope)]
        if self.fields is not None:
            spelled = (w.replace("-", "_") for p in template.pieces for w in _DASHED.findall(p))
            named += [word for word in spelled if self._is_field(word)]
        return Message(
            pieces=tuple(template.pieces),
            kind=kind,
            module=self.module,
            function=scope.name,
            conditions=tuple(dict.fromkeys(conditions)),
            named=tuple(name for name in dict.fromkeys(named) if name not in conditions),
        )

    def _templates(self, node: ast.AST, scope: Scope, depth: int = 0) -> list[Template]:
        """Return what a string expression may say; none if it is no string."""
        match node:
            case ast.Constant(value=str() as text):
                self.used.add(id(node))
                return [Template(HOLE.sub("\0", text.replace("%%", "%")).split("\0"))]
            case ast.JoinedStr(values=parts):
                self.used.update(id(part) for part in ast.walk(node))
                whole = Template([""])
                for part in parts:
                    if isinstance(part, ast.Constant):
                        whole += Template([str(part.value)])
                    else:
                        whole += Template(["", ""], [part])
                return [whole]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [
                    one + other
                    for one in self._templates(left, scope, depth) or [VALUE]
                    for other in self._templates(right, scope, depth) or [VALUE]
                    if one is not VALUE or other is not VALUE
                ]
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return _with_values(self._templates(left, scope, depth), [right])
            case ast.Call(func=ast.Attribute(value=text, attr="format")):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                return _with_values(self._templates(text, scope, depth), values)
            case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=lines)]):
                return [t for line in lines for t in self._templates(line, scope, depth)]
            case ast.Call(func=function, args=[text]) if _last(function) in ("dedent", "cleandoc"):
                return self._templates(text, scope, depth)
            case ast.IfExp(body=body, orelse=other):
                branches = [self._templates(branch, scope, depth) for branch in (body, other)]
                return [template for branch in branches for template in branch]
            case ast.Name(id=name) if depth < 2:
                return [
                    template
                    for text in scope.texts.get(name) or self.constants.get(name, [])
                    for template in self._templates(text, scope, depth + 1)
                ]
        return []

    # -- strings that are said somewhere else

    def _strings(self, tree: ast.AST) -> Iterator[Message]:
        """Yield the sentences inside functions that no statement of this file says."""
        stack: list[tuple[ast.AST, Scope, bool]] = [(tree, Scope(), False)]
        while stack:
            node, scope, inside = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{scope.name}.{node.name}" if scope.name else node.name
                scope = Scope(name=name)
                inside = inside or not isinstance(node, ast.ClassDef)
            elif isinstance(node, ast.Constant | ast.JoinedStr):
                for template in self._unsaid(node, scope) if inside else ():
                    yield self._message("text", template, scope, ())
                continue
            children = [child for child in ast.iter_child_nodes(node) if not _is_silent(child)]
            stack += [(child, scope, inside) for child in children[::-1]]

    def _unsaid(self, node: ast.AST, scope: Scope) -> list[Template]:
        if id(node) in self.used or isinstance(getattr(node, "value", ""), int | float | bytes):
            return []
        templates = self._templates(node, scope)
        return [template for template in templates if is_sentence(" ".join(template.pieces))]

    # -- names and fields

    def _scope(self, node: ast.AST, name: str, owner: str) -> Scope:
        scope = Scope(name=name, owner=owner)
        for inner in _own_nodes(node):
            match inner:
                case (
                    ast.Assign(targets=[ast.Name(id=target)], value=value)
                    | ast.AugAssign(target=ast.Name(id=target), value=value)
                ):
                    if self._looks_like_text(value):
                        scope.texts.setdefault(target, []).append(value)
                    elif not isinstance(inner, ast.AugAssign):
                        scope.values[target] = value
        return scope

    def _looks_like_text(self, node: ast.AST) -> bool:
        match node:
            case ast.Constant(value=value):
                return isinstance(value, str)
            case ast.JoinedStr():
                return True
            case ast.BinOp(left=left, right=right):
                return self._looks_like_text(left) or self._looks_like_text(right)
            case ast.Call(func=ast.Attribute(value=text, attr="format")):
                return self._looks_like_text(text)
        return False

    def _named(self, node: ast.AST, scope: Scope, depth: int = 0) -> Iterator[str]:
        """Yield the configuration fields that an expression reads."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute):
                owner = _last(inner.value)
                owner = scope.owner if owner == "self" else owner
                if name := self._field(inner.attr, owner):
                    yield name
            elif isinstance(inner, ast.Name):
                if self._is_field(inner.id):
                    yield inner.id
                elif depth < 1 and (value := scope.values.get(inner.id)) is not None:
                    yield from self._named(value, scope, depth + 1)

    def _is_field(self, name: str) -> bool:
        """Return whether a bare name can only mean a configuration field."""
        known = self.fields is not None and name in self.fields
        return known and "_" in name and not name.endswith("_config")

    def _field(self, name: str, owner: str) -> str | None:
        configured = owner.endswith(("config", "args")) and not name.startswith("__")
        if not configured or name.endswith("_config"):
            return None
        if self.fields is None:
            return name
        if f"{owner}.{name}" in self.fields:
            return f"{owner}.{name}"
        return name if name in self.fields else None


_DASHED = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)+")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or a module without those of the functions inside."""
    stack = [node]
    while stack:
        inner = [
            child
            for child in ast.iter_child_nodes(stack.pop())
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        yield from inner
        stack += inner[::-1]


def _is_silent(node: ast.AST) -> bool:
    """Return whether nobody says what is in here: a docstring, a help text, an annotation."""
    if isinstance(node, ast.keyword):
        return node.arg in NOT_SAID
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _arguments(call: ast.Call) -> list[ast.AST]:
    return [*call.args, *(k.value for k in call.keywords if k.arg not in NOT_SAID)]


def _last(node: ast.AST) -> str:
    """Return the last name of a dotted expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last(function)
    return ""


def _with_values(templates: list[Template], values: list[ast.AST]) -> list[Template]:
    return [Template(t.pieces, [*t.values, *values]) for t in templates]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def is_sentence(text: str) -> bool:
    """Return whether a string is something that a person is meant to read."""
    count = len(words(text))
    if not 5 <= count <= MAX_TEXT_WORDS or text.count("\n") > 3:
        return False
    letters = sum(char.isalpha() or char == " " for char in text)
    return letters >= 0.8 * len(text) and text.count(" ") >= 0.6 * count


# ---- configuration of vLLM


def config_fields(files: dict[str, str]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the fields of vLLM's configuration and the options that have another name.

    Args:
        files: text of each file of a release that defines configuration.

    Returns:
        Names of fields, plain and with their class (`cache_config.block_size`), and pairs of field
        and option.
    """
    fields: set[str] = set()
    aliases: set[tuple[str, str]] = set()
    for text in files.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                owner = _snake(node.name)
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        fields |= {item.target.id, f"{owner}.{item.target.id}"}
            elif isinstance(node, ast.Call) and _last(node.func) == "add_argument":
                aliases |= set(_alias(node))
    return fields, aliases


def _alias(call: ast.Call) -> Iterator[tuple[str, str]]:
    options = [a.value for a in call.args if isinstance(a, ast.Constant)]
    for keyword in call.keywords:
        match keyword:
            case ast.keyword(
                arg=None, value=ast.Subscript(slice=ast.Constant(value=str() as name))
            ):
                for option in options:
                    plain = str(option).removeprefix("--").replace("-", "_")
                    if str(option).startswith("--") and plain != name:
                        yield name, plain


# ---- C++, CUDA and Go

_LITERAL = re.compile(r'(?<!\\)"((?:[^"\\\n]|\\.)*)"')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)")
_STATEMENT = re.compile(r"[^;{}]*\"[^;]*")
_FUNCTION = re.compile(r"^(?=\w)[^;=#\n]*?\b(\w+(?:::~?\w+)*)\([^;\n]*$", re.MULTILINE)
_SAYS = re.compile(
    r"\b(?:\w*(?:CHECK|ASSERT|ERROR|THROW|WARN|LOG|PRINT|INFO|TRACE|ENFORCE)\w*|throw|printf|assert"
    r"|runtime_error|invalid_argument)\b(?=\s*[(<])|\bthrow\b"
)
_MACROS = (
    ("warning", ("WARN",)),
    ("raise", ("THROW", "ERROR", "INVALID_ARGUMENT", "ENFORCE")),
    ("assert", ("CHECK", "ASSERT")),
    ("info", ("INFO", "LOG", "PRINT", "TRACE")),
)
_GO_FUNCTION = re.compile(r"^func (?:\(\w* ?\*?(\w+)[^)]*\) )?(\w+)", re.MULTILINE)
_GO_CALL = re.compile(r'\b(\w+)\((?:[^()"\n]|\([^()"\n]*\))*"((?:[^"\\\n]|\\.)+)"')
_GO_KINDS = (
    ("raise", ("errorf", "new", "wrap", "wrapf", "withmessage", "withmessagef")),
    ("warning", ("warn", "warnf", "warning", "warningf")),
    ("error", ("error", "fatal", "fatalf", "panic")),
    ("info", ("info", "infof", "debug", "debugf", "trace", "tracef", "printf", "println")),
)


class Functions:
    """Which function of a file a place is in."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self._found = [
            (m.start(), ".".join(filter(None, m.groups()))) for m in pattern.finditer(text)
        ]

    def at(self, place: int) -> str:
        """Return the last function that begins before a place."""
        at = bisect.bisect_right(self._found, (place, "~")) - 1
        return self._found[at][1] if at >= 0 else ""


def _split(literal: str) -> list[str]:
    return HOLE.sub("\0", _ESCAPE.sub(" ", literal)).split("\0")


def read_cpp(module: str, text: str) -> Iterator[Message]:
    """Yield the messages of a C++ or CUDA source: the literals of each statement."""
    text = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
    functions = Functions(text, _FUNCTION)
    for statement in _STATEMENT.finditer(text):
        if statement[0].lstrip().startswith(("#include", "asm", "extern")):
            continue
        pieces: list[str] = []
        end = 0
        for literal in _LITERAL.finditer(statement[0]):
            parts = _split(literal[1])
            if pieces and not statement[0][end : literal.start()].strip():
                pieces[-1] += parts.pop(0)
            pieces += parts
            end = literal.end()
        macro = _SAYS.search(statement[0])
        kind = _kind(macro[0].upper(), _MACROS) if macro else "text"
        kind = "error" if "LEVEL_ERROR" in statement[0] else kind
        said = len(words(" ".join(pieces))) <= MAX_TEXT_WORDS if macro else False
        if (said or is_sentence(" ".join(pieces))) and shingles(pieces):
            function = functions.at(statement.start() + len(statement[0].rstrip()) // 2)
            yield Message(pieces=tuple(pieces), kind=kind, module=module, function=function)


def _kind(name: str, table: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    return next((kind for kind, parts in table if any(part in name for part in parts)), "text")


def read_go(module: str, text: str) -> Iterator[Message]:
    """Yield the messages of a Go source: errors and what is logged."""
    functions = Functions(text, _GO_FUNCTION)
    for call in _GO_CALL.finditer(text):
        kind = next((kind for kind, names in _GO_KINDS if call[1].lower() in names), None)
        pieces = _split(call[2])
        if kind and shingles(pieces):
            function = functions.at(call.start())
            yield Message(pieces=tuple(pieces), kind=kind, module=module, function=function)


# ---- binaries

_RUN = re.compile(rb"[\x09\x0a\x20-\x7e]{16,2000}")
_VOWELS = re.compile(r"[aeiouy]")


def read_binary(module: str, data: bytes) -> Iterator[Message]:
    """Yield the sentences among a binary's strings."""
    seen: set[str] = set()
    for run in _RUN.finditer(data):
        if run[0].count(b" ") < 4:
            continue
        for text in run[0].decode().split("\n"):
            if text not in seen and is_spoken(text):
                seen.add(text)
                pieces = HOLE.sub("\0", text).split("\0")
                if shingles(pieces):
                    yield Message(pieces=tuple(pieces), kind="text", module=module)


def is_spoken(text: str) -> bool:
    """Return whether a binary's string is a sentence: no symbol, schema, assembly or usage."""
    if not is_sentence(text) or "::" in text or "->" in text:
        return False
    plain = re.findall(r"(?<![\w-])[A-Za-z]?[a-z]+(?![\w(])", text)
    spoken = [word for word in plain if len(word) == 1 or _VOWELS.search(word)]
    return len(spoken) >= max(4, 0.6 * len(words(text)))
