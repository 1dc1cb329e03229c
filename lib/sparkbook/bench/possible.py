"""Figures that cannot be: what a server, a file or a clock claims is held against what was sent,
what came, when it came, and what the machine can do.

A server is believed nothing that it could not have done. What lies within these bounds may still be
wrong; it only is not impossible. Pure; each judge returns its answer or None.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median

from sparkbook.bench.results import Request
from sparkbook.bench.seen import Answer, Judge, Seen

JUDGES: dict[str, Judge] = {}
"""Judges by the code of their rule; texts and reasons stand in `rules.yaml`."""

_HIDDEN = 32
_EVENTS_EACH, _EVENTS_MORE = 1.25, 4
_BYTES_EACH, _BYTES_TOKENS = 32, 8
_AGREE = 0.02
_TEMPLATE, _WORDS_A_TOKEN = 1024, 2
_SOONEST_S, _ROUNDING_S = 1e-4, 1e-3
_CLOCK_S, _CLOCK_SHARE = 0.1, 0.001
_TEXTS, _LONG_BYTES = 4, 64
_MERGED = 1.5


def _rule(code: str) -> Callable[[Judge], Judge]:
    def add(judge: Judge) -> Judge:
        JUDGES[code] = judge
        return judge

    return add


def _good(seen: Seen) -> list[Request]:
    return [r for r in seen.cell.requests if r.error is None]


def _complete(seen: Seen) -> bool:
    """Whether every request was answered, so that counts of client and engine can be compared."""
    figures = seen.cell.figures
    return bool(figures.completed) and not figures.failed and not seen.cell.interrupted


def _text_bytes(request: Request) -> int | None:
    """Bytes of the reply; None where its text was not kept."""
    if request.text_bytes is not None or request.text is None:
        return request.text_bytes
    return len(request.text.encode())


def _events(request: Request) -> int | None:
    """Events with tokens; None where a recording may have kept only the first and the last."""
    if request.chunk_tokens:
        known = len(request.chunk_tokens) == len(request.stamps_s)
    else:
        known = _text_bytes(request) is not None
    return len(request.stamps_s) if known else None


def _error(wrong: Iterable[str], message: str) -> Answer | None:
    """An error about the replies that these pieces of evidence are of; `{}` is their number."""
    evidence = list(wrong)
    return ("error", message.format(len(evidence)), evidence[0]) if evidence else None


# ---- tokens against what was asked for and what came


@_rule("BENCH401")
def _more_than_asked(seen: Seen) -> Answer | None:
    limit = seen.cell.max_tokens
    return _error(
        (
            f"{r.prompt}: {r.output_tokens} tokens, max_tokens {limit}"
            for r in _good(seen)
            if limit is not None and (r.output_tokens or 0) > limit
        ),
        "{} replies have more tokens than were asked for.",
    )


@_rule("BENCH402")
def _without_text(seen: Seen) -> Answer | None:
    wrong = []
    for r in _good(seen):
        size, events = _text_bytes(r), _events(r)
        if r.output_tokens is None or size is None or events is None:
            continue
        if r.output_tokens > size + events + _HIDDEN:
            wrong.append(
                f"{r.prompt}: {r.output_tokens} tokens in {size} bytes of text and {events} events"
            )
    return _error(wrong, "{} replies have more tokens than their text can hold.")


@_rule("BENCH403")
def _without_tokens(seen: Seen) -> Answer | None:
    wrong = []
    for r in _good(seen):
        size, events, tokens = _text_bytes(r) or 0, _events(r) or 0, r.output_tokens
        if tokens is None:
            continue
        if events > _EVENTS_EACH * tokens + _EVENTS_MORE or size > _BYTES_EACH * (
            tokens + _BYTES_TOKENS
        ):
            wrong.append(f"{r.prompt}: {tokens} tokens, {size} bytes of text, {events} events")
    return _error(wrong, "{} replies have fewer tokens than their text needs.")


@_rule("BENCH404")
def _above_memory(seen: Seen) -> Answer | None:
    if seen.roof is None:
        return None
    figures, slots = seen.cell.figures, seen.cell.concurrency
    one = figures.decode_tok_s.median if figures.decode_tok_s else None
    for speed, requests in ((figures.out_tok_s, slots), (figures.steady_tok_s, slots), (one, 1)):
        if speed is not None and requests and speed > (top := seen.roof.decode_tok_s(requests)):
            return (
                "error",
                f"{speed:.0f} tok/s are more than memory allows: {top:.0f} tok/s.",
                f"requests: {requests}; {seen.roof}",
            )
    return None


@_rule("BENCH405")
def _above_arithmetic(seen: Seen) -> Answer | None:
    speeds, engine = seen.cell.figures.prefill_tok_s, seen.cell.engine
    if seen.roof is None or speeds is None or seen.cell.caching:
        return None
    computed = 1 - ((engine.prefix_hits if engine else None) or 0.0)
    if speeds.median * computed <= seen.roof.prefill_tok_s:
        return None
    return (
        "error",
        f"{speeds.median * computed:.0f} prompt tokens a second are more than the GPU can compute:"
        f" {seen.roof.prefill_tok_s:.0f}.",
        str(seen.roof),
    )


@_rule("BENCH406")
def _prompt_count(seen: Seen) -> Answer | None:
    engine, figures = seen.cell.engine, seen.cell.figures
    counted = engine.prompt_tokens if engine else None
    if counted is None or figures.input_tokens is None or not _complete(seen):
        return None
    if engine and engine.preemptions:  # their prompts are read again
        return None
    if abs(counted - figures.input_tokens) <= max(_AGREE * figures.input_tokens, figures.completed):
        return None
    return (
        "error",
        f"The engine read {counted:g} prompt tokens, and `usage` says {figures.input_tokens}.",
        "prompt_tokens_total against usage",
    )


@_rule("BENCH407")
def _request_count(seen: Seen) -> Answer | None:
    counted = seen.cell.engine.first_tokens if seen.cell.engine else None
    mine = seen.cell.figures.completed
    if counted is None or not _complete(seen) or abs(counted - mine) <= _AGREE * mine:
        return None
    return (
        "error",
        f"The engine answered {counted:g} requests, and the client got {mine} replies.",
        "time_to_first_token_seconds_count against replies",
    )


@_rule("BENCH408")
def _prompt_size(seen: Seen) -> Answer | None:
    if len(seen.prompts) != len(seen.cell.requests):
        return None
    wrong = []
    for r, prompt in zip(seen.cell.requests, seen.prompts, strict=True):
        words, size = len(prompt.split()), len(prompt.encode())
        if r.error is not None or r.prompt_tokens is None:
            continue
        if not words / _WORDS_A_TOKEN <= r.prompt_tokens <= size + _TEMPLATE:
            wrong.append(
                f"{r.prompt}: {r.prompt_tokens} prompt tokens for {words} words, {size} bytes"
            )
    return _error(wrong, "{} prompts cannot have the number of tokens that was reported.")


# ---- times


@_rule("BENCH409")
def _too_soon(seen: Seen) -> Answer | None:
    wrong = []
    for r in _good(seen):
        first = min((t for t in (r.ttfr_s, r.ttft_s, *r.stamps_s[:1]) if t is not None), default=1)
        if not first >= _SOONEST_S:
            wrong.append(f"{r.prompt}: {first * 1000:g} ms after the request was sent")
    return _error(wrong, "{} replies began before the request can have been read.")


@_rule("BENCH410")
def _backwards(seen: Seen) -> Answer | None:
    wrong = []
    for r in _good(seen):
        marks = [t for t in (r.ttfr_s, r.ttft_s, r.ttfo_s) if t is not None]
        for earlier, later in (*pairwise(r.stamps_s), *pairwise(marks)):
            if not earlier <= later:
                wrong.append(f"{r.prompt}: {later:g} s comes after {earlier:g} s")
                break
    return _error(wrong, "In {} replies time runs backwards.")


@_rule("BENCH411")
def _after_the_end(seen: Seen) -> Answer | None:
    wrong = []
    for r in _good(seen):
        last = max((t for t in (r.ttft_s, *r.stamps_s[-1:]) if t is not None), default=None)
        if last is None or r.latency_s is None or last <= r.latency_s + _ROUNDING_S:
            continue
        wrong.append(f"{r.prompt}: last token at {last:g} s, end at {r.latency_s:g} s")
    return _error(wrong, "{} replies ended before their last token.")


@_rule("BENCH412")
def _crowded(seen: Seen) -> Answer | None:
    slots, duration = seen.cell.concurrency, seen.cell.figures.duration_s
    spent = math.fsum(r.stamps_s[-1] for r in _good(seen) if r.stamps_s)
    if not slots or not duration or seen.cell.rate is not None:
        return None
    if spent <= slots * duration * (1 + _AGREE):
        return None
    return (
        "error",
        f"The requests took {spent:.1f} s, and {slots} at a time had {slots * duration:.1f} s.",
        f"sum of the times to the last token against {slots} x {duration:.2f} s",
    )


@_rule("BENCH413")
def _total(seen: Seen) -> Answer | None:
    figures, slots = seen.cell.figures, seen.cell.concurrency
    total, tokens, duration = figures.out_tok_s, figures.output_tokens, figures.duration_s
    if total is None:
        return None
    if tokens is not None and duration and abs(total * duration - tokens) > _AGREE * tokens:
        return (
            "error",
            f"{total:.1f} tok/s in {duration:.2f} s are not {tokens} tokens.",
            "out_tok_s x duration_s against output_tokens",
        )
    each = [
        speeds.high
        for speeds in (figures.req_tok_s, figures.decode_tok_s)
        if speeds and speeds.n == figures.completed
    ]
    if not each or not slots or total <= slots * max(each) * (1 + _AGREE):
        return None
    return (
        "error",
        f"{total:.1f} tok/s are more than {slots} requests at the fastest one's speed.",
        f"the fastest request had {max(each):.1f} tok/s",
    )


# ---- ends and counts


@_rule("BENCH414")
def _no_finish(seen: Seen) -> Answer | None:
    if seen.cell.client.events is None:  # other tools keep no reasons
        return None
    return _error(
        (f"{r.prompt}: no finish_reason" for r in _good(seen) if r.finish is None),
        "{} replies ended without a reason.",
    )


@_rule("BENCH415")
def _cut_short(seen: Seen) -> Answer | None:
    limit = seen.cell.max_tokens
    return _error(
        (
            f"{r.prompt}: {r.output_tokens} tokens, max_tokens {limit}"
            for r in _good(seen)
            if r.finish == "length"
            and limit is not None
            and r.output_tokens is not None
            and r.output_tokens < limit - 1
        ),
        "{} replies ended for their length, and are shorter than that.",
    )


@_rule("BENCH416")
def _accepted(seen: Seen) -> Answer | None:
    engine = seen.cell.engine
    if engine is None or engine.accepted is None or engine.drafted is None:
        return None
    if engine.accepted <= engine.drafted:
        return None
    return (
        "error",
        f"{engine.accepted:g} drafts were accepted, and {engine.drafted:g} were made.",
        "spec_decode_num_accepted_tokens_total against spec_decode_num_draft_tokens_total",
    )


@_rule("BENCH417")
def _positions(seen: Seen) -> Answer | None:
    rates = seen.cell.engine.per_position if seen.cell.engine else []
    falling = all(later <= earlier + 1e-6 for earlier, later in pairwise(rates))
    if falling and all(0 <= rate <= 1 + 1e-6 for rate in rates):
        return None
    return (
        "error",
        "The acceptance by position cannot be: a draft counts only if all before it were accepted.",
        ", ".join(f"{rate:.1%}" for rate in rates),
    )


@_rule("BENCH418")
def _more_cached(seen: Seen) -> Answer | None:
    hits = seen.cell.engine.prefix_hits if seen.cell.engine else None
    if hits is not None and not 0 <= hits <= 1:
        return (
            "error",
            f"{hits:.1%} of the prompt tokens came from the prefix cache, which cannot be.",
            "prefix_cache_hits_total / prefix_cache_queries_total",
        )
    return _error(
        (
            f"{r.prompt}: {r.cached_tokens} of {r.prompt_tokens} prompt tokens"
            for r in _good(seen)
            if (r.cached_tokens or 0) > (r.prompt_tokens or math.inf)
        ),
        "{} replies report more cached tokens than their prompt has.",
    )


@_rule("BENCH419")
def _negative(seen: Seen) -> Answer | None:
    for part in (seen.cell.engine, seen.cell.figures):
        for name, value in part or ():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                return (
                    "error",
                    f"{name} is {value:g}, which cannot be.",
                    "counts and times are numbers from 0 on: a counter went backwards, or the"
                    " result was changed",
                )
    return None


@_rule("BENCH420")
def _same_replies(seen: Seen) -> Answer | None:
    prompts = defaultdict(set)
    for r in _good(seen):
        if r.text and len(r.text.encode()) >= _LONG_BYTES:
            prompts[r.text].add(r.prompt)
    total = len(set().union(*prompts.values()))
    text, alike = max(prompts.items(), key=lambda item: len(item[1]), default=("", set[str]()))
    if len(alike) < _TEXTS or len(alike) * 2 <= total:
        return None
    return (
        "error",
        f"{len(alike)} of {total} different prompts got the same reply.",
        f"“{text[:60]}…”",
    )


@_rule("BENCH421")
def _clock_step(seen: Seen) -> Answer | None:
    apart, duration = seen.cell.client.clock_apart_s, seen.cell.figures.duration_s or 0.0
    if apart is None or abs(apart) <= _CLOCK_S + _CLOCK_SHARE * duration:
        return None
    return (
        "warning",
        f"The time of day moved {apart:+.2f} s against the clock that measures.",
        f"in {duration:.1f} s: the time was set, or the machine slept",
    )


@_rule("BENCH422")
def _more_than_sent(seen: Seen) -> Answer | None:
    figures, sent = seen.cell.figures, len(seen.cell.requests)
    count = figures.completed + figures.failed
    if not sent or count == sent:
        return None
    return (
        "error",
        f"{count} requests are counted, and {sent} were sent.",
        "completed + failed against the requests of the row",
    )


@_rule("BENCH423")
def _unexplained(seen: Seen) -> Answer | None:
    engine = seen.cell.engine
    if engine is None or engine.drafts or not _complete(seen):
        return None
    made = (seen.cell.figures.output_tokens or 0) - seen.cell.figures.completed
    if engine.steps and made <= engine.steps * (
        1 + _AGREE
    ):  # merged on their way, all of them made
        return None
    shares = [
        (r.output_tokens - r.first_tokens) / (events - 1)
        for r in _good(seen)
        if r.output_tokens and (events := _events(r)) and events > 1
    ]
    if not shares or median(shares) <= _MERGED:
        return None
    return (
        "warning",
        f"{median(shares):.2f} tokens came in an event, and the engine drafted none.",
        "tokens after the first / events after the first, median of the replies: the server merges"
        " steps, or counts what it does not send",
    )
