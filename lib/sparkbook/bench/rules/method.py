"""3xx: how the measurement was made."""

from __future__ import annotations

import re
import statistics
from collections import Counter

from sparkbook.bench import stats
from sparkbook.bench.examples import (
    LOOP,
    Client,
    WarmUp,
    engine,
    repeating,
    request,
    rows,
    seen,
    spread,
)
from sparkbook.bench.family import BENCH, OWN
from sparkbook.bench.results import Cell
from sparkbook.bench.seen import Seen
from sparkbook.findings import Severity
from sparkbook.rules import Hit

_SPREAD = 0.05
_LAG_S = 0.005
_RISE, _LEAP = 1.10, 1.30
_FEW = 5
_SHORT = 16


@BENCH.rule(
    "BENCH301",
    "no-warm-up",
    "warning",
    source=OWN,
    fails=lambda: seen(cell={"warm_up": None}),
    passes=lambda: seen(),
)
def cold(seen: Seen) -> Hit | None:
    """Nothing of this shape was sent before the clock ran."""
    if seen.cell.warm_up is None or not seen.cell.warm_up.ttfts_s:
        return Hit(
            "No warm-up of this shape.",
            "the first requests of a batch size or a prompt length can pay for compilation",
        )
    return None


@BENCH.rule(
    "BENCH302",
    "warm-up-not-settled",
    "warning",
    source=OWN,
    fails=lambda: seen(cell={"warm_up": WarmUp(ttfts_s=[9.0, 5.0, 3.0])}),
    passes=lambda: seen(),
)
def unsettled(seen: Seen) -> Hit | None:
    """TTFT still fell when the warm-up was given up.

    **Threshold:** two waves in a row within 10 %, or within 20 ms, which is a machine's noise; five
    waves at most.
    """
    warmth = seen.cell.warm_up
    if not warmth or not warmth.ttfts_s or warmth.settled:
        return None
    return Hit(
        "The warm-up did not settle.",
        "TTFT by wave: " + ", ".join(f"{t * 1000:.0f} ms" for t in warmth.ttfts_s),
    )


