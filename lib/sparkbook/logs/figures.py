"""Arithmetic behind signatures: figures for their texts, and judgements that need more than a
pattern.

Each function takes what was found and its context and returns changes to the signature's judgement:
figures for `{name}` in its texts, or `title`, `text`, `fix`, `kind`, `severity`, `role` in place
of the signature's own. None withdraws the finding. Sizes are GiB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkbook.host.meminfo import VLLM_DEFAULT_UTILIZATION
from sparkbook.logs.facts import Facts
from sparkbook.logs.reader import Event
from sparkbook.logs.signatures import Signature
from sparkbook.logs.story import Story
from sparkbook.util.shell_text import command_line

Changes = dict[str, Any]


@dataclass
class Found:
    """A signature found in an event.

    Attributes:
        groups: the named groups that took part.
        count: in how many events it was found; `event` is the first.
        last: the last event it was found in.
        row: of the event's lines, the one that holds it, from 0.
    """

    signature: Signature
    event: Event
    groups: dict[str, str]
    count: int = 1
    last: Event | None = None
    row: int = 0


@dataclass
class Context:
    """What a judgement may look at besides its own line."""

    story: Story
    facts: Facts
    found: dict[str, Found] = field(default_factory=dict)
    bars: dict[str, int] = field(default_factory=dict)

    def has(self, *codes: str) -> bool:
        """Whether one of these signatures was found."""
        return any(code in self.found for code in codes)

    @property
    def total(self) -> float | None:
        """All memory in GiB, from the facts or from the start-up check's line."""
        if self.facts.total_gib is not None:
            return self.facts.total_gib
        check = self.found.get("LOG101")
        return number(check.groups.get("total")) if check else None

    @property
    def stop(self) -> Found | None:
        """The order to stop, if the log has one."""
        return next((one for one in self.found.values() if one.signature.stops), None)

    @property
    def fraction(self) -> float | None:
        """The fraction asked for, from the log or the facts."""
        value = self.story.args.get("gpu_memory_utilization")
        return float(value) if isinstance(value, int | float) else self.facts.fraction


