"""4xx: impossible figures. The rules compare what a server, a file or a clock claims with what was
sent, what arrived, when it arrived, and what the machine can do.

A figure within these bounds may still be wrong; it is only not impossible.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from statistics import median

from sparkbook.bench.examples import (
    SMALL,
    TEXT,
    Client,
    drafts,
    engine,
    everyone,
    prompts,
    repeating,
    request,
    seen,
    speculating,
    stating,
)
from sparkbook.bench.family import BENCH, OWN
from sparkbook.bench.roof import Roof
from sparkbook.bench.rules.replies import complete, count_events, good, replies, text_bytes
from sparkbook.bench.seen import Seen
from sparkbook.rules import Hit

_HIDDEN = 32
_EVENTS_EACH, _EVENTS_MORE = 1.25, 4
_BYTES_EACH, _BYTES_TOKENS = 32, 8
_AGREE = 0.02
_TEMPLATE, _WORDS_A_TOKEN = 1024, 2
_SOONEST_S, _ROUNDING_S = 1e-4, 1e-3
_CLOCK_S, _CLOCK_SHARE = 0.1, 0.001
_TEXTS, _LONG_BYTES = 4, 64
_MERGED = 1.5


@BENCH.rule(
    "BENCH401",
    "more-tokens-than-asked-for",
    "error",
    source="https://docs.vllm.ai/en/latest/serving/openai_compatible_server/",
    fails=lambda: everyone(output_tokens=64_000_000),
    passes=lambda: seen(
        cell={"max_tokens": 128}, requests=[request(n, finish="stop") for n in range(16)]
    ),
)
def more_than_asked(seen: Seen) -> Hit | None:
    """A reply reports more output tokens than the request's `max_tokens` allowed. The server's
    count is not one of tokens, so neither is any speed made of it.

    **Threshold:** none: `max_tokens` is a limit. vLLM also cuts accepted drafts behind it
    ([protocol](https://docs.vllm.ai/en/latest/serving/openai_compatible_server/)).
    """
    limit = seen.cell.max_tokens
    return replies(
        (
            f"{r.prompt}: {r.output_tokens} tokens, max_tokens {limit}"
            for r in good(seen)
            if limit is not None and (r.output_tokens or 0) > limit
        ),
        "{} replies have more tokens than were asked for.",
    )


@BENCH.rule(
    "BENCH402",
    "more-tokens-than-text",
    "error",
    source="https://github.com/openai/tiktoken",
    fails=lambda: everyone(text="Yes.", stamps_s=[0.1, 1.36], id_tokens=None, chunk_tokens=None),
    passes=lambda: everyone(text="Yes."),
)
def without_text(seen: Seen) -> Hit | None:
    """A reply reports more output tokens than its text and its events can hold. Either the server
    counts tokens that it did not send, or the model repeats a mark that is not shown, such as the
    end of the text: such tokens have no events, and a speed made of both is wrong.

    **Threshold:** one token a byte, one an event, and 32 more. A token that shows text has at least
    one byte of it ([byte-level BPE](https://github.com/openai/tiktoken)); one that shows nothing is
    counted if an event reports it; a chat format with thoughts and calls has a dozen marks.
    """
    wrong = []
    for r in good(seen):
        size, events = text_bytes(r), count_events(r)
        if r.output_tokens is None or size is None or events is None:
            continue
        if r.output_tokens > size + events + _HIDDEN:
            wrong.append(
                f"{r.prompt}: {r.output_tokens} tokens in {size} bytes of text and {events} events"
            )
    return replies(wrong, "{} replies have more tokens than their text can hold.")


@BENCH.rule(
    "BENCH403",
    "fewer-tokens-than-text",
    "error",
    source="https://github.com/openai/tiktoken",
    fails=lambda: everyone(output_tokens=16, id_tokens=None, chunk_tokens=None, finish="stop"),
    passes=lambda: everyone(
        engine(generation_tokens=960),
        output_tokens=60,
        id_tokens=None,
        chunk_tokens=None,
        finish="stop",
    ),
)
def without_tokens(seen: Seen) -> Hit | None:
    """A reply reports fewer output tokens than its text or its events need. The server counts
    something else than tokens, or a proxy cut its events into pieces, so that the time between them
    is no step.

    **Threshold:** 1.25 events a token and 4 more: an engine sends one event a step, and a parser
    may hold back some text and send it later. 32 bytes a token and 8 tokens more: English has about
    four bytes a token ([tiktoken](https://github.com/openai/tiktoken)), code and Chinese less than
    ten.
    """
    wrong = []
    for r in good(seen):
        size, events, tokens = text_bytes(r) or 0, count_events(r) or 0, r.output_tokens
        if tokens is None:
            continue
        if events > _EVENTS_EACH * tokens + _EVENTS_MORE or size > _BYTES_EACH * (
            tokens + _BYTES_TOKENS
        ):
            wrong.append(f"{r.prompt}: {tokens} tokens, {size} bytes of text, {events} events")
    return replies(wrong, "{} replies have fewer tokens than their text needs.")


@BENCH.rule(
    "BENCH404",
    "faster-than-memory",
    "error",
    source="https://docs.nvidia.com/dgx/dgx-spark/, https://github.com/antirez/ds4/issues/773",
    fails=lambda: seen(roof=Roof(step_bytes=28e9, token_flops=28e9)),
    passes=lambda: seen(roof=Roof(step_bytes=28e9, token_flops=28e9, drafted=7)),
)
def above_memory(seen: Seen) -> Hit | None:
    """The decode speed is above what the machine's memory allows: each step reads at least the
    weights of one token, and a request gets one token a step and all of its drafts. Judged where
    the launch line is known (`--recipe`) and the machine is a Spark.

    **Threshold:** 273 GB/s, the specified bandwidth ([DGX Spark User
    Guide](https://docs.nvidia.com/dgx/dgx-spark/)), of which kernels reach [231 to
    234](https://github.com/antirez/ds4/issues/773). KV cache, overhead, rejected drafts and experts
    that differ between requests are left out, so a true measurement stays below by a sixth at
    least.
    """
    if seen.roof is None:
        return None
    figures, slots = seen.cell.figures, seen.cell.concurrency
    one = figures.decode_tok_s.median if figures.decode_tok_s else None
    for speed, requests in ((figures.out_tok_s, slots), (figures.steady_tok_s, slots), (one, 1)):
        if speed is not None and requests and speed > (top := seen.roof.decode_tok_s(requests)):
            return Hit(
                f"{speed:.0f} tok/s are more than memory allows: {top:.0f} tok/s.",
                f"requests: {requests}; {seen.roof}",
            )
    return None


@BENCH.rule(
    "BENCH405",
    "prefill-faster-than-arithmetic",
    "error",
    source="https://docs.nvidia.com/dgx/dgx-spark/, https://arxiv.org/abs/2001.08361",
    fails=lambda: seen([request(n, ttft=0.002) for n in range(16)], roof=SMALL),
    passes=lambda: seen([request(n, ttft=0.004) for n in range(16)], roof=SMALL),
)
def above_arithmetic(seen: Seen) -> Hit | None:
    """Prompt tokens were read faster than the GPU can compute, so they were not computed: the
    prefix cache answered, the prompt was cut, or the count is wrong. Judged where BENCH404 is.

    **Threshold:** 500 TFLOP/s, dense FP4: the specification's 1 PFLOP/s counts zeros ([DGX Spark
    User Guide](https://docs.nvidia.com/dgx/dgx-spark/)). Two FLOPs a token and active parameter
    ([section 2.1](https://arxiv.org/abs/2001.08361)); published prefill reaches a fifth of it.
    """
    speeds, engine = seen.cell.figures.prefill_tok_s, seen.cell.engine
    if seen.roof is None or speeds is None or seen.cell.caching:
        return None
    computed = 1 - ((engine.prefix_hits if engine else None) or 0.0)
    if speeds.median * computed <= seen.roof.prefill_tok_s:
        return None
    return Hit(
        f"{speeds.median * computed:.0f} prompt tokens a second are more than the GPU can compute:"
        f" {seen.roof.prefill_tok_s:.0f}.",
        str(seen.roof),
    )


@BENCH.rule(
    "BENCH406",
    "prompt-counts-differ",
    "error",
    source=OWN,
    fails=lambda: seen(cell=engine(prompt_tokens=4096)),
    passes=lambda: seen(cell=engine(prompt_tokens=970)),
)
def prompt_count(seen: Seen) -> Hit | None:
    """The engine read another number of prompt tokens than the replies report: somebody else was
    served, or `usage` is wrong.

    **Threshold:** 2 %, and one token a request, as BENCH206. Not judged where requests were
    preempted, whose prompts are read again.
    """
    engine, figures = seen.cell.engine, seen.cell.figures
    counted = engine.prompt_tokens if engine else None
    if counted is None or figures.input_tokens is None or not complete(seen):
        return None
    if engine and engine.preemptions:  # their prompts are read again
        return None
    if abs(counted - figures.input_tokens) <= max(_AGREE * figures.input_tokens, figures.completed):
        return None
    return Hit(
        f"The engine read {counted:g} prompt tokens, and `usage` says {figures.input_tokens}.",
        "prompt_tokens_total against usage",
    )


@BENCH.rule(
    "BENCH407",
    "request-counts-differ",
    "error",
    source="https://docs.vllm.ai/en/latest/usage/metrics/",
    fails=lambda: seen(cell=engine(first_tokens=24)),
    passes=lambda: seen(cell=engine(first_tokens=16)),
)
def request_count(seen: Seen) -> Hit | None:
    """The engine answered another number of requests than the client got replies: somebody else was
    served, or something before the engine answered.

    **Threshold:** 2 %, as BENCH206. [vLLM observes](https://docs.vllm.ai/en/latest/usage/metrics/)
    the first token of each request once, before the reply ends.
    """
    counted = seen.cell.engine.first_tokens if seen.cell.engine else None
    mine = seen.cell.figures.completed
    if counted is None or not complete(seen) or abs(counted - mine) <= _AGREE * mine:
        return None
    return Hit(
        f"The engine answered {counted:g} requests, and the client got {mine} replies.",
        "time_to_first_token_seconds_count against replies",
    )


@BENCH.rule(
    "BENCH408",
    "prompt-size",
    "error",
    source="https://arxiv.org/abs/2503.13423",
    fails=lambda: seen(prompts=prompts(300)),
    passes=lambda: seen(prompts=prompts(80)),
)
def prompt_size(seen: Seen) -> Hit | None:
    """The number of prompt tokens does not fit the prompt that was sent: far fewer than its words,
    so it was cut, as a server with a short context may do without a word; or more than its bytes
    and a chat template.

    **Threshold:** at least half a token a word: tokenizers split at blanks, and those that join
    words save [a third](https://arxiv.org/abs/2503.13423). At most one token a byte, and 1,024 for
    the chat template: the system prompts that templates bring by themselves have some hundreds.
    """
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
    return replies(wrong, "{} prompts cannot have the number of tokens that was reported.")


@BENCH.rule(
    "BENCH409",
    "first-token-too-soon",
    "error",
    source=OWN,
    fails=lambda: seen([request(n, ttft=0.0) for n in range(16)]),
    passes=lambda: seen([request(n, ttft=0.002) for n in range(16)]),
)
def too_soon(seen: Seen) -> Hit | None:
    """The first event came before the server can have read the request: it was sent in advance, or
    the times are not measured ones.

    **Threshold:** 0.1 ms: to read the request, to make one step of the smallest model and to write
    an event take longer, though a round trip within one machine may not.
    """
    wrong = []
    for r in good(seen):
        first = min((t for t in (r.ttfr_s, r.ttft_s, *r.stamps_s[:1]) if t is not None), default=1)
        if not first >= _SOONEST_S:
            wrong.append(f"{r.prompt}: {first * 1000:g} ms after the request was sent")
    return replies(wrong, "{} replies began before the request can have been read.")


@BENCH.rule(
    "BENCH410",
    "time-runs-backwards",
    "error",
    source="https://docs.python.org/3/library/time.html#time.monotonic",
    fails=lambda: everyone(stamps_s=[0.1, 0.14, 0.12, *(0.1 + 0.02 * i for i in range(3, 64))]),
    passes=lambda: everyone(stamps_s=[0.1, 0.13, 0.13, *(0.1 + 0.02 * i for i in range(3, 64))]),
)
def backwards(seen: Seen) -> Hit | None:
    """An event is stamped earlier than the one before it, or the first token earlier than the first
    event.

    **Threshold:** none: the client's clock
    ([monotonic](https://docs.python.org/3/library/time.html#time.monotonic)) never goes back, and a
    stream keeps its order.
    """
    wrong = []
    for r in good(seen):
        marks = [t for t in (r.ttfr_s, r.ttft_s, r.ttfo_s) if t is not None]
        for earlier, later in (*pairwise(r.stamps_s), *pairwise(marks)):
            if not earlier <= later:
                wrong.append(f"{r.prompt}: {later:g} s comes after {earlier:g} s")
                break
    return replies(wrong, "In {} replies time runs backwards.")


@BENCH.rule(
    "BENCH411",
    "end-before-the-last-token",
    "error",
    source=OWN,
    fails=lambda: everyone(latency_s=1.0),
    passes=lambda: everyone(latency_s=1.4),
)
def after_the_end(seen: Seen) -> Hit | None:
    """A reply ended before its last token: its latency is shorter than the sum of its steps.

    **Threshold:** 1 ms, which files of other tools may lose by rounding.
    """
    wrong = []
    for r in good(seen):
        last = max((t for t in (r.ttft_s, *r.stamps_s[-1:]) if t is not None), default=None)
        if last is None or r.latency_s is None or last <= r.latency_s + _ROUNDING_S:
            continue
        wrong.append(f"{r.prompt}: last token at {last:g} s, end at {r.latency_s:g} s")
    return replies(wrong, "{} replies ended before their last token.")


@BENCH.rule(
    "BENCH412",
    "more-time-than-there-was",
    "error",
    source=OWN,
    fails=lambda: stating(duration_s=2.0),
    passes=lambda: stating(duration_s=5.5),
)
def crowded(seen: Seen) -> Hit | None:
    """The requests together took longer than so many at a time can have taken, so more ran at a
    time than the row says, or its duration is wrong.

    **Threshold:** 2 %, for other tools that begin to count later than their first request.
    """
    slots, duration = seen.cell.concurrency, seen.cell.figures.duration_s
    spent = math.fsum(r.stamps_s[-1] for r in good(seen) if r.stamps_s)
    if not slots or not duration or seen.cell.rate is not None:
        return None
    if spent <= slots * duration * (1 + _AGREE):
        return None
    return Hit(
        f"The requests took {spent:.1f} s, and {slots} at a time had {slots * duration:.1f} s.",
        f"sum of the times to the last token against {slots} x {duration:.2f} s",
    )


@BENCH.rule(
    "BENCH413",
    "total-does-not-add-up",
    "error",
    source=OWN,
    fails=lambda: stating(out_tok_s=387.0),
    passes=lambda: stating(out_tok_s=185.0),
)
def total(seen: Seen) -> Hit | None:
    """The throughput is not the tokens over the duration, or it is more than all requests at the
    speed of the fastest one.

    **Threshold:** 2 %, for rounding in files of other tools.
    """
    figures, slots = seen.cell.figures, seen.cell.concurrency
    total, tokens, duration = figures.out_tok_s, figures.output_tokens, figures.duration_s
    if total is None:
        return None
    if tokens is not None and duration and abs(total * duration - tokens) > _AGREE * tokens:
        return Hit(
            f"{total:.1f} tok/s in {duration:.2f} s are not {tokens} tokens.",
            "out_tok_s x duration_s against output_tokens",
        )
    speeds = (figures.req_tok_s, figures.decode_tok_s)
    each = [speed.high for speed in speeds if speed and speed.n == figures.completed]
    if not each or not slots or total <= slots * max(each) * (1 + _AGREE):
        return None
    return Hit(
        f"{total:.1f} tok/s are more than {slots} requests at the fastest one's speed.",
        f"the fastest request had {max(each):.1f} tok/s",
    )


@BENCH.rule(
    "BENCH414",
    "no-finish-reason",
    "error",
    source="https://docs.vllm.ai/en/latest/serving/openai_compatible_server/",
    fails=lambda: everyone(finish=None),
    passes=lambda: everyone(finish="stop"),
)
def no_finish(seen: Seen) -> Hit | None:
    """A reply ended without `finish_reason`: something cut the stream and closed it as if it were
    whole.

    **Threshold:** none: the last event of each choice [has
    one](https://docs.vllm.ai/en/latest/serving/openai_compatible_server/).
    """
    if seen.cell.client.events is None:  # other tools keep no reasons
        return None
    return replies(
        (f"{r.prompt}: no finish_reason" for r in good(seen) if r.finish is None),
        "{} replies ended without a reason.",
    )


@BENCH.rule(
    "BENCH415",
    "cut-short",
    "error",
    source=OWN,
    fails=lambda: everyone(engine(generation_tokens=640), tokens=40),
    passes=lambda: everyone(engine(generation_tokens=640), tokens=40, finish="stop"),
)
def cut_short(seen: Seen) -> Hit | None:
    """`finish_reason` is `length`, and the reply has fewer tokens than `max_tokens`: the context
    was full, another limit is set, or one of the two is wrong. The row is not the one that was
    asked for.

    **Threshold:** one token, which BENCH207 also lets pass.
    """
    limit = seen.cell.max_tokens
    return replies(
        (
            f"{r.prompt}: {r.output_tokens} tokens, max_tokens {limit}"
            for r in good(seen)
            if r.finish == "length"
            and limit is not None
            and r.output_tokens is not None
            and r.output_tokens < limit - 1
        ),
        "{} replies ended for their length, and are shorter than that.",
    )


@BENCH.rule(
    "BENCH416",
    "more-accepted-than-drafted",
    "error",
    source="https://docs.vllm.ai/en/latest/usage/metrics/",
    fails=lambda: seen(cell=engine(drafts=100, drafted=400, accepted=420)),
    passes=lambda: seen(cell=engine(drafts=100, drafted=400, accepted=399)),
)
def accepted(seen: Seen) -> Hit | None:
    """The engine's counters say that more draft tokens were accepted than were drafted, so
    acceptance is above 100 % and a step yields more than K + 1 tokens.

    **Threshold:** none: [vLLM counts](https://docs.vllm.ai/en/latest/usage/metrics/) both at the
    same moment.
    """
    engine = seen.cell.engine
    if engine is None or engine.accepted is None or engine.drafted is None:
        return None
    if engine.accepted <= engine.drafted:
        return None
    return Hit(
        f"{engine.accepted:g} drafts were accepted, and {engine.drafted:g} were made.",
        "spec_decode_num_accepted_tokens_total against spec_decode_num_draft_tokens_total",
    )


@BENCH.rule(
    "BENCH417",
    "acceptance-rises",
    "error",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/v1/spec_decode/metrics.py",
    fails=lambda: seen(cell=engine(per_position=[0.8, 0.9])),
    passes=lambda: seen(cell=engine(per_position=[0.9, 0.8])),
)
def positions(seen: Seen) -> Hit | None:
    """The acceptance of a draft position is above that of the position before it, or no share.

    **Threshold:** none: a token is accepted only after all before it
    ([vLLM](https://github.com/vllm-project/vllm/blob/main/vllm/v1/spec_decode/metrics.py)).
    """
    rates = seen.cell.engine.per_position if seen.cell.engine else []
    falling = all(later <= earlier + 1e-6 for earlier, later in pairwise(rates))
    if falling and all(0 <= rate <= 1 + 1e-6 for rate in rates):
        return None
    return Hit(
        "The acceptance by position cannot be: a draft counts only if all before it were accepted.",
        ", ".join(f"{rate:.1%}" for rate in rates),
    )


@BENCH.rule(
    "BENCH418",
    "more-cached-than-sent",
    "error",
    source=OWN,
    fails=lambda: seen(cell=engine(prefix_hits=1.3)),
    passes=lambda: seen(cell=engine(prefix_hits=0.08)),
)
def more_cached(seen: Seen) -> Hit | None:
    """More prompt tokens came from the prefix cache than were looked up, or than the prompt has.

    **Threshold:** none: a part is not larger than the whole.
    """
    hits = seen.cell.engine.prefix_hits if seen.cell.engine else None
    if hits is not None and not 0 <= hits <= 1:
        return Hit(
            f"{hits:.1%} of the prompt tokens came from the prefix cache, which cannot be.",
            "prefix_cache_hits_total / prefix_cache_queries_total",
        )
    return replies(
        (
            f"{r.prompt}: {r.cached_tokens} of {r.prompt_tokens} prompt tokens"
            for r in good(seen)
            if (r.cached_tokens or 0) > (r.prompt_tokens or math.inf)
        ),
        "{} replies report more cached tokens than their prompt has.",
    )


@BENCH.rule(
    "BENCH419",
    "negative-count",
    "error",
    source="https://prometheus.io/docs/concepts/metric_types/#counter",
    fails=lambda: seen(cell=engine(queue_s=-0.5)),
    passes=lambda: seen(cell=engine(queue_s=0.5)),
)
def negative(seen: Seen) -> Hit | None:
    """A count or a time of the engine or of the row is below 0 or no number: a counter went
    backwards, or the result was changed.

    **Threshold:** none: [counters](https://prometheus.io/docs/concepts/metric_types/#counter) only
    grow.
    """
    for part in (seen.cell.engine, seen.cell.figures):
        for name, value in part or ():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                return Hit(
                    f"{name} is {value:g}, which cannot be.",
                    "counts and times are numbers from 0 on: a counter went backwards, or the"
                    " result was changed",
                )
    return None


@BENCH.rule(
    "BENCH420",
    "same-reply-to-different-prompts",
    "error",
    source=OWN,
    fails=lambda: everyone(text=TEXT),
    passes=lambda: seen(repeating(TEXT, 3)),
)
def same_replies(seen: Seen) -> Hit | None:
    """Most of the different prompts got the same reply: it is canned or cached, or the model is
    broken. No model that reads its prompt was measured.

    **Threshold:** more than half of the prompts and at least four of them, replies from 64 bytes
    on: short answers may well be the same.
    """
    prompts = defaultdict(set)
    for r in good(seen):
        if r.text and len(r.text.encode()) >= _LONG_BYTES:
            prompts[r.text].add(r.prompt)
    total = len(set().union(*prompts.values()))
    text, alike = max(prompts.items(), key=lambda item: len(item[1]), default=("", set[str]()))
    if len(alike) < _TEXTS or len(alike) * 2 <= total:
        return None
    return Hit(f"{len(alike)} of {total} different prompts got the same reply.", f"“{text[:60]}…”")


@BENCH.rule(
    "BENCH421",
    "clock-step",
    "warning",
    source="https://man7.org/linux/man-pages/man2/adjtimex.2.html",
    fails=lambda: seen(cell={"client": Client(events=1024, clock_apart_s=3600.0)}),
    passes=lambda: seen(cell={"client": Client(events=1024, clock_apart_s=0.02)}),
)
def clock_step(seen: Seen) -> Hit | None:
    """During the row the time of day and the clock that measures went apart: the time was set, the
    machine slept, or the clock of a virtual machine jumped. Which of the two is right is not known.

    **Threshold:** 0.1 s and 0.1 % of the row: a time service that corrects slowly moves the clock
    by [0.05 %](https://man7.org/linux/man-pages/man2/adjtimex.2.html) at most.
    """
    apart, duration = seen.cell.client.clock_apart_s, seen.cell.figures.duration_s or 0.0
    if apart is None or abs(apart) <= _CLOCK_S + _CLOCK_SHARE * duration:
        return None
    return Hit(
        f"The time of day moved {apart:+.2f} s against the clock that measures.",
        f"in {duration:.1f} s: the time was set, or the machine slept",
    )


@BENCH.rule(
    "BENCH422",
    "more-replies-than-requests",
    "error",
    source=OWN,
    fails=lambda: stating(completed=20),
    passes=lambda: seen(),
)
def more_than_sent(seen: Seen) -> Hit | None:
    """The row counts another number of requests than it holds.

    **Threshold:** none: each request ends once.
    """
    figures, sent = seen.cell.figures, len(seen.cell.requests)
    count = figures.completed + figures.failed
    if not sent or count == sent:
        return None
    return Hit(
        f"{count} requests are counted, and {sent} were sent.",
        "completed + failed against the requests of the row",
    )


@BENCH.rule(
    "BENCH423",
    "unexplained-tokens",
    "warning",
    source=OWN,
    fails=lambda: seen(speculating(3)),
    passes=lambda: seen(speculating(3), cell=drafts(3.01)),
)
def unexplained(seen: Seen) -> Hit | None:
    """An event holds several tokens, and the engine's counters know of no draft and of no steps
    that would explain them (`inter_token_latency_seconds_count`). The server sends several steps as
    one event, so the time between events is not a step's; or it counts tokens that it does not
    make.

    **Threshold:** 1.5 tokens an event: a busy server merges a few steps. It is a warning, since a
    server that merges all of them makes as many tokens as it says.
    """
    engine = seen.cell.engine
    if engine is None or engine.drafts or not complete(seen):
        return None
    made = (seen.cell.figures.output_tokens or 0) - seen.cell.figures.completed
    # Merged on their way, all of them made.
    if engine.steps and made <= engine.steps * (1 + _AGREE):
        return None
    shares = [
        (r.output_tokens - r.first_tokens) / (events - 1)
        for r in good(seen)
        if r.output_tokens and (events := count_events(r)) and events > 1
    ]
    if not shares or median(shares) <= _MERGED:
        return None
    return Hit(
        f"{median(shares):.2f} tokens came in an event, and the engine drafted none.",
        "tokens after the first / events after the first, median of the replies: the server merges"
        " steps, or counts what it does not send",
    )
