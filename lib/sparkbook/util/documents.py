"""YAML and JSON documents of strangers: read within bounds, and written so that every reader takes
them alike.

What comes in may be hostile: it may be huge, nested ten thousand levels deep, or multiply itself
through anchors. Nothing of it is executed:
tags are refused, and the text is measured as a stream of events before a single value is made of
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

import yaml

from sparkbook.errors import SparkbookError

MAX_BYTES = 1_000_000
"""Longest text that is read. A compose file or a recipe has some kB; 1 MB leaves room for a guide
inside it.
"""
_MAX_DEPTH = 64
_MAX_NODES = 100_000
"""Values in a document, each alias counted as often as what it stands for."""

# libyaml where PyYAML was built with it: eight times faster
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BoundedLoader(_SafeLoader):
    """YAML with whole numbers that a float can be near to: any other breaks the arithmetic later,
    and Python writes none of more than 4,300 digits.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if number.bit_length() > 1000:
            raise yaml.constructor.ConstructorError(
                None, None, "a number has more than 300 digits", node.start_mark
            )
        return number


BoundedLoader.add_constructor("tag:yaml.org,2002:int", BoundedLoader.construct_yaml_int)


class _Loader(BoundedLoader):
    """YAML without tags and dates, and with an error where a key is given twice with different
    values.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a list or a mapping", key_node.start_mark
                )
            before = keys.get(key_node.value)
            same = isinstance(before, yaml.ScalarNode) and before.value == value_node.value
            merged = key_node.tag == "tag:yaml.org,2002:merge"
            if before is not None and not same and not merged:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key_node.value}' is given twice", key_node.start_mark
                )
            keys[key_node.value] = value_node
        return super().construct_mapping(node, deep)


# Dates stay text: what is read here is written again, and nothing computes with them.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


def check_text(text: str) -> None:
    """Refuse a text that no file of ours would hold.

    Raises:
        SparkbookError: it is longer than `MAX_BYTES`, or holds NUL characters or halves of a UTF-16
            pair.
    """
    if len(text) > MAX_BYTES:
        raise SparkbookError(
            f"this text has more than {MAX_BYTES // 1000} kB; cut it down to the part that matters"
        )
    if "\0" in text:
        at = text.index("\0")
        raise SparkbookError(
            f"{text[max(0, at - 20) : at + 21]!r} holds a NUL character, which no command line can"
            " hold: take it out"
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise SparkbookError(
            f"character {error.start + 1} is half of a UTF-16 pair and no text: save the file as"
            " UTF-8"
        ) from None
    if size > MAX_BYTES:
        raise SparkbookError(
            f"this text has more than {MAX_BYTES // 1000} kB; cut it down to the part that matters"
        )


def parse(text: str) -> Any:
    """Return the value of a YAML or JSON document.

    Raises:
        SparkbookError: it is no YAML, holds tags, several documents or a key twice, or is too long,
            too deep or too large.
    """
    documents = parse_all(text)
    if len(documents) > 1:
        raise SparkbookError(
            f"this file holds {len(documents)} documents: keep the one that serves"
        )
    return documents[0] if documents else None


def parse_all(text: str) -> list[Any]:
    """Return the values of a file of YAML documents, such as Kubernetes manifests.

    Raises:
        SparkbookError: as for `parse`.
    """
    check_text(text)
    try:
        _measure(text)
        values = list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise SparkbookError(
            f"this is not YAML{where}:"
            f" {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
        ) from None
    except (ValueError, OverflowError) as error:
        raise SparkbookError(f"this is not YAML: {error}") from None
    except RecursionError:
        raise SparkbookError("this document is nested too deeply") from None
    return _whole(values)


def _measure(text: str) -> None:
    """Walk through the events of a document and adds up what it would become.

    Raises:
        SparkbookError: tags, an alias inside its own anchor, or a bound exceeded.
    """
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = [
        (None, 0)
    ]  # anchor and size of each node that is not closed yet

    def close(anchor: str | None, size: int) -> None:
        if size > _MAX_NODES or open_[0][1] > _MAX_NODES:
            raise SparkbookError(
                f"this document has more than {_MAX_NODES} values"
                " when its anchors are unfolded; the limit is there to protect memory"
            )
        if anchor is not None:
            sizes[anchor] = size
        name, inner = open_[-1]
        open_[-1] = (name, inner + size)

    for event in yaml.parse(text, _Loader):
        _check_event(event, sizes, len(open_))
        if isinstance(event, yaml.DocumentStartEvent):
            sizes.clear()
        elif isinstance(event, yaml.AliasEvent):
            close(None, sizes[event.anchor or ""])
        elif isinstance(event, yaml.ScalarEvent):
            close(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            close(*open_.pop())


def _check_event(event: yaml.Event, anchors: Container[str], depth: int) -> None:
    """Refuse a tag, an alias without a finished anchor, and a node that is too deep.

    Raises:
        SparkbookError: the event is one of these.
    """
    line = f"line {event.start_mark.line + 1 if event.start_mark else '?'}"
    if getattr(event, "tag", None) not in (None, "!"):
        raise SparkbookError(
            f"{line} has the tag {event.tag}: tags are not read, remove it"  # type: ignore[attr-defined]
        )
    if isinstance(event, yaml.AliasEvent) and event.anchor not in anchors:
        raise SparkbookError(
            f"{line}: *{event.anchor} is inside the value that it names, or before it"
        )
    if isinstance(event, yaml.CollectionStartEvent) and depth >= _MAX_DEPTH:
        raise SparkbookError(f"{line} is nested more than {_MAX_DEPTH} levels deep")


def parse_json(text: str) -> Any:
    """Return the value of a JSON document, within the same bounds.

    Raises:
        SparkbookError: it is no JSON, or out of bounds.
    """
    check_text(text)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SparkbookError(f"this is not JSON: {error}") from None
    except RecursionError:
        raise SparkbookError("this document is nested too deeply") from None
    _check_value(value, 0)
    return _whole(value)


def _whole(value: Any) -> Any:
    """Return the value if all its texts are text: an escape such as `\\ud800` can spell half a
    character in YAML and JSON.
    """
    try:
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode()
    except UnicodeEncodeError:
        raise SparkbookError(
            "this document spells half a character (a lone surrogate), which is no text"
        ) from None
    return value


def _check_value(value: Any, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise SparkbookError(f"this document is nested more than {_MAX_DEPTH} levels deep")
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    size = 1 + sum(_check_value(item, depth + 1) for item in items)
    if size > _MAX_NODES:
        raise SparkbookError(f"this document has more than {_MAX_NODES} values")
    return size


class _Dumper(yaml.SafeDumper):
    """Block style, lists indented under their key, no anchors, and whatever looks like a number
    quoted: readers differ in what they take for one.
    """

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text and re.fullmatch(r"[!-~](?:[ -~]|\n)*[!-~]\n?", text):
        style = "|"
    elif (
        not text.isprintable()
        or re.match(r"[-+.]?[0-9]|[-+]?\.(inf|nan)", text, re.IGNORECASE)
        or text.lower() in ("y", "n", "yes", "no", "on", "off")
    ):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def dump(value: Any) -> str:
    """Return a value as YAML."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def text_of(value: Any) -> str:
    """Return a scalar as a command line or an environment would hold it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def mapping(value: Any, place: str) -> dict[str, Any]:
    """Return a mapping with text for keys; null is an empty one.

    Raises:
        SparkbookError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SparkbookError(f"{place}: expected a mapping, found {kind_of(value)}")
    return {text_of(key): item for key, item in value.items()}


def sequence(value: Any, place: str) -> list[Any]:
    """Return a list; null is an empty one.

    Raises:
        SparkbookError: it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise SparkbookError(f"{place}: expected a list, found {kind_of(value)}")
    return value


def scalar(value: Any, place: str) -> str:
    """Return a scalar as text.

    Raises:
        SparkbookError: it is a list, a mapping or null.
    """
    if value is None or isinstance(value, dict | list):
        raise SparkbookError(f"{place}: expected a text or a number, found {kind_of(value)}")
    return text_of(value)


def optional(value: Any, place: str) -> str | None:
    """Return a scalar as text, or None for null."""
    return None if value is None else scalar(value, place)


def kind_of(value: Any) -> str:
    """Return what a value of a document is, in plain words."""
    kinds = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "nothing",
    }
    return kinds.get(type(value), type(value).__name__)