def number(text: str | None) -> float | None:
    """A figure as printed, or None."""
    try:
        value = None if text is None else float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def startup_memory(found: Found, context: Context) -> Changes:
    free, total = number(found.groups.get("free")), number(found.groups.get("total"))
    fraction, need = number(found.groups.get("fraction")), number(found.groups.get("need"))
    orphan = context.found.get("LOG102")
    if orphan is not None:
        return {
            "kind": "orphan-memory",
            "text": (
                f"VLLM::{orphan.groups['process']} holds {orphan.groups['mib']} MiB: an engine that"
                " outlived its API server, or another start."
            ),
            "fix": (
                "End that process by its id, wait until MemAvailable has come back, and start the"
                " same command again; the fraction is not the cause."
            ),
        }
    changes: Changes = {}
    if not free or not total:
        return changes
    changes["title"] = (
        f"The start-up check found {free:.2f} of {total:.2f} GiB free, less than the engine was"
        " told to take"
    )
    held = total - free
    largest = math.floor(free / total * 100 + 1e-9) / 100
    safe = max(round(largest - 0.01, 2), 0.01)
    if fraction and need:
        changes["title"] = (
            f"The start-up check failed: {fraction:g} of all memory is {need:.2f} GiB, and"
            f" {free:.2f} of {total:.2f} GiB are free ({need - free:.2f} GiB short)"
        )
    fix = (
        f"Lower --gpu-memory-utilization to {safe:.2f} ({safe * total:.2f} GiB requested,"
        f" {free:.2f} available)"
    )
    changes["fix"] = (
        f"{fix}; on a Spark the default of {VLLM_DEFAULT_UTILIZATION:g} can't be met, so always"
        " give a fraction."
    )
    if re.search(r"on node \d", found.event.text):
        changes["fix"] = f"{fix}, or free memory of other processes."
        return changes
    engines = context.facts.engines
    if engines:
        name, pid, mib = engines[0]
        who = (
            f"VLLM::{name}"
            + (f" (pid {pid})" if pid else "")
            + (f" with {mib:.0f} MiB" if mib else "")
        )
        return {
            **changes,
            "kind": "orphan-memory",
            "text": (
                f"another engine's process, {who}, still holds memory; it outlived its API server"
                " or belongs to another start."
            ),
            "fix": (
                f"End {f'process {pid}' if pid else 'that process'} and wait until MemAvailable has"
                " come back, then start the same command again; the fraction is not the cause."
            ),
        }
    if free / total >= 0.6 or fraction is None:
        # A clean headless Spark gives 78-94 % of its memory; with less than 60 % free somebody else
        # holds some.
        return changes
    if fraction <= 0.5:
        changes["kind"] = "multi-tenant"
        changes["text"] = (
            f"{held:.1f} GiB are held by other engines and programs; each fraction is of ALL"
            " memory, so the fractions of all engines, what other programs take and a reserve for"
            " the system must fit together."
        )
        changes["fix"] = (
            f"Lower the fractions so that their sum x {total:.2f} GiB + other programs stays below"
            f" {total:.2f} GiB with some GiB left; with the others as they are, at most {safe:.2f}"
            f" here ({safe * total:.2f} GiB)."
        )
        changes["alternatives"] = ["orphan-memory"]
        return changes
    if free / total >= 0.45:
        # Other programs were seen to leave this much (55.87 of 119.56 GiB, vLLM issue 48140);
        # engines that pile up leave less.
        changes["alternatives"] = ["orphan-memory"]
        return changes
    changes["kind"] = "restart-loop"
    changes["text"] = (
        f"{held:.1f} GiB are held although this start wants nearly everything: most likely by an"
        " earlier start of the same engine, whose memory has not come back or whose engine core"
        " lives on. With a restart policy, each further round makes it worse."
    )
    changes["fix"] = (
        "Stop the container (docker update --restart no), end VLLM:: processes that nvidia-smi"
        " still shows, wait until MemAvailable has come back, and start once by hand. Only if"
        f" another engine is meant to stay: --gpu-memory-utilization {safe:.2f} ({safe * total:.2f}"
        " GiB)."
    )
    changes["confidence"] = "medium"
    changes["alternatives"] = ["orphan-memory", "oom-startup-check"]
    return changes


def orphan_engine(found: Found, context: Context) -> Changes:
    if context.has("LOG101", "LOG103", "LOG114", "LOG106") or re.search(
        r"less than desired|still hold|orphan", found.event.text, re.IGNORECASE
    ):
        return {"severity": "error", "role": "cause"}
    return {}


def negative_estimate(found: Found, context: Context) -> Changes:
    estimate = number(found.groups.get("estimate")) or 0.0
    total, fraction, weights = context.total, context.fraction, context.story.weights_gib
    kv, overhead = context.story.kv_gib, context.facts.overhead_gib
    changes: Changes = {}
    cause = found.signature.text
    if kv is not None and total and fraction:
        allowed = fraction * total
        if overhead is None and weights is not None:
            overhead = allowed - weights - kv - estimate
        if weights is not None and overhead is not None:
            honest = allowed - weights - overhead
            changes["title"] = (
                f"The estimate of the CUDA graphs is negative ({estimate:g} GiB), and so the KV"
                f" cache got {kv:g} GiB: the engine takes {weights + overhead + kv:.1f} of"
                f" {total:g} GiB although {allowed:.1f} were allowed"
            )
            cause = (
                f"KV = {allowed:.2f} - {weights:.2f} - {overhead:.2f} + {-estimate:.2f} = {kv:.2f}"
                f" GiB; honest would be about {honest:.1f} GiB. {cause}"
            )
            pin = max(math.floor(honest * 0.7 / 5) * 5, 1)
            changes["fix"] = (
                f"Pin the KV cache, for instance --kv-cache-memory-bytes {pin}G, or set"
                " VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 and lower the fraction, or use a"
                " build with the fix. Lowering the fraction alone does not remove the term."
            )
    elif kv is not None:
        changes["title"] = (
            f"The estimate of the CUDA graphs is negative ({estimate:g} GiB), so the KV cache of"
            f" {kv:g} GiB is {-estimate:g} GiB too large"
        )
    changes["text"] = cause
    return changes


