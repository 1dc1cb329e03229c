"""A release, and the difference of two, in words."""

from __future__ import annotations

import json
from typing import Any

from sparkbook import releases
from sparkbook.releases import CATEGORIES, Change

_PLAIN = {
    "bool": "switch",
    "human_int": "number such as 64k",
    "human_int_or_auto": "number such as 64k, or auto",
    "json": "JSON",
    "json_or_str": "JSON or text",
    "str": "text",
    "int": "number",
    "float": "number with a fraction",
}


def describe(category: str, value: Any) -> str:
    """What the table says of a symbol, in a few words; empty where there is nothing but its
    name.
    """
    if category == "options":
        return _option(value)
    if category == "envs":
        return f"default {_short(value)}" if value is not None else ""
    if category == "architectures":
        return str(value)
    if category == "metrics":
        return str(value)
    if category in ("routes", "config_keys") and isinstance(value, list):
        return " ".join(value) if category == "routes" else _list(value)
    return ""


def _option(value: dict[str, Any]) -> str:
    kind = value.get("type", "str")
    parts = [
        (
            f"JSON of {kind.removeprefix('object:')}"
            if kind.startswith("object:")
            else _PLAIN.get(kind, kind)
        )
    ]
    if choices := value.get("choices"):
        parts = [_list([choice for choice in choices if choice is not None])]
    default = value.get("default")
    if (
        default is not None
        and not (isinstance(default, dict) and default.keys() & {"object", "unknown"})
        and default != ""
    ):
        parts.append(f"default {_short(default)}")
    if value.get("deprecated"):
        parts.append("deprecated")
    return ", ".join(parts)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value or "''"
    return text if len(text) <= 60 else text[:57] + "..."


def _list(values: list[Any]) -> str:
    return "one of " + ", ".join(str(value) for value in values)


def explain(change: Change) -> str:
    """One change in words: `gpu-memory-utilization: default 0.9, now 0.92`."""
    if change.change == "added":
        text = describe(change.category, change.after)
    elif change.change == "removed":
        text = ""
    else:
        text = _changed(change)
    shown = f"--{change.name}" if change.category == "options" else change.name
    return f"{shown}: {text}" if text else shown


def _changed(change: Change) -> str:
    before, after = change.before, change.after
    if change.category == "config_keys":
        before, after = ({"choices": v} if isinstance(v, list) else {} for v in (before, after))
    if not isinstance(before, dict) or not isinstance(after, dict):
        was, now = (", ".join(v) if isinstance(v, list) else _short(v) for v in (before, after))
        return f"{was}, now {now}"
    parts = []
    old, new = before.get("choices") or [], after.get("choices") or []
    if added := [str(c) for c in new if c not in old and c is not None]:
        parts.append(f"now accepts {', '.join(added)}")
    if gone := [str(c) for c in old if c not in new and c is not None]:
        parts.append(
            f"no longer accepts {', '.join(gone)}" if new else "its values are checked at start"
        )
    if before.get("default") != after.get("default"):
        parts.append(f"default {_default(before)}, now {_default(after)}")
    if before.get("type") != after.get("type"):
        parts.append(f"type {before.get('type')}, now {after.get('type')}")
    if after.get("deprecated") and not before.get("deprecated"):
        parts.append(f"deprecated: {after['deprecated']}")
    if sorted(before.get("aliases", [])) != sorted(after.get("aliases", [])):
        parts.append(f"also {', '.join(after.get('aliases', [])) or 'no short form'}")
    return "; ".join(parts) or "said differently in the help"


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if isinstance(default, dict) and default.keys() & {"object", "unknown"}:
        return "its own"
    return "none" if default is None else _short(default)


def changelog(before: str, after: str) -> list[tuple[str, list[str]]]:
    """What changed between two releases: titles such as `options of vllm serve: added`, each with
    its lines.

    Raises:
        ReleaseError: the table does not know one of them.
    """
    changes = releases.diff(before, after)
    sections: list[tuple[str, list[str]]] = []
    for category, title in CATEGORIES.items():
        for kind in ("added", "removed", "changed"):
            if lines := [
                explain(c) for c in changes if c.category == category and c.change == kind
            ]:
                sections.append((f"{title}: {kind}", lines))
    return sections


def to_dict(version: str) -> dict[str, Any]:
    """Everything about a release, as `releases show --json` prints it."""
    release = releases.get(version)
    return {
        "version": release.version,
        "requires": release.requires,
        **{name: release.names(name) for name in CATEGORIES},
    }
