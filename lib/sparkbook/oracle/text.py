"""An answer for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from sparkbook.releases.answers import Answer, Capacity
from sparkbook.units import GIB
from sparkbook.util.styled import Styled


def lines(answer: Answer) -> Iterator[Styled]:
    """Yield the answer: the verdict, what vLLM made of the options, backends, weights, cache."""
    judge = answer.judge
    where = f"pretending {judge.machine}" if judge.pretended else f"on {judge.machine}"
    if answer.failed is not None:
        yield Styled(f"{judge} gave no answer: {answer.failed}.", "bold yellow")
        yield from (Styled(f"  {line}", "dim") for line in answer.last_words)
        return
    if answer.refused is not None:
        yield Styled(f"Refused by {judge}, {where}:", "bold red")
        yield Styled(f"  {answer.refused}")
    else:
        yield Styled(f"Accepted by {judge}, {where}, as far as: {answer.depth}", "bold green")
    for option in answer.left_out:
        yield Styled(f"  {option} was left out: it names code or files that are not here", "dim")
    yield from _options(answer)
    yield from _weights(answer)
    yield from _backends(answer)
    yield from _cache(answer)
    yield from _admission(answer)
    if answer.warnings:
        yield Styled("")
        yield Styled("vLLM warns", "bold")
        yield from (Styled(f"  {line}") for line in answer.warnings)
    yield Styled("")
    yield from (
        Styled(f"{name}: config from {source}", "dim") for name, source in answer.files.items()
    )


def _options(answer: Answer) -> Iterator[Styled]:
    if not answer.resolved:
        return
    yield Styled("")
    yield Styled(f"  {'option':<28}{'asked':<22}resolved", "bold")
    changed = answer.changed
    for name, (asked, got) in answer.resolved.items():
        mark = "  <- changed by vLLM" if name in changed else ""
        shown = "" if asked is None else _word(asked)
        yield Styled(f"  {name:<28}{shown:<22}{_word(got)}{mark}", "yellow" if mark else "")
    if (spec := answer.speculation) is not None:
        yield Styled(f"  {'speculative decoding':<28}{'':<22}{spec.method}, {spec.tokens} tokens")


def _word(value: Any) -> str:
    return "-" if value is None else str(value)[:60]


def _weights(answer: Answer) -> Iterator[Styled]:
    if answer.weights_bytes is None:
        return
    yield Styled("")
    yield Styled(f"Weights: {answer.weights_bytes / GIB:.2f} GiB", "bold")
    for part in answer.weights:
        if part.bytes >= 0.005 * GIB:
            yield Styled(f"  {part.kind:<28}{part.dtype:<22}{part.bytes / GIB:.2f} GiB")


def _backends(answer: Answer) -> Iterator[Styled]:
    if not answer.backends:
        return
    yield Styled("")
    yield Styled("Backends", "bold")
    plain: Counter[str] = Counter()
    for one in answer.backends:
        if one.backend.startswith("Unquantized"):
            plain[one.backend] += one.layers
        else:
            yield Styled(f"  {one.kind:<28}{one.backend:<50}{one.layers} layers")
    for name, count in plain.items():
        yield Styled(f"  {'everything else':<28}{name:<50}{count} layers", "dim")


def _cache(answer: Answer) -> Iterator[Styled]:
    cache = answer.cache
    if cache is None:
        return
    yield Styled("")
    yield Styled(f"KV cache, blocks of {cache.block_size} tokens", "bold")
    for group in cache.layers:
        window = f", window {group.window}" if group.window else ""
        yield Styled(
            f"  {group.layers} layers: {group.spec}{window}, page {group.page_bytes:,} bytes"
        )
    for size in cache.sizes:
        yield Styled(f"  {_size(size)}")


def _size(size: Capacity) -> str:
    head = f"{size.bytes / GIB:.2f} GiB: "
    if size.refused is not None or size.tokens is None:
        return head + (size.refused or "vLLM names no number of tokens")
    times = f", {size.concurrency:.2f}x at {size.context:,} tokens" if size.concurrency else ""
    return f"{head}{size.tokens:,} tokens{times}"


def _admission(answer: Answer) -> Iterator[Styled]:
    check = answer.admission
    if check is None:
        return
    yield Styled("")
    if check.refused is not None:
        yield Styled(f"Start check: refused. {check.refused}", "red")
    elif check.requested_bytes is None:
        yield Styled(f"Start check: {check.unknown}")
    else:
        yield Styled(f"Start check: passed, {check.requested_bytes / GIB:.2f} GiB are asked for")
