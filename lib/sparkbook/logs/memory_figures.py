"""Arithmetic behind the signatures of memory; see `sparkbook.logs.figures`. Sizes are GiB."""

from __future__ import annotations

import math
import re

from sparkbook.host.meminfo import VLLM_DEFAULT_UTILIZATION
from sparkbook.logs.found import Changes, Context, Found, group, number
from sparkbook.logs.story import Story

_CUT_TOO_FAR = 4
"""A context cut by more than this factor is not what anybody meant."""


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
        f"The start-up check found {free:.2f} of {total:.2f} GiB free, less than the engine wants"
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
        " earlier start of the same engine: its memory has not come back, or its engine core"
        " still runs. With a restart policy, each further round makes it worse."
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


def context_cut(found: Found, context: Context) -> Changes:
    """Warn where little is left of the context: something else held the memory just then."""
    asked, fits = int(found.groups["asked"]), int(found.groups["fits"])
    figures: Changes = {"asked": f"{asked:,}", "fits": f"{fits:,}"}
    if fits * _CUT_TOO_FAR > asked:
        return figures
    return figures | {
        "severity": "warning",
        "fix": (
            "Start once more now that caches are warm, and see which process or build step holds "
            "memory while the KV cache is sized; or pin the cache with --kv-cache-memory-bytes."
        ),
    }


def kv_too_small(found: Found, context: Context) -> Changes:
    text = found.event.flat
    need, have = number(found.groups.get("need")), number(found.groups.get("have"))
    length = found.groups.get("length") or group(r"max(?:imum)? seq\w* len\w* \((\d+)\)", text)
    estimate = group(r"estimated maximum model length is (\d+)", text) or found.groups.get("tokens")
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
                f"set --gpu-memory-utilization {wanted:.2f} ({asked:.2f} GiB requested{room}; KV"
                f" cache about {new_kv:.1f} GiB)"
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
        return {"role": "consequence", "kind": "uma-accounting", "likely": ()}
    if context.has("LOG110") or "_memdescAllocInternal" in found.event.text:
        return {
            "kind": "page-cache",
            "text": "the driver found no memory of the size it needs.",
            "likely": found.signature.likely[::-1],
            "fix": (
                "Drop caches and compact (echo 3 > /proc/sys/vm/drop_caches; echo 1 >"
                " /proc/sys/vm/compact_memory) when MemFree falls below 8 GiB during loading, and"
                " use a streaming loader; if MemAvailable is low too, lower the KV cache or the"
                " fraction."
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
    return {"title": f"CUDA ran out of memory{_stage(place, story)}"}


def _stage(place: str, story: Story) -> str:
    """Return when memory ran out, as far as the log shows it."""
    if re.search(r"mem_get_info|memorysnapshot|init_device", place):
        return " before any weight was loaded"
    if story.weights_gib is not None:
        return " after the weights were loaded"
    loading = re.search(r"load_weights|load_model|model_loader|weight_loader|create_weights", place)
    if loading or story.stage in ("load begins", "draft begins"):
        return " while weights were loaded"
    return ""