def no_kv_memory(found: Found, context: Context) -> Changes:
    story, total, fraction = context.story, context.total, context.fraction
    weights, short = story.weights_gib, number(found.groups.get("kv"))
    changes: Changes = {}
    too_big = weights is not None and total and fraction and weights > 0.85 * fraction * total
    if (
        "negative space" in found.event.text.lower()
        or too_big
        or (short is not None and weights is not None)
    ):
        changes["kind"] = "kv-too-small"
        changes["text"] = (
            "weights and overheads alone take what the fraction grants; the model is at the limit"
            " of this machine."
        )
        if weights is not None and total and fraction:
            changes["text"] = (
                f"the weights take {weights:g} of the {fraction * total:.1f} GiB that {fraction:g}"
                " grants; overheads take the rest."
            )
        changes["fix"] = (
            "Raise the fraction if MemAvailable allows it, lower --max-num-batched-tokens and"
            " --max-model-len, or use a smaller checkpoint."
        )
        changes["alternatives"] = ["uma-accounting"]
    else:
        changes["alternatives"] = ["kv-too-small"]
    return changes


def kv_starved(found: Found, context: Context) -> Changes | None:
    kv, expected = number(found.groups.get("kv")), number(found.groups.get("expected"))
    if kv is None:
        return None
    if expected is not None:
        if kv >= 0.6 * expected:
            return None
        return {"title": f"The KV cache got {kv:g} GiB where {expected:g} were to be expected"}
    story, total, fraction = context.story, context.total, context.fraction
    if story.weights_gib is None or not total or not fraction or context.has("LOG104", "LOG106"):
        return None
    missing = fraction * total - story.weights_gib - kv
    if missing <= max(12.0, 0.15 * total):
        return None
    return {
        "title": (
            f"The KV cache got {kv:g} GiB: {missing:.1f} of the {fraction * total:.1f} GiB granted"
            " went neither to weights nor to KV"
        )
    }


def kv_too_small(found: Found, context: Context) -> Changes:
    text = found.event.flat
    need, have = number(found.groups.get("need")), number(found.groups.get("have"))
    length = found.groups.get("length") or _group(r"max(?:imum)? seq\w* len\w* \((\d+)\)", text)
    estimate = _group(r"estimated maximum model length is (\d+)", text) or found.groups.get(
        "tokens"
    )
    total, fraction, available = context.total, context.fraction, context.facts.available_gib
    changes: Changes = {}
    if need is not None and have is not None:
        request = f"one request of {length} tokens" if length else "one request of full length"
        changes["title"] = (
            f"The KV cache is {need - have:.2f} GiB too small: {request} needs {need:g} GiB,"
            f" {have:g} are there"
        )
    fixes = []
    if estimate:
        fixes.append(f"set --max-model-len {estimate} or less")
    if need is not None and have is not None and total and fraction:
        exact = fraction + (need - have) / total
        wanted = math.ceil(exact * 100 - 1e-9) / 100
        asked = wanted * total
        new_kv = have + (wanted - fraction) * total
        if wanted <= 1 and (available is None or asked <= available):
            room = (
                f", {available:g} available"
                if available is not None
                else "; check that MemAvailable is larger before the start"
            )
            fixes.append(
                f"set --gpu-memory-utilization {wanted:.2f} ({asked:.2f} GiB requested{room}; KV cache"
                f" about {new_kv:.1f} GiB)"
            )
        else:
            fixes.append(
                f"don't raise the fraction: {wanted:.2f} would ask for {asked:.1f} GiB, and"
                f" {available or total:g} are there"
            )
        suggested = context.story.suggested_fraction
        if suggested and available is not None and suggested * total > available:
            fixes.append(
                f"don't take {suggested:g} from the INFO line: {suggested * total:.1f} GiB would"
                " fail the start-up check"
            )
    elif need is not None and have is not None:
        fixes.append(
            f"give the KV cache {need - have:.2f} GiB more (a higher --gpu-memory-utilization or"
            " --kv-cache-memory-bytes)"
        )
    if fixes:
        text = re.sub(r"; (set|give) ", r"; or \1 ", "; ".join(fixes))
        changes["fix"] = f"{text[:1].upper()}{text[1:]}."
    return changes


