"""The candidates of a recipe, and the answer, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.tune.answer import Answer, Row
from sparkbook.tune.without_start import Pruned
from sparkbook.units import format_seconds


def pruned(found: Pruned) -> Iterator[str]:
    """Yield how many candidates of how many are left, and why each of the others went."""
    whole = len(found.left) + len(found.dropped)
    counts = ", ".join(f"{count} {reason}" for reason, count in found.counts.items())
    yield f"{len(found.left)} of {whole} candidates are left" + (f" ({counts})" if counts else "")
    if found.judge:
        yield f"asked: {found.judge}"
    yield from found.notes
    for name, why in found.options.items():
        yield f"option {name}: left out, {why}"
    for one, more in found.causes.values():
        others = f" (and {more} that contain it)" if more else ""
        yield f"  {one.reason:<10} {one.candidate.key}{others}: {one.text}"
    for candidate in found.left:
        yield f"  left       {candidate.key}"


NOTHING = "No candidate is better by more than the noise: keep the recipe as it is."


def answer(found: Answer) -> Iterator[str]:
    """Yield what a tuning came to."""
    yield f"{found.starts} starts, {format_seconds(found.spent_s)}"
    yield from found.died
    yield from (f"not counted: {sentence}" for sentence in found.rejected)
    for why in dict.fromkeys(found.unstarted.values()):
        count = list(found.unstarted.values()).count(why)
        yield f"{count} candidates were not started: {why}"
    if found.rows:
        node = f" ({found.about['node']})" if found.about.get("node") else ""
        yield f"measured with {found.about['engine']} on {found.about['machine']}{node}"
    if found.margin and found.margin < 2:
        yield f"equal servers, started twice, may differ by {found.margin - 1:.0%} (95 %)"
    for row in found.rows:
        yield from _row(row, found)
    for change, ratio in found.parts.items():
        yield f"  of this, {change} gives {ratio}"
    for key, seconds in found.loading.items():
        if seconds:
            times = " and ".join(format_seconds(one) for one in seconds)
            faster = ", faster than the recipe each time" if key == found.loader else ""
            yield f"start of {key}: {times}{faster}"
    yield f"winner: {found.winner.key}" if found.winner else NOTHING


def _row(row: Row, found: Answer) -> Iterator[str]:
    role = "winner" if row is found.row else "" if row.ratio else "recipe"
    low, high = row.interval or (row.tok_s, row.tok_s)
    speed = f"{row.tok_s:.1f} tok/s a request ({low:.1f} to {high:.1f})"
    yield f"{role:<7} {row.candidate.key}: " + (f"{row.ratio}, {speed}" if row.ratio else speed)
    speeds = [f"{load}: {speed:.0f}" for load, speed in row.speeds.items() if speed]
    facts = [f"tok/s by requests at a time {', '.join(speeds)}"] if speeds else []
    if row.first_s is not None:
        facts.append(f"first token of {row.first_tokens:,} tokens after {row.first_s:.2f} s")
    if row.kv_tokens is not None:
        facts.append(f"KV cache of {row.kv_tokens:,} tokens")
    if facts:
        yield f"        {'; '.join(facts)}"
    if row.trial:
        yield f"        answers: {row.trial.verdict} ({row.trial.equality}; {row.trial.scores})"
    if row.refused:
        yield f"        may not win: {row.refused}"
