"""Arithmetic behind signatures: figures for their texts, and judgements that need more than a
pattern.

Each function takes what was found and its context and returns changes to the signature's judgement:
figures for `{name}` in its texts, or `title`, `text`, `fix`, `kind`, `severity`, `role` in place
of the signature's own. None withdraws the finding. Sizes are GiB.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import Any

from sparkbook.host.rules.system import BAD_RDMA_KERNELS
from sparkbook.logs.found import Changes, Context, Found, group, number
from sparkbook.logs.memory_figures import (
    context_cut,
    cuda_oom,
    driver_no_memory,
    kv_starved,
    kv_too_small,
    mamba_blocks,
    negative_estimate,
    no_kv_memory,
    orphan_engine,
    shared_memory,
    startup_memory,
)
from sparkbook.util.shell_text import command_line

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
        found.groups.get("status") or found.groups.get("status2") or group(r"\b(40[13])\b", text)
    )
    both = bool(re.search(r"401\b.{0,6}\b403|403\b.{0,6}\b401", text))
    if status == "403" and not both:
        return {
            "title": "The model's repository answers 403: the license has not been accepted",
            "text": (
                "the token is good, but its account has not accepted the model's license (or the"
                " token has no right to gated repositories)."
            ),
            "fix": (
                "Accept the license on the model's page with the account of the token; a"
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
    port = group(
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
        return _by_signal(found)
    return {
        "role": "noise",
        "kind": "benign-noise",
        "title": "A process reported a failed engine after the engine had been asked to stop",
        "text": "that is how an ordered stop looks in this release.",
        "fix": "Ignore it.",
        "collect": (),
    }


def _by_signal(found: Found) -> Changes:
    """Return what a negative exit code of a process says: the signal that ended it."""
    code = group(r"Failed core proc\(s\): \{[^}\n]*?: -(\d{1,2})\b", found.event.flat)
    if code is None or int(code) not in set(signal.Signals):
        return {}
    killed = int(code) == signal.SIGKILL
    return {
        "title": f"The signal {signal.Signals(int(code)).name} ended an engine process",
        "text": (
            "it was killed from outside, mostly for lack of memory."
            if killed
            else "it crashed in compiled code, which prints no traceback."
        ),
        "fix": "Look at the last line before this one, and at the host's kernel log"
        " (journalctl -k).",
    }


def missing_package(found: Found, context: Context) -> Changes:
    package = group(r"pip install [`'\"]?([\w.\[\]=-]+)", found.event.flat) or found.groups.get(
        "package"
    )
    return {"package": package or "the message names it"}


def package_built(found: Found, context: Context) -> Changes:
    return {"package": found.groups.get("package") or "it"}


def shm_broadcast(found: Found, context: Context) -> Changes:
    story = context.story
    went_on = any(point.generation_tok_s > 0 for point in story.throughput[-3:])
    if found.count < 3 or (story.ready and (story.ready_line > found.end or went_on)):
        return {}
    waits = {
        "kind": "multi-node-hang",
        "severity": "warning",
        "role": "state",
        "title": (
            f"A process has waited {found.count} times {found.groups.get('seconds', '60')} s for"
            " the others"
        ),
    }
    if story.stage == "autotune begins":
        return waits | {
            "text": "FlashInfer tunes its kernels on all ranks together, and they block each other"
            " where one has results from an earlier start and another has none, or where RDMA from"
            " GPU memory is missing (vLLM issues 57423 and 52291); without an earlier start,"
            " tuning alone can take half an hour.",
            "fix": "If no rank prints progress, stop all ranks, delete flashinfer_autotune_cache in"
            " vLLM's cache folder (~/.cache/vllm) of each, and start again; if they block again,"
            " add --no-enable-flashinfer-autotune.",
        }
    return waits | {
        "text": "once or twice is a compilation; this often means that a rank hangs or is gone.",
        "fix": (
            "Look at the last line of every rank; the one that went silent first is the one to look"
            " into."
        ),
    }


def ray_waits(found: Found, context: Context) -> Changes | None:
    # It says so at once, and again after 30 s; a start that goes on has got its GPUs.
    seconds = number(found.groups.get("seconds"))
    began = context.story.stage not in (None, "begin", "config resolved")
    return None if began or not seconds or seconds < 60 else {}


def memory_registration(found: Found, context: Context) -> Changes:
    for kernel, source in BAD_RDMA_KERNELS.items():
        if match := re.search(rf"\b{re.escape(kernel)}(?!\d)\S*", context.facts.text):
            return {
                "title": (f"Kernel {match[0].strip(chr(34))} refuses to register memory for RDMA"),
                "text": f"the same driver and image work on 6.17.0-1032 ({source}).",
                "likely": (),
                "collect": (),
                "confidence": "high",
                "fix": "Start the kernel 6.17.0-1032-nvidia from the boot menu, and hold it back.",
            }
    return {}


def partner_lost(found: Found, context: Context) -> Changes:
    """The partner's end, rather than a setting, where the connection worked before or where there
    is no RDMA to be set wrongly.
    """
    story = context.story
    worked = story.ready or story.kv_tokens is not None or bool(story.throughput)
    tcp = context.has("LOG504") or re.search(r"NCCL_IB_DISABLE\W{0,3}1", found.event.text)
    if not worked and not tcp and not context.has("LOG511"):
        return {}
    return {
        "kind": "multi-node-hang",
        "title": "NCCL lost the connection to another rank",
        "text": "the connection worked before, so the other rank or its node is gone.",
        "likely": (
            "the other rank was ended: its log has an error, or stops without one",
            "the kernel or a guard killed it for lack of memory: journalctl -k of that node",
            "the node or its cable failed: ping and ip link show it",
        ),
        "fix": "Read the logs of the other ranks; the one that fell silent first is the cause.",
    }


_LEAST_TRANSFORMERS = {"gemma4": "5.5"}
"""The first transformers with a model's type, where a report names it."""


