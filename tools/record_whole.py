"""Works up what `record_gpu.py MODELS OUT speed-SIZE` left: speeds, what the plug-in chose and what
PyTorch's profiler saw of the prompts.

    python tools/record_whole.py OUT 8b|30b [NAME]

writes `kernels/results/whole-SIZE-NAME.json` (NAME: h200); what OUT does not hold (`record_gpu.py`
measures any part alone) stays as an earlier run left it, and `measured` says when the others were.
Run it in the checkout that was measured: the version of the kernels is its own.
"""

from __future__ import annotations

import bisect
import collections
import datetime
import gzip
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from sparkbook.checkpoint.known import DUMMIES
from sparkbook.kernels import build

PROMPTS = ("75", "512", "4k")
TURNS = range(1, 6)
VERDICTS = ("valid", "suspect", "invalid")
ARMS = ("plugin", "marlin", "again")
"""The servers; `again` is a second one with Marlin: how much two of a kind differ."""
BEFORE = {"marlin": "_C::marlin_gemm", "attention": "_vllm_fa3_C::fwd"}
"""Operators of a prompt's step: the one that the plug-in hooks, and one that it leaves alone."""


def decoded(*reports: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each number of requests: tokens a second while all decode (the mean of the turns,
    and each turn where there are several), time a token, what the gate says of the worst turn.
    """
    rows = []
    for first in reports[0]["cells"]:
        cells = [
            cell
            for report in reports
            for cell in report["cells"]
            if cell["concurrency"] == first["concurrency"]
        ]
        turns = [round(cell["figures"]["steady_tok_s"], 1) for cell in cells]
        row = {
            "requests": first["concurrency"],
            "tok_s": round(statistics.mean(turns), 1),
            **({"turns": turns} if len(turns) > 1 else {}),
            "token_ms": round(first["figures"]["tpot_s"]["median"] * 1e3, 3),
        }
        if first["engine"].get("drafts"):
            row["step_ms"] = round(first["figures"]["step_gap_s"]["median"] * 1e3, 2)
            row["tokens_a_draft"] = round(first["engine"]["mean_length"], 2)
        row["verdict"] = max((cell["verdict"] for cell in cells), key=VERDICTS.index)
        found = [finding["rule"] for cell in cells for finding in cell["findings"]]
        rows.append(row | {"findings": list(dict.fromkeys(found))})
    return rows


def traced(file: Path) -> dict[str, Any]:
    """A row for each step that reads a prompt: when, its tokens, the CPU's time until all is
    launched, CUDA graphs launched, the GPU's kernels and their time, how long after the end of the
    last operator one begins (lower quartile, microseconds). And the time of the kernels of a
    decoding step, by the number of requests.
    """
    with gzip.open(file) as packed:
        trace = json.load(packed)
    by_kind = collections.defaultdict(list)
    for event in sorted(trace["traceEvents"], key=lambda event: event.get("ts", 0)):
        by_kind[event.get("cat")].append(event)

    def within(step: dict[str, Any], *kinds: str) -> list[dict[str, Any]]:
        end = step["ts"] + step["dur"]
        return [e for kind in kinds for e in by_kind[kind] if step["ts"] <= e["ts"] < end]

    waiting = collections.defaultdict(list)  # a step's annotation on the GPU, for that of the CPU
    for step in by_kind["gpu_user_annotation"]:
        waiting[step["name"]].append(step)
    prompts, decoding = [], collections.defaultdict(list)
    for step in by_kind["user_annotation"]:
        if not waiting[step["name"]]:
            continue
        kernels = within(waiting[step["name"]].pop(0), "kernel")
        busy = sum(kernel["dur"] for kernel in kernels) / 1e3
        reading, tokens, _, requests = re.findall(r"\d+", step["name"])[:4]
        if reading == "0":
            decoding[requests].append(busy)
            continue
        calls = within(step, "cpu_op", "cuda_runtime", "cuda_driver")
        ends = sorted(call["ts"] + call["dur"] for call in calls)
        gaps = {
            f"us_before_{what}": [
                call["ts"] - ends[bisect.bisect_right(ends, call["ts"]) - 1]
                for call in calls
                if call["name"] == name
            ]
            for what, name in BEFORE.items()
        }
        at = datetime.datetime.fromtimestamp(
            trace["baseTimeNanoseconds"] / 1e9 + step["ts"] / 1e6, datetime.UTC
        )
        prompts.append(
            {
                "at": f"{at:%H:%M:%S}",
                "tokens": int(tokens),
                "cpu_ms": round(step["dur"] / 1e3, 2),
                "graphs": sum(call["name"] == "cudaGraphLaunch" for call in calls),
                "kernels": len(kernels),
                "gpu_ms": round(busy, 2),
                **(
                    {what: round(statistics.quantiles(gap)[0], 1) for what, gap in gaps.items()}
                    if gaps["us_before_marlin"]  # otherwise a CUDA graph calls no operator
                    else {}
                ),
            }
        )
    steps = {requests: round(statistics.median(ms), 3) for requests, ms in decoding.items()}
    return {"prompts": prompts, "decode_gpu_ms": steps}


def chosen(log: str) -> dict[str, dict[str, list[float]]]:
    """Microseconds of ours and vLLM's by shape and number of tokens."""
    found = re.findall(r"NVFP4 (linear|experts)(.*?) \(\w+; .*microseconds, tokens: .*?, (.*)", log)
    return {
        kind + shape: {
            m: [float(us) for us in pair.split("/")]
            for m, pair in re.findall(r"(\d+): (\S+?)(?:,|$)", times)
        }
        for kind, shape, times in found
    }


def laid_out(value: Any, pad: str = "") -> str:
    """JSON with a row a line."""
    flat = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(pad) + len(flat) <= 200:
        return flat
    deeper = pad + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {laid_out(one, deeper)}" for key, one in value.items()]
    else:
        parts = [laid_out(one, deeper) for one in value]
    lines = ",\n".join(deeper + part for part in parts)
    return f"{flat[0]}\n{lines}\n{pad}{flat[-1]}"


def main(out: Path, size: str, name: str = "h200") -> None:
    """Everything that was recorded of a size."""
    file = build.sources() / "results" / f"whole-{size}-{name}.json"
    found = json.loads(file.read_text("utf-8")) if file.is_file() else {}

    def reports(*names: str) -> list[dict[str, Any]]:
        files = [out / f"{name}.json" for name in names]
        return [json.loads(one.read_text("utf-8")) for one in files if one.is_file()]

    arms, about = found.setdefault("arms", {}), None
    for arm in ARMS:
        server, parts = f"speed-{size}-{arm}", {}
        if decode := reports(f"{server}.decode", f"{server}.decode-again"):
            parts["decode"], about = decoded(*decode), decode[0]
        if len(turns := reports(*(f"{server}.prefill-{turn}" for turn in TURNS))) == len(TURNS):
            about = turns[0]
            parts["first_token_ms"] = {
                prompt: [
                    [round(one["ttft_s"] * 1e3, 1) for one in turn["cells"][place]["requests"]]
                    for turn in turns
                ]
                for place, prompt in enumerate(PROMPTS)
            }
        if traces := sorted((out / "profile" / server).glob("*rank0*.json.gz")):
            parts["profile"] = traced(traces[0])
        drafting = f"speed-{size}-ngram-{arm}"
        if drafts := reports(f"{drafting}.decode", f"{drafting}.decode-again"):
            parts["ngram"] = decoded(*drafts)
        if parts:
            arms.setdefault(arm, {}).update(parts)
            when = about["date"] if about else None
            measured = f"{when}, version {build.VERSION}"
            found.setdefault("measured", {}).update(dict.fromkeys(parts, measured))
    if about is None:
        raise SystemExit(f"{out} holds no speed-{size}")
    gpu, driver = re.fullmatch(r"(?:\d+ x )?(.+), driver (.+)", about["machine"]).groups()
    log = (out / f"speed-{size}-plugin.log").read_text("utf-8")
    model = DUMMIES[size].rpartition("/")[2]
    found = {
        "model": f"shape of {model}, dummy weights in NVFP4, vocabulary of 49152",
        "machine": {
            "gpu": gpu,
            "driver": driver,
            "date": about["date"][:10],
            "kernels": {"version": build.VERSION, "sources": build.source_hash()},
        },
        "engine": about["engine"],
        "measured": found["measured"],
        "choices_us": chosen(log),
        "arms": arms,
    }
    file.write_text(laid_out(found) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
