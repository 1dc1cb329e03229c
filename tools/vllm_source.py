"""Reads vLLM's interface out of its source, by parsing and never by importing.

A release is a tree of Python files: a wheel, a zip of its Python files, or an installed
`site-packages`. `Source` parses modules and finds names in them; `Evaluator` computes what argparse
would be told, for the small part of Python that vLLM's argument code uses: constants, fields of
config classes, `get_kwargs(Config)`, `group.add_argument(...)`, dictionaries changed key by key.
What it cannot compute is `Unknown`, which keeps its source text; the caller decides whether that is
allowed.
"""

from __future__ import annotations

import ast
import functools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILTIN_TYPES = {"str", "int", "float", "bool", "dict", "list", "tuple", "set", "object", "bytes"}


@dataclass(frozen=True)
class Unknown:
    """A value that parsing alone does not give."""

    text: str


@dataclass(frozen=True)
class Object:
    """An instance of a class with nothing but defaults, such as `CompilationConfig()`."""

    name: str


@dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    enum: str
    name: str


@dataclass(frozen=True)
class Hint:
    """One alternative of a type annotation.

    Attributes:
        kind: a built-in's name, `none`, `literal`, `class`, `any`.
        options: the values of a literal.
        args: hints of the elements of a list, tuple, set or dict.
        name: name of a class.
        dataclass: whether that class is one of vLLM's configs.
        dict_like: whether that class is a subclass of dict.
    """

    kind: str
    options: tuple[Any, ...] = ()
    args: tuple[Any, ...] = ()
    name: str = ""
    dataclass: bool = False
    dict_like: bool = False


@dataclass(frozen=True)
class Found:
    """Where a name is defined: the module, and the statement (or None for a whole module)."""

    module: str
    node: Any