def unknown_architecture(found: Found, context: Context) -> Changes:
    name = (found.groups.get("type") or "").strip("`'\"")
    least = _LEAST_TRANSFORMERS.get(name)
    if not name:
        return {}
    needs = f" ({name} needs transformers {least} or newer)" if least else ""
    return {
        "title": f"This image does not know the model type {name}",
        "fix": (
            f"Use an image with a newer vLLM and transformers{needs}; check with vllm --version"
            " inside it."
        ),
    }


def killed_process(found: Found, context: Context) -> Changes:
    process = found.groups.get("process")
    if not process:
        return {}
    changes: Changes = {"title": f"The kernel killed {process} for lack of memory"}
    if not re.match(r"vllm|python|pt_main|ray", process, re.IGNORECASE):
        changes["fix"] = (
            f"Give {process} and the engine less together: {process} is no process of the engine,"
            " and the kernel ends what frees most. Lower --gpu-memory-utilization, or what"
            f" {process} itself may hold, and start {process} again: what depends on it waits."
        )
    return changes


def nvml_unsupported(found: Found, context: Context) -> Changes:
    event = found.event
    if not event.is_traceback or event.line.where or context.story.ready:
        return {}
    return {
        "role": "cause",
        "severity": "error",
        "title": "A program asks NVML for the GPU's memory, and ends for want of an answer",
        "text": "GB10 has no memory of its own, so the query does not exist there; GPU and driver"
        " are not broken.",
        "fix": "Take a newer release of that program, which asks the CUDA runtime"
        " (torch.cuda.mem_get_info) or /proc/meminfo where NVML says Not Supported; don't replace"
        " libnvidia-ml.",
    }


def network_needed(found: Found, context: Context) -> Changes:
    if not re.search(r"harmony|vocab|tiktoken|openaipublic", found.event.flat, re.IGNORECASE):
        return {}
    return {
        "text": "gpt-oss fetches its vocabulary when it runs, and cannot reach it.",
        "fix": (
            "Fetch the vocabulary beforehand and set TIKTOKEN_ENCODINGS_BASE to its folder inside"
            " the container."
        ),
    }


_REFUSALS = {
    "401": "the client sent no API key, or another one than the server's --api-key.",
    "404": "the model's name is not the served one, or the address lacks /v1.",
    "405": "the address takes another method; requests are sent with POST.",
    "500": "the engine failed on the request; the first error of EngineCore in this log says why.",
}


_NOT_FOUND = (
    (
        r".*//",
        "the path has two slashes in a row.",
        "Remove the slash at the end of the client's base URL.",
    ),
    (
        r"/v1/.*\bv1/",
        "the path has /v1 twice.",
        "Remove /v1 from the client's base URL: the client adds it.",
    ),
    (
        r"/api/",
        "the client speaks Ollama's API.",
        "Choose an OpenAI-compatible server in the client, with /v1 at the end of its base URL.",
    ),
    (
        r"/(?:chat|completions|embeddings|models|responses)\b",
        "the path lacks /v1.",
        "Add /v1 to the client's base URL.",
    ),
)
"""Paths that vLLM does not have: their form, what is wrong, and what to do."""


def refused_requests(found: Found, context: Context) -> Changes:
    status, path = found.groups.get("status", ""), found.groups.get("path", "")
    text = _REFUSALS.get(status)
    changes: Changes = {"text": text} if text else {}
    if status == "404":
        for form, wrong, fix in _NOT_FOUND:
            if re.match(form, path):
                changes = {"text": wrong, "fix": fix, "collect": ()}
                break
    # Now and then a wrong request is no fault of a server that answers others.
    if context.story.ready or context.story.served >= found.count:
        changes |= {"severity": "info"}
    return changes


def loader_at_zero(found: Found, context: Context) -> Changes | None:
    # Only a bar that never moved: its last state is what counts, and another loader's bar is
    # another matter. An engine that failed while it loaded says why elsewhere.
    if context.bars.get(found.groups["loader"].strip(), 0) > 0 or context.has("LOG510"):
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
        group(r"drafted:? (\d+) tokens", found.event.text),
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


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


FIGURES: dict[str, Callable[[Found, Context], Changes | None]] = {
    function.__name__: function
    for function in (
        startup_memory,
        orphan_engine,
        negative_estimate,
        no_kv_memory,
        context_cut,
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
        package_built,
        shm_broadcast,
        ray_waits,
        memory_registration,
        partner_lost,
        unknown_architecture,
        killed_process,
        nvml_unsupported,
        network_needed,
        refused_requests,
        loader_at_zero,
        slow_load,
        at_the_limit,
        acceptance,
    )
}
"""The functions that `figures:` of a signature may name."""
