"""One Spark or two, and how: tensor parallel, pipeline parallel or two replicas, from the plan of
the model and what the link can do.

Decoding one token of one request reads the same weights in every step (`sparkbook.plan.decode`).
Several nodes change it like this:

- tensor parallel: each node reads 1/n of everything, so a step is shorter; but the nodes add up
  their halves twice a layer
- pipeline parallel: each node holds 1/n of the layers; a token still goes through all of them, one
  node after another
- replicas: each node is a server of its own, with 1/n of the requests

An all-reduce of one token's hidden state is a few KiB, so its time is the link's latency, not its
bandwidth: 2 × layers × latency is what tensor parallelism pays in every step. Pure: no clock, files
(but the published figures) or network. Bytes, seconds, tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.checkpoint.values import Range
from sparkbook.cluster.all_reduce import NOMINAL, Link
from sparkbook.errors import SparkbookError
from sparkbook.plan.decode import SPARK, Drafting, Machine, Reads, step
from sparkbook.recipes.launch import Strict
from sparkbook.units import GIB
from sparkbook.util import own_yaml

if TYPE_CHECKING:
    from rich.text import Text

    from sparkbook.plan.memory import MemoryPlan
    from sparkbook.plan.setup import Host, Setup

Way = Literal["one node", "tensor parallel", "pipeline parallel", "replicas"]
WAYS: tuple[Way, ...] = ("one node", "tensor parallel", "pipeline parallel", "replicas")
MOST_NODES = 1024
"""Nodes for which there is an answer; what is known of links and replicas is of far fewer."""

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
"""Requests at once that are compared."""

CLOSE = 1.15
"""Two ways whose speeds differ by less are called equal: half of the estimated gains are farther
off the published ones than about that (`compared`).
"""


OVERLAP = 0.5
"""Share of its estimate that pipeline parallelism reaches at least, with more than one request: it
supposes that all groups of requests are on their way at once, and between two GPUs 0.49 to 0.76 of
it was measured (vLLM 0.24.0, `measured_links`).
"""

SPLIT_NOT = "can't be split"
"""Verdict on tensor parallelism where the number of nodes does not go with that of the KV heads."""


@dataclass(frozen=True)
class Cost:
    """What tensor parallelism sends in one step.

    Attributes:
        count: all-reduces.
        size: bytes of each.
        seconds: of all of them.
    """

    count: int
    size: int
    seconds: Range


@dataclass(frozen=True)
class Model:
    """What decides the speed: bytes of a step, the hidden size, and what is drafted."""

    reads: Reads
    hidden: int
    dtype_bytes: int = 2
    draft: Drafting | None = None
    machine: Machine = SPARK

    def rows(self, requests: float) -> float:
        """Return tokens that a step carries."""
        return requests * (1 + (self.draft.tokens if self.draft else 0))

    def step_s(self, requests: int, context: int, share: int = 1) -> float:
        """Return seconds of a step on one of `share` nodes that split every layer, without the
        network.

        Splitting shares out what is read and multiplied. The rest of a layer's time stays
        (kernel starts, norms, routing). The cache of MLA, which every node reads whole, is counted
        as shared out too: that is too fast by it.
        """
        m = self.machine
        split = replace(
            m,
            read_gb_s=m.read_gb_s * share,
            verify_kv_gb_s=m.verify_kv_gb_s * share,
            peak_flop_s=m.peak_flop_s * share,
        )
        return step(self.reads, requests, context, self.draft, split).total_s

    def cost(self, requests: int, link: Link, nodes: int) -> Cost:
        """Return the cost of two all-reduces a layer (after attention and after the MLP) and one
        after the embedding, each of hidden size × tokens.

        (vLLM 0.32.0: `RowParallelLinear` reduces its result, `VocabParallelEmbedding` too. A
        draft's layers come on top, one pass each.)
        """
        count = (
            2 * self.reads.layers
            + 1
            + (self.draft.passes * (2 * self.draft.layers + 1) if self.draft else 0)
        )
        size = int(self.hidden * self.dtype_bytes * self.rows(requests))
        return Cost(count, size, link.all_reduce(size, nodes) * count)

    def speed(self, way: Way, requests: int, context: int, link: Link, nodes: int) -> Range:
        """Return tokens a second of all requests together; the bounds are those of the link."""
        length = self.draft.length[1] if self.draft else 1.0
        if way == "one node":
            return Range.of(requests * length / self.step_s(requests, context))
        if way == "tensor parallel":
            spent = self.cost(requests, link, nodes).seconds + self.step_s(requests, context, nodes)
            return Range(requests * length / spent.high, requests * length / spent.low)
        # So many groups of requests, each on a node of its own; a group is as large as the largest.
        groups = min(nodes, requests)
        base = self.step_s(-(-requests // groups), context)
        if way == "replicas":
            return Range.of(requests * length / base)
        # A stage after another: all groups are on their way, and each pays one hop a stage.
        hop = (
            link.all_reduce(self.hidden * self.dtype_bytes * self.rows(-(-requests // groups)))
            * nodes
        )
        overlap = OVERLAP if groups > 1 else 1.0
        together = requests * length
        return Range(overlap * together / (base + hop.high), together / (base + hop.low))


@dataclass(frozen=True)
class Memory:
    """What one node holds, in bytes.

    Attributes:
        way: how the model is spread.
        fits: the plan's verdict: `fits`, `may fit`, `does not fit`, …
        weights: of the target and a draft, on one node.
        kv: room for the KV cache on one node.
        sequences: sequences of full length, all nodes together; None where the cache is not known.
    """

    way: Way
    fits: str
    weights: Range
    kv: Range
    sequences: Range | None

    @property
    def possible(self) -> bool:
        """Whether it can start at all."""
        return self.fits in ("fits", "may fit", "fits with less context", "not known")


@dataclass(frozen=True)
class Advice:
    """Memory and speed of each way, and what to do.

    Attributes:
        setup: what is to be started.
        link, nodes: on what.
        memory: of one node, by way.
        model: what decides the speed; None where it is not known.
        context: tokens behind each request, for the speed.
        host_total: bytes of one node.
    """

    setup: Setup
    link: Link
    nodes: int
    memory: dict[Way, Memory]
    model: Model | None
    context: int
    host_total: int

    def speed(self, way: Way, requests: int) -> Range | None:
        """Return tokens a second together; None where the model's bytes are not known or this way
        does not fit.
        """
        if self.model is None or not self.memory[way].possible:
            return None
        return self.model.speed(way, requests, self.context, self.link, self.nodes)

    def best(self, requests: int) -> tuple[Way, ...]:
        """Return the fastest way, and those that are as fast within `CLOSE`; fewer moving parts
        first. Empty where no speed is known.

        "One node" is among them only where a second one gives nothing: it is not one of the ways of
        using it.
        """
        ways: tuple[Way, ...] = ("replicas", "tensor parallel", "pipeline parallel")
        found = {way: speed.middle for way in ways if (speed := self.speed(way, requests))}
        alone = self.speed("one node", requests)
        top = max([*found.values(), alone.middle if alone else 0.0], default=0.0)
        if not top:
            return ()
        if alone and alone.middle * CLOSE >= top:
            return ("one node",)
        return tuple(way for way, speed in found.items() if speed * CLOSE >= top)

    @cached_property
    def break_even_requests(self) -> int | None:
        """The fewest requests at once with which replicas are faster than tensor parallel; None:
        never up to 512, or one does not fit.
        """
        for requests in (2**power for power in range(10)):
            one, two = self.speed("replicas", requests), self.speed("tensor parallel", requests)
            if one is None or two is None:
                return None
            if one.middle > two.middle:
                return requests
        return None

    def break_even_latency_s(self, requests: int = 1) -> float | None:
        """Return the latency of an 8 KiB all-reduce from which tensor parallel is slower than
        replicas (with one request: than one node).

        None where the model's bytes are not known or tensor parallel can't start; 0 where it is
        slower at any latency.
        """
        if self.model is None or not self.memory["tensor parallel"].possible:
            return None
        cost = self.model.cost(requests, self.link.with_latency(0), self.nodes)
        groups = min(self.nodes, requests)
        rival = self.model.step_s(-(-requests // groups), self.context)
        left = rival - self.model.step_s(requests, self.context, self.nodes) - cost.seconds.middle
        return max(left / cost.count / max(self.nodes - 1, 1), 0.0)

    @property
    def possible(self) -> bool:
        """Whether one of the ways can start at all."""
        return any(memory.possible for memory in self.memory.values())

    @property
    def needed(self) -> bool:
        """Whether it takes more than one node."""
        return not self.memory["one node"].possible

    @property
    def confidence(self) -> Literal["medium", "low"]:
        """Medium: the link was measured. Low: it is that of others. Never high: the speed itself is
        an estimate.
        """
        return "medium" if self.link.measured else "low"

    def reasons(self) -> Iterator[str]:
        """Yield what to do and why, a sentence each."""
        one = self.memory["one node"]
        if self.needed:
            yield f"It does not fit in one Spark ({one.weights * (1 / GIB):.1f} GiB of weights)."
            if not any(
                self.memory[way].possible for way in ("tensor parallel", "pipeline parallel")
            ):
                yield f"On {self.nodes} it does not fit either, however it is split."
                return
        else:
            yield (
                f"One Spark: {one.fits}. A second one is for speed, for more users or for longer"
                " contexts."
            )
        if (whole := self.memory["tensor parallel"]).fits == SPLIT_NOT:
            yield (
                f"Tensor parallel: {self.nodes} does not divide the KV heads, and vLLM refuses to"
                " start."
            )
        layered = self.memory["pipeline parallel"]
        if (
            whole.sequences
            and layered.sequences
            and layered.sequences.middle > CLOSE * whole.sequences.middle
        ):
            yield (
                f"Pipeline parallel holds {layered.sequences.middle:.0f} sequences of full length,"
                f" tensor parallel {whole.sequences.middle:.0f}: what this model keeps of a token"
                " is not divided into heads, so with tensor parallel each node keeps all of it."
            )
        if self.model is None:
            yield "How many bytes a step reads is not known, so there is no speed estimate."
            return
        if whole.possible:
            yield from self._price(self.model)
        yield (
            "Pipeline parallel does not speed up one request: its token goes through every layer"
            " all the same, one node after the other."
        )
        if whole.possible and self.memory["replicas"].possible:
            even = self.break_even_requests
            yield (
                f"From {even} requests at once {'two' if self.nodes == 2 else self.nodes} replicas"
                " are estimated to give more together than tensor parallel."
                if even
                else (
                    "Tensor parallel is estimated to give more together than replicas up to 512"
                    " requests at once."
                )
            )
            yield f"Published: {turned()}."
        beside = compared()
        few = typical_error(
            [one for one in beside if one.requests == 1 and one.way == "tensor parallel"]
        )
        many = typical_error([one for one in beside if one.requests > 1])
        yield (
            f"How sure: {self.confidence}. The link is"
            f" {'' if self.link.measured else 'from reports, not measured: '}{self.link.source}."
            f" Against published figures, the gain of two Sparks is off by {few:.0%} (median) with"
            f" one request under tensor parallel and by {many:.0%} with more, mostly too high. Ways"
            f" that differ by less than {CLOSE - 1:.0%} are called equal."
        )

    def _price(self, model: Model) -> Iterator[str]:
        """Yield what tensor parallel pays for the network."""
        cost = model.cost(1, self.link, self.nodes)
        reading = model.step_s(1, self.context, self.nodes)
        yield (
            f"Tensor parallel sends {cost.count} all-reduces of {cost.size:,} bytes for one token"
            f" of one request, {cost.count * cost.size / 1024:,.0f} KiB: {cost.seconds * 1e3:.2g}"
            f" ms next to {reading * 1e3:.3g} ms of reading weights and starting kernels. Latency"
            " decides, not bandwidth."
        )
        limit = self.break_even_latency_s()
        assert limit is not None
        yield (
            f"With one request it pays up to {limit * 1e6:,.0f} µs for an all-reduce of 8 KiB; "
            f"this link takes {self.link.latency_s * 1e6:.0f} µs."
        )

    def lines(self) -> Iterator[Text]:
        """Yield the answer for a terminal of 80 columns; the sentences are left to be wrapped."""
        from rich.text import Text

        yield Text.assemble(
            (self.setup.checkpoint.name, "bold"), (f" on {self.nodes} Sparks", "dim")
        )
        yield Text()
        yield Text(
            f"  {'one node holds':<19}{'weights, GiB':>14}{'KV cache, GiB':>16}{'sequences':>12} "
            " fits",
            "bold",
        )
        for way, held in self.memory.items():
            room = Range(max(held.kv.low, 0), max(held.kv.high, 0)) * (1 / GIB)
            many = "not known" if held.sequences is None else f"{held.sequences:.0f}"
            cells = (f"{held.weights * (1 / GIB):.1f}", f"{room:.1f}", many)
            yield Text(f"  {way:<19}{cells[0]:>14}{cells[1]:>16}{cells[2]:>12}  {held.fits}")
        yield Text(
            f"  sequences of {self.setup.context:,} tokens at once, all nodes together", "dim"
        )
        if self.model is not None:
            yield Text()
            yield Text(
                f"  {'requests at once':<18}{'one':>8}{'tensor':>9}{'pipeline':>10}{'replicas':>10}"
                "   best",
                "bold",
            )
            for requests in REQUESTS:
                speeds = {way: self.speed(way, requests) for way in WAYS}
                shown = [
                    "-" if speed is None else f"{speed.middle:.3g}" for speed in speeds.values()
                ]
                best = self.best(requests)
                said = (
                    "no difference"
                    if len(best) == len(WAYS) - 1
                    else " = ".join(_SHORT[way] for way in best)
                )
                yield Text(
                    f"  {requests:<18}{shown[0]:>8}{shown[1]:>9}{shown[2]:>10}{shown[3]:>10}  "
                    f" {said}"
                )
            yield Text(
                f"  estimated tok/s, all together, each with {self.context:,} tokens of context",
                "dim",
            )
        yield Text()
        yield from (Text(f"- {reason}") for reason in self.reasons())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`: sizes in GiB, speeds in tokens a second; ranges are
        `[low, high]`, what is not known is null.
        """

        def shown(value: Range | None, scale: float = 1.0, digits: int = 2) -> list[float] | None:
            return (
                [round(value.low * scale, digits), round(value.high * scale, digits)]
                if value is not None and value.known
                else None
            )

        latency, link = self.break_even_latency_s(), self.link
        split = self.memory["tensor parallel"].possible
        cost = self.model.cost(1, link, self.nodes) if self.model and split else None
        memory = {
            way: {
                "fits": m.fits,
                "weights_gib": shown(m.weights, 1 / GIB),
                "kv_gib": shown(m.kv, 1 / GIB),
                "sequences": shown(m.sequences),
            }
            for way, m in self.memory.items()
        }
        decode = [
            {
                "requests": n,
                "best": list(self.best(n)),
                "tok_s": {way: shown(self.speed(way, n), digits=1) for way in WAYS},
            }
            for n in REQUESTS
        ]
        return {
            "nodes": self.nodes,
            "fits_in_one": self.memory["one node"].fits,
            "link": {
                "latency_us": shown(link.latency_s, 1e6),
                "gb_s": shown(link.gb_s),
                "measured": link.measured,
                "source": link.source,
            },
            "memory": memory,
            "all_reduce": (
                cost
                and {"count": cost.count, "bytes": cost.size, "ms": shown(cost.seconds, 1e3, 3)}
            ),
            "decode": decode,
            "break_even": {
                "requests": self.break_even_requests,
                "latency_us": None if latency is None else round(latency * 1e6, 1),
            },
            "confidence": self.confidence,
            "reasons": list(self.reasons()),
        }


_SHORT: dict[Way, str] = {
    "one node": "one",
    "tensor parallel": "tensor",
    "pipeline parallel": "pipeline",
    "replicas": "replicas",
}


def advise(
    setup: Setup,
    link: Link = NOMINAL,
    nodes: int = 2,
    host: Host | None = None,
    machine: Machine = SPARK,
) -> Advice:
    """Return what several nodes would do for what is to be started.

    Args:
        setup: as `sparkbook.plan.request.read` gives it; how the line itself spreads the model
            plays no part.
        link: the network between them.
        nodes: how many.
        host: one of them; all are alike.
        machine: what sets the pace of a step.

    Raises:
        SparkbookError: fewer than two nodes, or more than `MOST_NODES`.
    """
    from sparkbook.plan.evidence import of_setup
    from sparkbook.plan.memory import plan

    if nodes < 2:
        raise SparkbookError(f"{nodes} node: there is nothing to spread; give --nodes 2 or more")
    if nodes > MOST_NODES:
        raise SparkbookError(
            f"more than {MOST_NODES:,} nodes: nothing is known of so many; give --nodes 2 or"
            " somewhat more"
        )
    setup = replace(setup, shards=1, stages=1)
    single, split = (plan(replace(setup, shards=shards), host) for shards in (1, nodes))
    memory: dict[Way, Memory] = {
        "one node": _memory("one node", single, 1),
        "tensor parallel": _memory("tensor parallel", split, 1, divides(setup, nodes)),
        "pipeline parallel": _pipelined(single, split, nodes),
        "replicas": _memory("replicas", single, nodes),
    }
    known, geometry = of_setup(setup), setup.checkpoint.geometry
    model = (
        Model(known.reads[1], geometry.hidden, setup.checkpoint.dtype_bytes, known.draft, machine)
        if known and geometry
        else None
    )
    return Advice(
        setup, link, nodes, memory, model, min(setup.context // 4, 8192), single.host.total
    )


def divides(setup: Setup, nodes: int) -> bool:
    """Return whether the KV heads can be shared out, or each kept by several nodes alike; vLLM
    refuses other numbers. Unknown: true.
    """
    geometry = setup.checkpoint.geometry
    heads = [c.heads for c in geometry.caches if c.kind in ("full", "window")] if geometry else []
    return all(count % nodes == 0 or nodes % count == 0 for count in heads)


def _memory(way: Way, plan: MemoryPlan, copies: int, can: bool = True) -> Memory:
    concurrency = plan.concurrency * copies if plan.concurrency is not None else None
    return Memory(
        way,
        plan.verdict if can else SPLIT_NOT,
        plan.weights + plan.draft,
        plan.kv,
        concurrency if can else None,
    )


def _pipelined(single: MemoryPlan, split: MemoryPlan, nodes: int) -> Memory:
    """Return a node's memory with pipeline parallelism: 1/n of the layers with all their heads, so
    the weights are those of tensor parallelism, and a sequence's cache is an exact n-th.

    All layers count as equally large; the first node's embedding and the last node's head are not
    counted apart.
    """
    weights = split.weights + split.draft
    if single.needed is None:
        return Memory("pipeline parallel", "not known", weights, split.kv, None)
    each = single.needed * (1 / nodes)
    room = Range(max(split.kv.low, 0), max(split.kv.high, 0))
    sequences = Range(room.low / each.high, room.high / each.low)
    if room.high <= 0 or (split.verdict == "does not fit" and sequences.high < 1):
        fits = "does not fit"
    elif sequences.high < 1:
        fits = "fits with less context"
    else:
        fits = "fits" if sequences.low >= 1 and split.verdict == "fits" else "may fit"
    return Memory("pipeline parallel", fits, weights, split.kv, sequences)


# ---- compared with what others measured


class Published(Strict):
    """Decode speeds of one model on one Spark and on two, with their source."""

    model: str
    weights: str
    context: int
    setup: str
    title: str
    url: str
    date: date
    requests: list[int]
    one: list[float]
    tensor: list[float]
    replicas: list[float]


@dataclass(frozen=True)
class Compared:
    """A published speed and the estimate. The comparison is of the gain over one Spark, in which
    the estimate of one step cancels out.

    Attributes:
        published: where it is from.
        way, requests: which figure.
        gain: of the publisher, over the same number of requests on one node.
        estimate: ours.
    """

    published: Published
    way: Way
    requests: int
    gain: float
    estimate: float

    @property
    def error(self) -> float:
        """Estimate over published gain, less one."""
        return self.estimate / self.gain - 1


@cache
def published() -> tuple[Published, ...]:
    """Return the published figures, validated."""
    return tuple(
        Published.model_validate(one)
        for one in own_yaml.read(Path(__file__).with_name("published.yaml"))
    )


def compared(link: Link = NOMINAL) -> list[Compared]:
    """Return every published gain with the estimate, over a link as others measured it: nothing was
    fitted to them.
    """
    from sparkbook.plan.evidence import measured

    found = []
    for source in published():
        shape = measured().models[source.model]
        model = Model(
            shape.reads(source.weights, 2.0 if "FP8 KV" in source.setup else 1.0)[1], shape.hidden
        )
        ways: list[tuple[Way, Sequence[float]]] = [
            ("tensor parallel", source.tensor),
            ("replicas", source.replicas),
        ]
        for way, speeds in ways:
            for requests, one, two in zip(source.requests, source.one, speeds, strict=True):
                alone = model.speed("one node", requests, source.context, link, 2).middle
                found.append(
                    Compared(
                        source,
                        way,
                        requests,
                        two / one,
                        model.speed(way, requests, source.context, link, 2).middle / alone,
                    )
                )
    return found


def turned() -> str:
    """Return from how many requests on replicas gave more than tensor parallelism, in each
    publication.
    """
    found = []
    for one in published():
        ahead = [
            n
            for n, two, copies in zip(one.requests, one.tensor, one.replicas, strict=True)
            if copies > two
        ]
        found.append(
            f"{one.model} from {ahead[0]} requests"
            if ahead
            else f"{one.model} not up to {one.requests[-1]}"
        )
    return "replicas overtook tensor parallel with " + ", ".join(found)


def typical_error(of: Sequence[Compared]) -> float:
    """Return median of the absolute errors."""
    return median(abs(one.error) for one in of)