class Source:
    """The Python files of one release."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            self._zip = None
            self._names = {p.relative_to(path).as_posix() for p in (path / "vllm").rglob("*.py")}
        else:
            self._zip = zipfile.ZipFile(path)
            self._names = {name for name in self._zip.namelist() if name.endswith(".py")}

    def files(self, prefix: str) -> list[str]:
        """Names of the Python files under a prefix, sorted."""
        return sorted(name for name in self._names if name.startswith(prefix))

    def text(self, name: str) -> str:
        """Text of a file."""
        raw = self._zip.read(name) if self._zip else (self.path / name).read_bytes()
        return raw.decode("utf-8", "replace")

    @functools.cache  # noqa: B019 - one Source lives as long as the extraction of one release
    def tree(self, module: str) -> ast.Module | None:
        """The parsed module with this dotted name, or None if the release has none."""
        base = module.replace(".", "/")
        for name in (f"{base}.py", f"{base}/__init__.py"):
            if name in self._names:
                return ast.parse(self.text(name))
        return None

    def is_package(self, module: str) -> bool:
        """Whether a module is a package (a folder with an `__init__`)."""
        return f"{module.replace('.', '/')}/__init__.py" in self._names

    @functools.cache  # noqa: B019
    def names(self, module: str) -> dict[str, ast.AST]:
        """What a module defines or imports at its top level, as it is at run time: the other branch
        of `if TYPE_CHECKING` comes first.
        """
        tree = self.tree(module)
        found: dict[str, ast.AST] = {}
        if tree is not None:
            self._collect(tree.body, found)
        return found

    def _collect(self, body: list[ast.stmt], found: dict[str, ast.AST]) -> None:
        for node in body:
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    found[node.name] = node
                case ast.Assign():
                    for target in node.targets:
                        if isinstance(target, ast.Name):
                            found[target.id] = node
                case ast.AnnAssign(target=ast.Name(id=name)) if node.value is not None:
                    found[name] = node
                case ast.ImportFrom():
                    for alias in node.names:
                        found[alias.asname or alias.name] = node
                case ast.Import():
                    for alias in node.names:
                        found[alias.asname or alias.name.split(".")[0]] = node
                case ast.If():
                    first, second = node.body, node.orelse
                    if "TYPE_CHECKING" in ast.unparse(node.test) and not isinstance(
                        node.test, ast.UnaryOp
                    ):
                        first, second = second, first
                    late: dict[str, ast.AST] = {}
                    self._collect(second, late)
                    self._collect(first, found)
                    for name, value in late.items():
                        found.setdefault(name, value)
                case ast.Try():
                    self._collect(node.body, found)

    def find(self, module: str, name: str, depth: int = 0) -> Found | None:
        """The definition of a name, imports followed within vLLM; None for what comes from
        elsewhere.
        """
        node = self.names(module).get(name)
        if depth > 12:
            return None
        if isinstance(node, ast.ImportFrom):
            target = self._absolute(module, node)
            alias = next((a for a in node.names if (a.asname or a.name) == name), None)
            if alias is None or not target.startswith("vllm"):
                return None
            if self.tree(f"{target}.{alias.name}") is not None and alias.name not in self.names(
                target
            ):
                return Found(f"{target}.{alias.name}", None)
            return self.find(target, alias.name, depth + 1)
        if isinstance(node, ast.Import):
            alias = next(a for a in node.names if (a.asname or a.name.split(".")[0]) == name)
            return (
                Found(alias.name if alias.asname else alias.name.split(".")[0], None)
                if alias.name.startswith("vllm")
                else None
            )
        if node is not None:
            return Found(module, node)
        for star in self._stars(module):
            if found := self.find(star, name, depth + 1):
                return found
        if self.is_package(module) and self.tree(f"{module}.{name}") is not None:
            return Found(f"{module}.{name}", None)
        return None

    def _stars(self, module: str) -> Iterator[str]:
        tree = self.tree(module)
        for node in tree.body if tree else []:
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                target = self._absolute(module, node)
                if target.startswith("vllm"):
                    yield target

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + (1 if self.is_package(module) else 0)]
        return ".".join([*parts, *([node.module] if node.module else [])])


@dataclass
class Field:
    """A field of a config class: its annotation, its value and the text that documents it."""

    name: str
    module: str
    annotation: ast.expr
    value: ast.expr | None
    doc: str = ""


@dataclass
class Argument:
    """One `add_argument` call: the option strings, and the keyword arguments."""

    names: list[str]
    kwargs: dict[str, Any]
    group: str = ""


@dataclass
class Parser:
    """Stands for an argument parser, or a group of one."""

    arguments: list[Argument] = field(default_factory=list)
    group: str = ""


@dataclass
class ClassRef:
    """A class of vLLM's, as a value."""

    module: str
    node: ast.ClassDef


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Evaluator:
    """Computes values of vLLM's argument code.

    Args:
        source: the release.
        device: the `device_type` of the platform that vLLM would find; a few choices depend on it.
    """

    def __init__(self, source: Source, device: str = "cuda") -> None:
        self.source = source
        self.device = device
        self.unknown: list[str] = []
        tree = source.tree("vllm.engine.arg_utils")
        assert tree is not None, "this tree holds no vllm/engine/arg_utils.py"
        compute = next(
            n
            for n in tree.body
            if isinstance(n, ast.FunctionDef) and n.name in ("_compute_kwargs", "get_kwargs")
        )
        text = ast.unparse(compute)
        self._human = {
            element.value
            for node in ast.walk(compute)
            if isinstance(node, ast.Set | ast.Tuple)
            for element in node.elts
            if isinstance(element, ast.Constant) and isinstance(element.value, str)
        }
        self._auto_length = "human_readable_int_or_auto" in text
        self._optional_switch = "'?'" in text
        self._none_choice: Any = "None" if ".append('None')" in text else None
        self._set_hints = "contains_type(type_hints, set)" in text
        self._unwrap_field = "FieldInfo" in text

    # ---- classes

    def class_of(self, module: str, name: str) -> ClassRef | None:
        """The class that a name means in a module."""
        found = self.source.find(module, name)
        return (
            ClassRef(found.module, found.node)
            if found and isinstance(found.node, ast.ClassDef)
            else None
        )

    def fields(self, ref: ClassRef) -> dict[str, Field]:
        """Fields of a class, those of its bases first, as dataclasses order them."""
        result: dict[str, Field] = {}
        for base in ref.node.bases:
            if isinstance(base, ast.Name) and (parent := self.class_of(ref.module, base.id)):
                result |= self.fields(parent)
        body = ref.node.body
        for node, following in zip(body, [*body[1:], None], strict=True):
            if (
                not isinstance(node, ast.AnnAssign)
                or not isinstance(node.target, ast.Name)
                or "ClassVar" in ast.unparse(node.annotation)
            ):
                continue
            doc = ""
            if (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                doc = " ".join(following.value.value.split())
            result[node.target.id] = Field(
                node.target.id, ref.module, node.annotation, node.value, doc
            )
        return result

    def is_config(self, ref: ClassRef) -> bool:
        """Whether a class is a dataclass: decorated with `dataclass` or vLLM's `config`."""
        names = [
            ast.unparse(decorator).split("(")[0].split(".")[-1]
            for decorator in ref.node.decorator_list
        ]
        return "dataclass" in names or "config" in names

    def is_enum(self, ref: ClassRef) -> bool:
        """Whether a class is an enumeration."""
        return any("Enum" in ast.unparse(base) for base in ref.node.bases)

    # ---- types

    def hints(self, node: ast.expr, module: str) -> frozenset[Hint]:
        """The alternatives of an annotation."""
        match node:
            case ast.Constant(value=None):
                return frozenset({Hint("none")})
            case ast.Constant(value=str() as text):
                return self.hints(ast.parse(text, mode="eval").body, module)
            case ast.BinOp(op=ast.BitOr()):
                return self.hints(node.left, module) | self.hints(node.right, module)
            case ast.Name(id=name):
                return self._named(name, module)
            case ast.Attribute():
                return self._attribute_hint(node, module)
            case ast.Subscript():
                return self._subscript(node, module)
        return frozenset({Hint("any")})

    def _named(self, name: str, module: str) -> frozenset[Hint]:
        if name in BUILTIN_TYPES:
            return frozenset({Hint(name)})
        found = self.source.find(module, name)
        if found is None or found.node is None:
            return frozenset({Hint("any", name=name)})
        if isinstance(found.node, ast.ClassDef):
            ref = ClassRef(found.module, found.node)
            bases = {ast.unparse(base).split("[")[0] for base in ref.node.bases}
            return frozenset(
                {Hint("class", name=name, dataclass=self.is_config(ref), dict_like="dict" in bases)}
            )
        if isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value is not None:
            return self.hints(found.node.value, found.module)
        return frozenset({Hint("any", name=name)})

    def _attribute_hint(self, node: ast.Attribute, module: str) -> frozenset[Hint]:
        if (
            isinstance(node.value, ast.Name)
            and (found := self.source.find(module, node.value.id))
            and found.node is None
        ):
            return self._named(node.attr, found.module)
        return frozenset({Hint("any", name=ast.unparse(node))})

    def _subscript(self, node: ast.Subscript, module: str) -> frozenset[Hint]:
        head = ast.unparse(node.value).split(".")[-1]
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        match head:
            case "Optional":
                return self.hints(inner[0], module) | {Hint("none")}
            case "Union":
                return frozenset().union(*(self.hints(item, module) for item in inner))
            case "Annotated" | "SkipValidation" | "InitVar" | "Required" | "NotRequired":
                return self.hints(inner[0], module)
            case "Literal":
                return frozenset({Hint("literal", options=tuple(self._literals(inner, module)))})
            case "list" | "List" | "set" | "Set" | "tuple" | "Tuple" | "dict" | "Dict" | "Sequence":
                args = tuple(
                    (
                        "..."
                        if isinstance(i, ast.Constant) and i.value is ...
                        else self.hints(i, module)
                    )
                    for i in inner
                )
                return frozenset({Hint("list" if head == "Sequence" else head.lower(), args=args)})
        return frozenset({Hint("any", name=ast.unparse(node))})

    def _literals(self, inner: list[ast.expr], module: str) -> Iterator[Any]:
        for item in inner:
            if isinstance(item, ast.Constant):
                yield item.value
            else:
                for hint in self.hints(item, module):
                    yield from hint.options

    # ---- what get_kwargs makes of a config class

    def kwargs_of(self, ref: ClassRef) -> dict[str, dict[str, Any]]:
        """Keyword arguments of `add_argument` for each field of a config class, by the rules of
        vLLM's own `get_kwargs`.
        """
        return {name: self._field_kwargs(item) for name, item in self.fields(ref).items()}

    def _field_kwargs(self, item: Field) -> dict[str, Any]:
        hints = self.hints(item.annotation, item.module)
        hints = frozenset(Hint("dict") if hint.dict_like else hint for hint in hints)
        kinds = {hint.kind for hint in hints}
        by_kind = {hint.kind: hint for hint in hints}
        optional = "none" in kinds
        result: dict[str, Any] = {"default": self.default(item), "help": item.doc}
        config = next((hint for hint in hints if hint.kind == "class" and hint.dataclass), None)
        if config is not None:
            result["type"] = f"object:{config.name}"
        elif kinds == {"bool", "str", "none"} and self._optional_switch:
            result |= {"type": "str", "nargs": "?", "const": True}
        elif "bool" in kinds:
            result["action"] = "bool"
        elif "literal" in kinds:
            result |= self._choices(by_kind["literal"], "str" in kinds)
        elif sequence := next(
            (k for k in ("tuple", "list", "set") if k in kinds and (k != "set" or self._set_hints)),
            None,
        ):
            result |= self._collection(by_kind[sequence])
        elif "int" in kinds:
            result["type"] = "int"
            if item.name == "max_model_len" and self._auto_length:
                result["type"] = "human_int_or_auto"
            elif item.name in self._human:
                result["type"] = "human_int"
        elif "float" in kinds:
            result["type"] = "float"
        elif "dict" in kinds:
            result["type"] = "json_or_str" if "str" in kinds or kinds & {"class", "any"} else "json"
        else:
            result["type"] = "str"
        if optional and "bool" not in kinds:
            # Part of the type, as in vLLM: code that later sets another type takes it away.
            result["type"] = f"?{result['type']}"
            if result.get("choices"):
                result["choices"] = [*result["choices"], self._none_choice]
        return result

    def _choices(self, hint: Hint, open_ended: bool) -> dict[str, Any]:
        """Type and choices of a literal; beside a plain `str` its values are only a suggestion."""
        options = sorted(hint.options)
        kind = (
            "int"
            if options and isinstance(options[0], int) and not isinstance(options[0], bool)
            else "str"
        )
        return (
            {"type": kind, "suggested": options}
            if open_ended
            else {"type": kind, "choices": options}
        )

    def _collection(self, hint: Hint) -> dict[str, Any]:
        items = [arg for arg in hint.args if arg != "..."]
        nargs: Any = "+" if hint.kind != "tuple" or "..." in hint.args else len(hint.args)
        if not items:
            return {"type": "str", "nargs": nargs}
        alternatives = [h for h in items[0] if h.kind != "none"]
        if len(alternatives) == 1 and alternatives[0].kind == "literal":
            return {**self._choices(alternatives[0], False), "nargs": nargs}
        kind = alternatives[0].kind if len(alternatives) == 1 else "str"
        return {"type": kind if kind in ("int", "float") else "str", "nargs": nargs}

    def default(self, item: Field) -> Any:
        """Default of a field."""
        if item.value is None:
            return None
        return self.value(item.value, item.module, {})

    # ---- values

    def value(self, node: ast.expr, module: str, local: dict[str, Any]) -> Any:
        """Value of an expression."""
        unknown = Unknown(" ".join(ast.unparse(node).split()))
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(id=name):
                return local[name] if name in local else self._global(name, module, unknown)
            case ast.List() | ast.Tuple() | ast.Set():
                items = [self.value(item, module, local) for item in node.elts]
                return items if isinstance(node, ast.List | ast.Set) else tuple(items)
            case ast.Dict():
                result: dict[Any, Any] = {}
                for key, item in zip(node.keys, node.values, strict=True):
                    got = self.value(item, module, local)
                    if key is None:
                        if isinstance(got, dict):
                            result |= got
                    else:
                        result[self.value(key, module, local)] = got
                return result
            case ast.Attribute():
                return self._attribute(node, module, local, unknown)
            case ast.Subscript():
                return self._item(node, module, local, unknown)
            case ast.Call():
                return self._call(node, module, local, unknown)
            case ast.JoinedStr():
                return self._fstring(node, module, local)
            case ast.IfExp():
                test = self.value(node.test, module, local)
                return (
                    unknown
                    if isinstance(test, Unknown)
                    else self.value(node.body if test else node.orelse, module, local)
                )
            case ast.UnaryOp(op=ast.Not()):
                operand = self.value(node.operand, module, local)
                return unknown if isinstance(operand, Unknown) else not operand
            case ast.UnaryOp(op=ast.USub()):
                operand = self.value(node.operand, module, local)
                return -operand if isinstance(operand, int | float) else unknown
            case ast.BinOp():
                return self._binary(node, module, local, unknown)
            case ast.BoolOp():
                values = [self.value(item, module, local) for item in node.values]
                if any(isinstance(item, Unknown) for item in values):
                    return unknown
                return functools.reduce(
                    (
                        (lambda a, b: a and b)
                        if isinstance(node.op, ast.And)
                        else (lambda a, b: a or b)
                    ),
                    values,
                )
            case ast.Compare(ops=[op], comparators=[right]):
                left, other = self.value(node.left, module, local), self.value(right, module, local)
                if isinstance(left, Unknown) or isinstance(other, Unknown):
                    return unknown
                match op:
                    case ast.In():
                        return left in other
                    case ast.NotIn():
                        return left not in other
                    case ast.Eq() | ast.Is():
                        return left == other
                    case ast.NotEq() | ast.IsNot():
                        return left != other
            case ast.ListComp(generators=[generator]):
                items = self.value(generator.iter, module, local)
                if (
                    isinstance(items, list | tuple)
                    and isinstance(generator.target, ast.Name)
                    and not generator.ifs
                ):
                    return [
                        self.value(node.elt, module, {**local, generator.target.id: item})
                        for item in items
                    ]
        return unknown

    def _global(self, name: str, module: str, unknown: Unknown) -> Any:
        if name in BUILTIN_TYPES:
            return name
        found = self.source.find(module, name)
        match found:
            case Found(node=ast.ClassDef()):
                return ClassRef(found.module, found.node)
            case Found(node=ast.Assign() | ast.AnnAssign()) if found.node.value is not None:
                return self.value(found.node.value, found.module, {})
            case Found(node=None):
                return found
        return unknown

    def _attribute(
        self, node: ast.Attribute, module: str, local: dict[str, Any], unknown: Unknown
    ) -> Any:
        text = ast.unparse(node)
        if text == "sys.argv":
            return ["vllm", "serve", "MODEL"]
        if text == "current_platform.device_type":
            return self.device
        if text == "argparse.SUPPRESS":
            return None
        if text in ("json.loads", "argparse.BooleanOptionalAction", "ssl.CERT_NONE"):
            return {
                "json.loads": "json",
                "argparse.BooleanOptionalAction": "bool",
                "ssl.CERT_NONE": 0,
            }[text]
        owner = self.value(node.value, module, local)
        if isinstance(owner, ClassRef):
            if node.attr == "__name__":
                return owner.node.name
            if node.attr == "__doc__":
                return ast.get_docstring(owner.node) or ""
            return self._class_attribute(owner, node.attr, unknown)
        if isinstance(owner, Found):
            if owner.module == "vllm.envs":
                return self._env_default(node.attr, unknown)
            return self._global(node.attr, owner.module, unknown)
        if isinstance(owner, Member) and node.attr in ("value", "name"):
            return owner.name
        return unknown

    def _class_attribute(self, owner: ClassRef, name: str, unknown: Unknown) -> Any:
        if self.is_enum(owner):
            return Member(owner.node.name, name)
        if item := self.fields(owner).get(name):
            return self.default(item)
        for node in owner.node.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == name for t in node.targets
            ):
                return self.value(node.value, owner.module, {})
        return unknown

    def _env_default(self, name: str, unknown: Unknown) -> Any:
        for node in ast.walk(self.source.tree("vllm.envs") or ast.Module([], [])):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
                and node.value is not None
            ):
                return self.value(node.value, "vllm.envs", {})
        return unknown

    def _item(
        self, node: ast.Subscript, module: str, local: dict[str, Any], unknown: Unknown
    ) -> Any:
        owner = self.value(node.value, module, local)
        if isinstance(node.slice, ast.Slice) and isinstance(owner, list):
            lower = self.value(node.slice.lower, module, local) if node.slice.lower else None
            upper = self.value(node.slice.upper, module, local) if node.slice.upper else None
            return owner[lower:upper]
        key = self.value(node.slice, module, local)
        if isinstance(owner, dict) and key in owner:
            return owner[key]
        return unknown

    def _fstring(self, node: ast.JoinedStr, module: str, local: dict[str, Any]) -> str:
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            elif isinstance(part, ast.FormattedValue):
                got = self.value(part.value, module, local)
                parts.append("…" if isinstance(got, Unknown) else str(got))
        return "".join(parts)

    def _binary(self, node: ast.BinOp, module: str, local: dict[str, Any], unknown: Unknown) -> Any:
        left, right = self.value(node.left, module, local), self.value(node.right, module, local)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return unknown
        try:
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.Pow():
                    return left**right
                case ast.LShift():
                    return left << right
                case ast.BitOr():
                    return left | right
        except TypeError:
            return unknown
        return unknown

    def _call(self, node: ast.Call, module: str, local: dict[str, Any], unknown: Unknown) -> Any:
        text = ast.unparse(node.func)
        short = text.split(".")[-1]
        if short in ("get_kwargs", "_compute_kwargs") and node.args:
            owner = self.value(node.args[0], module, local)
            return self.kwargs_of(owner) if isinstance(owner, ClassRef) else unknown
        if short == "get_field":
            owner, name = (
                self.value(node.args[0], module, local),
                self.value(node.args[1], module, local),
            )
            return (
                self._class_attribute(owner, name, unknown)
                if isinstance(owner, ClassRef)
                else unknown
            )
        if short in ("field", "Field"):
            return self._field_default(node, module, local)
        if short in ("optional_type", "parse_type"):
            inner = self.value(node.args[0], module, local)
            text = inner if isinstance(inner, str) else ast.unparse(node.args[0])
            return f"?{text.removeprefix('?')}" if short == "optional_type" else text
        if short in (
            "int",
            "float",
            "str",
            "list",
            "sorted",
            "set",
            "tuple",
            "get_args",
            "frozenset",
            "len",
            "deepcopy",
            "dict",
        ):
            return self._builtin(short, node, module, local, unknown)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, module, local, unknown)
        callee = self.value(node.func, module, local)
        if isinstance(callee, ClassRef):
            return Object(callee.node.name)
        found = self.source.find(module, text)
        if (
            found
            and isinstance(found.node, ast.FunctionDef)
            and found.node.name in ("make_arg_parser", "add_cli_args")
        ):
            return self.run(found.node, found.module, self._bind(found.node, node, module, local))
        return unknown

    def _field_default(self, node: ast.Call, module: str, local: dict[str, Any]) -> Any:
        for keyword in node.keywords:
            if keyword.arg == "default":
                return self.value(keyword.value, module, local)
            if keyword.arg == "default_factory":
                if isinstance(keyword.value, ast.Lambda):
                    return self.value(keyword.value.body, module, local)
                made = ast.unparse(keyword.value)
                if made in ("list", "set", "dict", "tuple"):
                    return {"list": [], "set": [], "dict": {}, "tuple": ()}[made]
                owner = self.value(keyword.value, module, local)
                if isinstance(owner, ClassRef) and "dict" in {
                    ast.unparse(base).split("[")[0] for base in owner.node.bases
                }:
                    return {}
                return Object(owner.node.name) if isinstance(owner, ClassRef) else Unknown(made)
        return (
            self.value(node.args[0], module, local)
            if node.args and not isinstance(node.args[0], ast.Starred)
            else None
        )

    def _builtin(
        self, name: str, node: ast.Call, module: str, local: dict[str, Any], unknown: Unknown
    ) -> Any:
        if not node.args:
            return {"list": [], "set": [], "dict": {}, "tuple": ()}.get(name, unknown)
        if name == "get_args":
            hints = self.hints(node.args[0], module)
            return [option for hint in hints for option in hint.options] or unknown
        got = self.value(node.args[0], module, local)
        if isinstance(got, Unknown):
            return got
        if isinstance(got, ClassRef) and name in ("list", "sorted"):
            return unknown
        match name:
            case "int" | "float" | "str" | "len":
                return {"int": int, "float": float, "str": str, "len": len}[name](got)
            case "list" | "set" | "frozenset" | "tuple":
                return list(got)
            case "sorted":
                return sorted(got)
        return dict(got) if isinstance(got, dict) else got

    def _method(self, node: ast.Call, module: str, local: dict[str, Any], unknown: Unknown) -> Any:
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        if isinstance(node.func.value, ast.Call) and ast.unparse(node.func.value) == "super()":
            owner: ClassRef = local["__class__"]
            parent = next(
                (c for b in owner.node.bases if (c := self.class_of(owner.module, ast.unparse(b)))),
                None,
            )
            found = self.method(parent, name) if parent else None
            if found is None:
                return unknown
            ref, function = found
            return self.run(
                function,
                ref.module,
                {**self._bind(function, node, module, local), "__class__": ref},
            )
        owner = self.value(node.func.value, module, local)
        args = [
            self.value(arg, module, local) for arg in node.args if not isinstance(arg, ast.Starred)
        ]
        match owner:
            case Parser():
                return self._parser_method(owner, name, node, module, local)
            case ClassRef():
                if found := self.method(owner, name):
                    ref, function = found
                    bound = self._bind(function, node, module, local)
                    if function.args.args and function.args.args[0].arg == "cls":
                        bound["cls"] = owner
                    return self.run(function, ref.module, {**bound, "__class__": ref})
            case dict():
                match name:
                    case "items":
                        return list(owner.items())
                    case "keys":
                        return list(owner)
                    case "get":
                        return owner.get(*args)
                    case "pop":
                        return owner.pop(*args)
                    case "update" if args and isinstance(args[0], dict):
                        return owner.update(args[0])
                    case "copy":
                        return dict(owner)
            case list():
                if name in ("remove", "append", "extend"):
                    if name != "remove" or args[0] in owner:
                        getattr(owner, name)(args[0])
                    return None
            case str() if name in (
                "replace",
                "format",
                "lower",
                "upper",
                "strip",
                "split",
                "join",
                "removeprefix",
            ):
                if not any(isinstance(arg, Unknown) for arg in args):
                    return getattr(owner, name)(*args)
        return unknown

    def method(self, owner: ClassRef, name: str) -> tuple[ClassRef, ast.FunctionDef] | None:
        """The method of a class, or of its bases, and the class that defines it."""
        for node in owner.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return owner, node
        for base in owner.node.bases:
            if (
                isinstance(base, ast.Name)
                and (parent := self.class_of(owner.module, base.id))
                and (found := self.method(parent, name))
            ):
                return found
        return None

    def _bind(
        self, function: ast.FunctionDef, node: ast.Call, module: str, local: dict[str, Any]
    ) -> dict[str, Any]:
        names = [arg.arg for arg in function.args.args if arg.arg not in ("self", "cls")]
        defaults = function.args.defaults
        bound = {
            n: self.value(d, module, {})
            for n, d in zip(names[len(names) - len(defaults) :], defaults, strict=False)
        }
        bound |= dict(
            zip(names, [self.value(arg, module, local) for arg in node.args], strict=False)
        )
        bound |= {k.arg: self.value(k.value, module, local) for k in node.keywords if k.arg}
        if "cls" in local:
            bound["cls"] = local["cls"]
        return bound

    def _parser_method(
        self, parser: Parser, name: str, node: ast.Call, module: str, local: dict[str, Any]
    ) -> Any:
        if name == "add_argument_group":
            title = next(
                (self.value(k.value, module, local) for k in node.keywords if k.arg == "title"), ""
            )
            if not title and node.args:
                title = self.value(node.args[0], module, local)
            return Parser(parser.arguments, str(title))
        if name in ("add_mutually_exclusive_group",):
            return parser
        if name == "add_argument":
            names: list[str] = []
            for arg in node.args:
                got = self.value(arg.value if isinstance(arg, ast.Starred) else arg, module, local)
                names += got if isinstance(got, list) else [got]
            kwargs: dict[str, Any] = {}
            for keyword in node.keywords:
                got = self.value(keyword.value, module, local)
                if keyword.arg is not None:
                    kwargs[keyword.arg] = got
                elif isinstance(got, dict):
                    kwargs |= got
                else:
                    self.unknown.append(f"{names}: **{ast.unparse(keyword.value)}")
            parser.arguments.append(Argument(names, kwargs, parser.group))
        return None

    # ---- statements

    def run(self, function: ast.FunctionDef, module: str, local: dict[str, Any]) -> Any:
        """Runs a function of vLLM's argument code and gives what it returns."""
        try:
            self._block(function.body, module, local)
        except _Return as result:
            return result.value
        return None

    def _block(self, body: list[ast.stmt], module: str, local: dict[str, Any]) -> None:
        for node in body:
            match node:
                case ast.Return():
                    raise _Return(self.value(node.value, module, local) if node.value else None)
                case ast.Assign():
                    got = self.value(node.value, module, local)
                    for target in node.targets:
                        self._assign(target, got, module, local)
                case ast.AnnAssign() if node.value is not None:
                    self._assign(node.target, self.value(node.value, module, local), module, local)
                case ast.Expr():
                    self.value(node.value, module, local)
                case ast.Delete():
                    for target in node.targets:
                        if isinstance(target, ast.Subscript):
                            owner = self.value(target.value, module, local)
                            if isinstance(owner, dict):
                                owner.pop(self.value(target.slice, module, local), None)
                case ast.If():
                    test = self.value(node.test, module, local)
                    if isinstance(test, Unknown):
                        self.unknown.append(f"if {test.text}")
                    else:
                        self._block(node.body if test else node.orelse, module, local)
                case ast.For():
                    items = self.value(node.iter, module, local)
                    for item in items if isinstance(items, list | tuple) else []:
                        self._assign(node.target, item, module, local)
                        self._block(node.body, module, local)
                case ast.ImportFrom() | ast.Import():
                    self._local_import(node, module, local)

    def _local_import(
        self, node: ast.ImportFrom | ast.Import, module: str, local: dict[str, Any]
    ) -> None:
        if isinstance(node, ast.ImportFrom) and (
            target := self.source._absolute(module, node)
        ).startswith("vllm"):
            for alias in node.names:
                if isinstance(
                    got := self._global(alias.name, target, Unknown(alias.name)),
                    ClassRef | list | dict | str | int,
                ):
                    local[alias.asname or alias.name] = got

    def _assign(self, target: ast.expr, got: Any, module: str, local: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                local[name] = got
            case ast.Subscript():
                owner = self.value(target.value, module, local)
                if isinstance(owner, dict):
                    owner[self.value(target.slice, module, local)] = got
            case ast.Tuple():
                for part, item in zip(
                    target.elts, got if isinstance(got, list | tuple) else [], strict=False
                ):
                    self._assign(part, item, module, local)