@BENCH.rule(
    "BENCH303",
    "compilation-inside",
    "error",
    source=OWN,
    fails=lambda: seen([request(n, ttft=31.0 if n == 3 else 0.1) for n in range(16)]),
    passes=lambda: seen([request(n, ttft=2.0, start_s=3.3 * (n // 4)) for n in range(16)]),
)
def late_compile(seen: Seen) -> Hit | None:
    """One request waited more than a second and ten times the median for its first token.

    **Threshold:** a second and ten times the median, both: a moment in which the machine was busy
    is shorter, and a long queue raises the median as well.
    """
    ttfts = [
        (r.ttft_s, r.start_s)
        for r in seen.cell.requests
        if r.error is None and r.ttft_s is not None
    ]
    if len(ttfts) < 4:
        return None
    middle = statistics.median(t for t, _ in ttfts)
    worst = max(t for t, _ in ttfts)
    if worst < 1.0 or worst < 10 * middle:
        return None
    return Hit(
        f"A request waited {worst:.1f} s for its first token, ten times the median.",
        f"median {middle * 1000:.0f} ms: something was compiled or loaded inside the measurement",
    )


@BENCH.rule(
    "BENCH304",
    "spread",
    "warning",
    source=OWN,
    fails=lambda: seen(spread(1.12)),
    passes=lambda: seen(spread(1.03)),
)
def step_spread(seen: Seen) -> Hit | None:
    """The time of a step differs from request to request by more than 5 % (IQR / median): the
    machine was not in one state.

    **Threshold:** 5 % of IQR / median over requests. On an H100 (vLLM 0.24.0, November 2026, this
    project's own runs) undisturbed rows had 1.4 to 2.3 %, rows with drafts or with a busy host's
    CPU 8 to 48 %. Requests of very different length differ rightly, which is why this is a
    warning.
    """
    # Under speculation the tokens of a step differ from text to text; the time of a step does not.
    values = [
        statistics.fmean(gaps)
        for r in seen.cell.requests
        if r.error is None and (gaps := r.step_gaps_s)
    ]
    if len(values) < 4:
        return None
    middle = stats.quantile(values, 0.5)
    if not middle:
        reason = "something between the engine and the client collects the stream"
        return Hit(
            "The replies came in one piece, so no step could be timed.", reason, severity="error"
        )
    share = (stats.quantile(values, 0.75) - stats.quantile(values, 0.25)) / middle
    if share <= _SPREAD:
        return None
    return Hit(
        f"The step time differs by {share:.0%} between requests.",
        f"IQR / median of {len(values)} requests' mean step_gap, over {_SPREAD:.0%}",
    )


@BENCH.rule(
    "BENCH305",
    "few-requests",
    "warning",
    source=OWN,
    fails=lambda: seen([request(n) for n in range(7)]),
    passes=lambda: seen(
        [request(n) for n in range(8)], cell=engine(generation_tokens=512, prompt_tokens=480)
    ),
)
def few(seen: Seen) -> Hit | None:
    """Fewer than two waves: ramp and drain are most of it.

    **Threshold:** two requests for each slot and at least five: with one, every request is in the
    ramp. For a comparison 12 prompts a class are wanted, which `advise` asks for.
    """
    count, least = seen.cell.figures.completed, max(_FEW, 2 * (seen.cell.concurrency or 1))
    if count >= least:
        return None
    return Hit(
        f"Only {count} requests.",
        f"under this load at least {least} are needed to see more than the first wave",
    )


@BENCH.rule(
    "BENCH306",
    "short-replies",
    "warning",
    source=OWN,
    fails=lambda: seen([request(n, tokens=7, finish="stop") for n in range(16)]),
    passes=lambda: seen(
        [request(n, tokens=20, finish="stop") for n in range(16)],
        cell=engine(generation_tokens=320),
    ),
)
def short(seen: Seen) -> Hit | None:
    """Decode speed from a handful of tokens.

    **Threshold:** 16 tokens: the first and the last gap are then an eighth of the gaps.
    """
    lengths = [r.output_tokens for r in seen.cell.requests if r.error is None and r.output_tokens]
    if not lengths or statistics.median(lengths) >= _SHORT:
        return None
    return Hit(
        f"Half of the replies have at most {statistics.median(lengths):g} tokens.",
        f"a decode speed from fewer than {_SHORT} tokens is noise",
    )


@BENCH.rule(
    "BENCH307",
    "repeated-prompts",
    "warning",
    source=OWN,
    fails=lambda: seen(earlier=frozenset({"prompt 3"})),
    passes=lambda: seen(earlier=frozenset({"prompt 99"})),
)
def repeated(seen: Seen) -> Hit | None:
    """The same text was sent more than once, in this row or an earlier one."""
    if seen.cell.caching:
        return None
    repeated = sum(
        count if prompt in seen.earlier else count - 1
        for prompt, count in Counter(seen.prompts).items()
    )
    if not repeated:
        return None
    return Hit(
        f"{repeated} of {len(seen.prompts)} prompts had been sent before.",
        "a repeated prompt is answered from the prefix cache",
    )


@BENCH.rule(
    "BENCH308",
    "faster-when-shared",
    "error",
    source=OWN,
    fails=lambda: rows(119.0, 165.0),
    passes=lambda: rows(119.0, 125.0),
)
def faster_when_shared(low: Cell, high: Cell) -> Hit | None:
    """A request decodes faster with others than under less load: over 10 % it is suspect, over
    30 % wrong. One of the rows was cold, cached, or on another clock; a little of it is a small
    model that waits for the host's CPU instead of its GPU.

    **Threshold:** 10 % is a warning: the spread that BENCH304 allows may be in both rows. 30 % is
    an error: on an H100 a model of 135M parameters, whose steps wait for the host's CPU, was 27 %
    faster at eight requests than at four (328 and 418 tok/s, vLLM 0.24.0, November 2026; this
    project's own run), and that is the largest honest effect seen here; the careless table of
    chapter 10 has 39 to 82 %.
    """
    slow, fast = _speed(low), _speed(high)
    # The tokens of a step depend on the texts; what load cannot do is make the step itself faster.
    if fast <= _RISE * slow:
        return None
    return Hit(
        f"A request decodes at {fast:.0f} tok/s at c={high.concurrency} and at {slow:.0f} tok/s at"
        f" c={low.concurrency}.",
        "median of the requests' speeds; load makes none faster",
        severity="error" if fast > _LEAP * slow else "warning",
    )


def _speed(cell: Cell) -> float:
    """Return median speed of a request at one token a step, in steps per second: comparable between
    texts under speculation.
    """
    summary = cell.figures.decode_tok_s or cell.figures.req_tok_s
    return (summary.median if summary else 0.0) / max(cell.figures.tok_per_step or 1.0, 1.0)


@BENCH.rule(
    "BENCH309",
    "failed-requests",
    "error",
    source=OWN,
    fails=lambda: seen(
        [request(n, error="the connection broke" if n == 0 else None) for n in range(16)]
    ),
    passes=lambda: seen(),
)
def failed(seen: Seen) -> Hit | None:
    """Requests failed; over 5 % the rest is a selection.

    **Threshold:** 5 %: with more, what is left are the requests that the server could answer.
    """
    broken = [r for r in seen.cell.requests if r.error is not None]
    if not broken:
        return None
    total = len(seen.cell.requests)
    severity: Severity = "error" if len(broken) * 20 > total else "warning"
    return Hit(
        f"{len(broken)} of {total} requests failed.",
        (broken[0].error or "")[:200],
        severity=severity,
    )


@BENCH.rule(
    "BENCH310",
    "late-client",
    "warning",
    source=OWN,
    fails=lambda: seen(cell={"client": Client(lag_p99_s=0.012)}),
    passes=lambda: seen(cell={"client": Client(lag_p99_s=0.003)}),
)
def lag(seen: Seen) -> Hit | None:
    """The measuring process did not get the CPU when it needed it; the times are partly its own.

    **Threshold:** 5 ms at the 99th percentile, the goal for this client's own TTFT error in a burst
    of 16.
    """
    lag = seen.cell.client.lag_p99_s
    if lag is None or lag <= _LAG_S:
        return None
    return Hit(
        f"The measuring client was late by up to {lag * 1000:.0f} ms.",
        f"p99 of its loop's delay, over {_LAG_S * 1000:g} ms: the machine had no CPU left for it",
    )


@BENCH.rule(
    "BENCH311",
    "looping-output",
    "error",
    source=OWN,
    fails=lambda: seen(repeating(LOOP, 10)),
    passes=lambda: seen(repeating(LOOP, 2)),
)
def looping(seen: Seen) -> Hit | None:
    """Replies repeat themselves. Repetition is what a draft guesses best, and a broken model's
    favorite.

    **Threshold:** a fifth of the replies is a warning, half an error. A reply repeats itself when
    more than half of the sequences of 4 words in its last 120 words came before in them.
    """
    texts = [r.text for r in seen.cell.requests if r.error is None and r.text]
    bad = [text for text in texts if loops(text)]
    if not bad or len(bad) * 5 < len(texts):
        return None
    severity: Severity = "error" if len(bad) * 2 > len(texts) else "warning"
    return Hit(
        f"{len(bad)} of {len(texts)} replies repeat themselves.",
        f"“…{bad[0][-60:]}”: repetition is what speculation guesses best",
        severity=severity,
    )


def loops(text: str) -> bool:
    """Return whether a text's last part says the same over and over: over half of the 4-word
    sequences in its last 120 words are repetitions.
    """
    words = re.findall(r"\S+", text)[-120:]
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    if len(grams) >= 24:
        return len(set(grams)) < 0.5 * len(grams)
    # One endless word, or a script without blanks: the same by letters.
    letters = text[-400:]
    pieces = [letters[i : i + 12] for i in range(len(letters) - 11)]
    return len(pieces) >= 120 and len(set(pieces)) < 0.4 * len(pieces)


@BENCH.rule(
    "BENCH312",
    "interrupted",
    "info",
    source=OWN,
    fails=lambda: seen(cell={"interrupted": True}),
    passes=lambda: seen(),
)
def interrupted(seen: Seen) -> Hit | None:
    """The run was stopped by hand. The requests that were answered until then count."""
    return (
        Hit("The measurement was interrupted; what had been answered until then counts.", "Ctrl-C")
        if seen.cell.interrupted
        else None
    )
