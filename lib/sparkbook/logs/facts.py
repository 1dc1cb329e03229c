"""Facts about the host that a log does not hold: from `sparkbook check --json`, from /proc/meminfo,
or written by hand.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.util import documents

_NAMES = {
    "total_gib": ("memtotal", "total", "memory_total", "mem_total", "total_memory"),
    "available_gib": (
        "memavailable",
        "available",
        "memory_available",
        "mem_available",
        "available_before_start",
    ),
    "free_gib": ("memfree", "free", "mem_free", "memory_free"),
    "fraction": ("gpu_memory_utilization", "fraction", "utilization"),
    "overhead_gib": (
        "non_torch_and_activation",
        "overhead",
        "non_torch_activation",
        "non_torch_plus_activation",
        "activation_peak",
    ),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "max_num_seqs": ("max_num_seqs",),
}
_UNITS = {
    "kb": 2**10,
    "kib": 2**10,
    "mb": 10**6,
    "mib": 2**20,
    "gb": 10**9,
    "gib": 2**30,
    "b": 1,
    "bytes": 1,
}


@dataclass(frozen=True)
class Facts:
    """What is known about the host. Memory is in GiB; None is unknown.

    Attributes:
        engines: processes of engines that hold memory: (name, pid, MiB); pid and size may be None.
        text: everything that was given, for signatures that look for words in it.
    """

    total_gib: float | None = None
    available_gib: float | None = None
    free_gib: float | None = None
    fraction: float | None = None
    overhead_gib: float | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    engines: tuple[tuple[str, int | None, float | None], ...] = field(default=())
    text: str = ""


def parse_facts(text: str) -> Facts:
    """Read facts: JSON (also nested), YAML, lines `name: value`, or the text of /proc/meminfo.

    Sizes may have a unit; without one, numbers up to 4096 are GiB and larger ones kB, as the kernel
    writes them.

    Raises:
        SparkbookError: nothing in the text is a fact.
    """
    pairs: list[tuple[str, Any]] = []
    try:
        _flatten("", json.loads(text), pairs)
    except (ValueError, RecursionError):
        try:
            value = documents.parse(text)
        except SparkbookError:
            value = None
        if isinstance(value, dict | list):
            _flatten("", value, pairs)
        else:
            for part in re.split(r"[,;\n]", text)[:10_000]:
                if match := re.fullmatch(
                    r"\s*([A-Za-z][\w() -]{0,60}?)\s*[:= ]\s*(-?[\d.]+\s*\w*)\s*", part[:200]
                ):
                    pairs.append((match[1], match[2]))
    found: dict[str, Any] = {}
    for name, raw in pairs:
        key = re.sub(r"[^a-z]+", "_", name.lower()).strip("_")
        bytes_in_name = key.endswith(("_bytes", "_byte"))
        key = re.sub(r"_(?:gib|bytes?|kib|kb|mib)$", "", key)
        for field_name, names in _NAMES.items():
            if key in names and field_name not in found:
                value = _value(field_name, raw, bytes_in_name, name.lower())
                if value is not None:
                    found[field_name] = value
    engines = tuple(_engines(pairs, text))
    if not found and not engines:
        raise SparkbookError(
            "the facts hold nothing that is known: give the JSON of `sparkbook check --json`, or"
            " lines such as 'MemTotal: 121.63 GiB' and 'MemAvailable: 101.4 GiB'"
        )
    return Facts(**found, engines=engines, text=text[:200_000])


def _flatten(name: str, value: Any, pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 10_000:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(str(key), inner, pairs)
    elif isinstance(value, list):
        for inner in value:
            _flatten(name, inner, pairs)
    else:
        pairs.append((name, value))


def _value(name: str, raw: Any, in_bytes: bool, key: str) -> Any:
    if name == "kv_cache_dtype":
        return str(raw)
    if re.match(r"\s*(-\s*[\d.]|[-+]?\.?(nan|inf)\b)", str(raw), re.IGNORECASE):
        raise SparkbookError(
            f"the fact {key}: {str(raw)[:40]} is no amount: leave out what is not known"
        )
    match = re.match(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(raw))
    if not match:
        return None
    number = float(match[1])
    if name == "fraction":
        return number if 0 < number <= 1 else None
    if name == "max_num_seqs":
        return int(number)
    unit = (
        "b"
        if in_bytes
        else match[2].lower()
        or next((u for u in ("gib", "mib", "kib", "kb") if key.endswith(f"_{u}")), "")
    )
    if unit in _UNITS:
        return number * _UNITS[unit] / 2**30
    if number > 2**33:
        return number / 2**30
    return number if number <= 4096 else number * 2**10 / 2**30


def _engines(pairs: list[tuple[str, Any]], text: str) -> list[tuple[str, int | None, float | None]]:
    found = []
    for match in re.finditer(r"VLLM::(\w+)", text):
        near = text[max(match.start() - 120, 0) : match.end() + 120]
        pid = re.search(r"pid\W{1,4}(\d+)", near, re.IGNORECASE) or re.search(
            r"\b(\d{3,7})\s+C\s+VLLM", near
        )
        mib = re.search(r"(\d{3,7})\s*MiB", near)
        found.append((match[1], int(pid[1]) if pid else None, float(mib[1]) if mib else None))
    return found[:50]