def mamba_blocks(found: Found, context: Context) -> Changes:
    asked, blocks = found.groups.get("asked"), found.groups.get("blocks")
    if not asked or not blocks:
        return {}
    return {
        "title": f"max-num-seqs {asked} is more than the {blocks} Mamba cache blocks there are",
        "fix": f"Set --max-num-seqs {blocks} or less.",
    }


def shared_memory(found: Found, context: Context) -> Changes:
    causes = [
        other
        for other in context.found.values()
        if (other.signature.role, other.signature.severity) == ("cause", "error")
    ]
    gone = not re.search(
        r"(?i)no space|bus error", found.event.flat
    )  # those say that it is too small
    if gone and min(cause.event.number for cause in causes) < found.event.number:
        return {
            "role": "consequence",
            "text": "the process that had made it ended while another was starting.",
        }
    return {}


def driver_no_memory(found: Found, context: Context) -> Changes:
    if context.has("LOG104"):
        return {"role": "consequence", "kind": "uma-accounting"}
    if context.has("LOG110") or "_memdescAllocInternal" in found.event.text:
        return {
            "kind": "page-cache",
            "text": (
                "the page cache of the files just read leaves no contiguous memory, though GiBs are"
                " free."
            ),
            "fix": (
                "Drop caches and compact (echo 3 > /proc/sys/vm/drop_caches; echo 1 >"
                " /proc/sys/vm/compact_memory) when MemFree falls below 8 GiB during loading; use a"
                " streaming loader."
            ),
        }
    return {}


def cuda_oom(found: Found, context: Context) -> Changes | None:
    if context.has("LOG103") and re.search(
        r"MemorySnapshot|mem_get_info|init_device",
        " ".join([found.event.text, *found.event.frames]),
    ):
        return None
    place = " ".join([found.event.text, *found.event.frames]).lower()
    story = context.story
    if re.search(r"propose|drafter|eagle|dflash|speculat", place):
        return {
            "kind": "spec-decode-oom",
            "title": "CUDA ran out of memory in the draft model",
            "text": (
                "draft slots grow with num_speculative_tokens x max-num-seqs, and buffers are made"
                " for the maximum."
            ),
            "fix": (
                "Set --max-num-seqs 4 (the default is 256 or more) or lower num_speculative_tokens."
            ),
        }
    if story.ready and story.ready_line < found.event.number:
        return {
            "kind": "oom-runtime",
            "title": "CUDA ran out of memory while serving",
            "text": (
                "the fraction is no hard limit: activations of large batches come on top, in the"
                " same pool as the system's memory."
            ),
            "fix": (
                "Lower the fraction or --max-num-batched-tokens, or pin the KV cache with"
                " --kv-cache-memory-bytes."
            ),
        }
    stage = (
        "while weights were loaded"
        if story.weights_gib is None
        else "after the weights were loaded"
    )
    return {"title": f"CUDA ran out of memory {stage}"}


_REMOVED_FLAGS = {
    "speculative-disable-by-batch-size": (
        'put "num_speculative_tokens_per_batch_size" into --speculative-config (0.24 or newer), or '
        "lower K"
    ),
    "disable_by_batch_size": (
        '"num_speculative_tokens_per_batch_size" (a list of [from, to, K]; 0.24 or newer)'
    ),
    "speculative-model": '--speculative-config with "model"',
    "num-speculative-tokens": '--speculative-config with "num_speculative_tokens"',
    "disable-log-requests": (
        "nothing: requests are not logged unless --enable-log-requests is given"
    ),
    "guided-decoding-backend": '--structured-outputs-config with "backend"',
    "rope-scaling": "--hf-overrides",
    "task": "--runner",
    "swap-space": "nothing: the V1 engine has no swap space",
    "num-scheduler-steps": "nothing: multi-step scheduling is gone",
    "use-v2-block-manager": "nothing: it is the only one",
    "cuda-graph-sizes": "--cudagraph-capture-sizes",
    "enable-reasoning": "--reasoning-parser alone",
}


def removed_flag(found: Found, context: Context) -> Changes:
    said = found.groups.get("flags", "").strip()
    names = re.findall(r"--?([a-z][\w-]*)", said) or [said]
    fixes = [
        f"instead of {name}: {_REMOVED_FLAGS[name]}" for name in names if name in _REMOVED_FLAGS
    ]
    return {"flags": said, **({"fix": f"Remove it; {'; '.join(fixes)}."} if fixes else {})}


_REMOVED_ENV = {
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "--moe-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "--moe-backend",
    "VLLM_FP8_MOE_BACKEND": "--moe-backend",
    "VLLM_MXFP4_BACKEND": "--moe-backend (this variable belongs to another fork)",
    "VLLM_NVFP4_GEMM_BACKEND": "--linear-backend",
    "VLLM_TEST_FORCE_FP8_MARLIN": "--linear-backend marlin",
    "VLLM_USE_V1": "nothing: there is no other engine",
}


def removed_env(found: Found, context: Context) -> Changes:
    name = found.groups.get("env", "").upper()
    changes: Changes = {}
    if name in _REMOVED_ENV:
        changes["fix"] = f"Remove it; its successor is {_REMOVED_ENV[name]}."
    if "ValueError" in found.event.text:
        changes |= {
            "severity": "error",
            "role": "cause",
            "title": f"The start was refused because of {name}, which this release does not know",
        }
    return changes


def gated(found: Found, context: Context) -> Changes:
    text = found.event.flat
    status = (
        found.groups.get("status") or found.groups.get("status2") or _group(r"\b(40[13])\b", text)
    )
    both = bool(re.search(r"401\b.{0,6}\b403|403\b.{0,6}\b401", text))
    if status == "403" and not both:
        return {
            "title": "The model's repository answers 403: the licence has not been accepted",
            "text": (
                "the token is good, but its account has not accepted the model's licence (or the"
                " token has no right to gated repositories)."
            ),
            "fix": (
                "Accept the licence on the model's page with the account of the token; a"
                " fine-grained token needs access to gated repositories."
            ),
        }
    if status == "401" and not both:
        return {
            "title": "The model's repository answers 401: no valid token reached it",
            "text": "HF_TOKEN is missing inside the container, or wrong.",
            "fix": "Pass -e HF_TOKEN into the container and check it with hf auth whoami.",
        }
    return {}


def port_taken(found: Found, context: Context) -> Changes:
    port = _group(
        r"(?:port|bind for|\D:)\W{0,3}(?:\d+\.\d+\.\d+\.\d+:)?(\d{2,5})\b", found.event.flat
    ) or _text(context.story.args.get("port"))
    if not port:
        return {}
    return {
        "title": f"Port {port} is taken",
        "fix": (
            f"Stop what listens there ({command_line('ss', '-ltnp', f'sport = :{port}')} shows it),"
            " or choose another port."
        ),
    }


def engine_failed(found: Found, context: Context) -> Changes:
    stop = context.stop
    if stop is None or found.event.number < stop.event.number:
        return {}
    return {
        "role": "noise",
        "kind": "benign-noise",
        "title": "A process reported a failed engine after the engine had been told to stop",
        "text": "that is how an ordered stop looks in this release.",
        "fix": "Ignore it.",
        "collect": (),
    }


def missing_package(found: Found, context: Context) -> Changes:
    package = _group(r"pip install [`'\"]?([\w.\[\]=-]+)", found.event.flat) or found.groups.get(
        "package"
    )
    return {"package": package or "the message names it"}


def shm_broadcast(found: Found, context: Context) -> Changes:
    if found.count < 3:
        return {}
    return {
        "kind": "multi-node-hang",
        "severity": "warning",
        "role": "state",
        "title": (
            f"A process has waited {found.count} times {found.groups.get('seconds', '60')} s for"
            " the others"
        ),
        "text": "once or twice is a compilation; this often means that a rank hangs or is gone.",
        "fix": (
            "Look at the last line of every rank; the one that went silent first is the one to look"
            " into."
        ),
    }


def loader_at_zero(found: Found, context: Context) -> Changes | None:
    # Only a bar that never moved: its last state is what counts, and another loader's bar is
    # another matter.
    if context.bars.get(found.groups["loader"].strip(), 0) > 0:
        return None
    return {}


def slow_load(found: Found, context: Context) -> Changes | None:
    gib, seconds = number(found.groups.get("gib")), number(found.groups.get("seconds"))
    if not seconds or seconds < 120:
        return None
    if gib is None:
        gib = context.story.weights_gib
    if gib:
        return (
            {"rate": f" for {gib:g} GiB, {gib / seconds:.2f} GiB/s"}
            if gib / seconds <= 0.25
            else None
        )
    return {"rate": ""} if seconds >= 900 else None


def at_the_limit(found: Found, context: Context) -> Changes | None:
    gib = number(found.groups.get("gib"))
    return {} if gib and gib >= 70 else None


def acceptance(found: Found, context: Context) -> Changes | None:
    # A line speaks of ten seconds; with few drafts in them its rate says nothing.
    rate, drafted = (
        number(found.groups.get("rate")),
        _group(r"drafted:? (\d+) tokens", found.event.text),
    )
    if rate is None or rate >= 5 or (drafted is not None and int(drafted) < 200):
        return None
    counted = [a for a in context.story.acceptance if a.drafted and a.accepted is not None]
    total = sum(a.drafted or 0 for a in counted)
    if drafted is not None and total and sum(a.accepted or 0 for a in counted) >= 0.05 * total:
        return {
            "severity": "info",
            "rate": f"{rate:g}",
            "title": f"For a while only {rate:g} % of the draft tokens were accepted",
            "text": (
                "the rest of the log shows that the pair works; text that nobody can foresee"
                " (random prompts, high temperature) does this."
            ),
            "fix": (
                "Ignore it, unless this is the text you serve: then speculation costs more than it"
                " gives."
            ),
        }
    return {"rate": f"{rate:g}"}


def _group(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.IGNORECASE)
    return match[1] if match else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


FIGURES: dict[str, Callable[[Found, Context], Changes | None]] = {
    function.__name__: function
    for function in (
        startup_memory,
        orphan_engine,
        negative_estimate,
        no_kv_memory,
        kv_starved,
        kv_too_small,
        mamba_blocks,
        shared_memory,
        driver_no_memory,
        cuda_oom,
        removed_flag,
        removed_env,
        gated,
        port_taken,
        engine_failed,
        missing_package,
        shm_broadcast,
        loader_at_zero,
        slow_load,
        at_the_limit,
        acceptance,
    )
}
"""The functions that `figures:` of a signature may name."""
