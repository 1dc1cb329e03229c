"""Write `lib/sparkbook/plan/runs.json`: speeds that https://github.com/0xBakeer/inference-atlas
measured with vLLM on a DGX Spark, with their conditions.

    python tools/build_runs.py FOLDER           # FOLDER: a clone of the repository
    python tools/build_runs.py FOLDER --check   # exit 1 if the file would change

A file of the repository is one workload on one configuration; a sweep is one for each number of
requests. Evaluations and retrieval tests are left out: they are no measurements of speed. Facts
and figures only.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "lib/sparkbook/plan/runs.json"
RESULTS = "results/vllm/*/*/nvidia-gb10-dgx-spark/*.json"
KINDS = ("serving", "sweep", "prefill")
NO_OPTIONS = ("vllm-",)
"""Prefix of the keys of `args` that are environment variables."""


def configurations(folder: Path) -> list[dict[str, Any]]:
    """Return every configuration with its speeds, by id.

    Raises:
        OSError, ValueError, KeyError: a file is missing, or not of the repository's form.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob(RESULTS)):
        data = json.loads(file.read_text("utf-8"))
        if data["kind"] not in KINDS or data["hardware"].get("count", 1) != 1:
            continue
        one = found.setdefault(data["config_id"], _configuration(folder, data))
        if started := data.get("provenance", {}).get("started_at"):
            one["date"] = max(one["date"] or "", started[:10])
        one["runs"] += [{"file": file.relative_to(folder).as_posix(), **row} for row in _rows(data)]
    return [found[key] for key in sorted(found)]


def _configuration(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    model = data["model"]
    quant = folder / "models" / model["id"] / "quants" / f"{model['quant_id']}.json"
    repo = json.loads(quant.read_text("utf-8"))["hf_id"]
    return {
        "id": data["config_id"],
        "line": shlex.join(["vllm", "serve", repo, *_options(data["args"])]),
        "version": data["engine"]["version"],
        "image": data["engine"]["container"].split(" (")[0],
        "revision": model["revision"],
        "date": None,
        "runs": [],
    }


def _options(args: dict[str, Any]) -> Iterator[str]:
    for name, value in args.items():
        if name.startswith(NO_OPTIONS):
            continue
        if isinstance(value, bool):
            yield f"--{'' if value else 'no-'}{name}"
        else:
            yield f"--{name}"
            yield json.dumps(value) if isinstance(value, dict) else str(value)


def _rows(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One row for each number of requests."""
    params = data["workload"]["resolved_params"]
    levels = data.get("sweep") or [{"concurrency": params["concurrency"], **data}]
    # A prefill workload sends four prompts more than once: with a prefix cache the median is the
    # time of a hit, and the ninth decile that of a miss.
    cold = "p50" if data["args"].get("enable-prefix-caching") is False else "p90"
    for level in levels:
        metrics = level["metrics"]
        if not metrics["requests_ok"]:
            continue
        count = metrics["requests_ok"]
        yield {
            "kind": "prefill" if data["kind"] == "prefill" else "decode",
            "concurrency": level["concurrency"],
            "prompt": round(metrics["input_tokens_total"] / count),
            "output": round(metrics["output_tokens_total"] / count),
            "throughput_tok_s": metrics["output_tok_s"],
            "tpot_ms": metrics["tpot_ms"]["mean"],
            "itl_ms": metrics["itl_ms"]["mean"],
            "ttft_ms": metrics["ttft_ms"][cold if data["kind"] == "prefill" else "p50"],
            "power_w": metrics.get("power_avg_w"),
            "kv_tokens": metrics.get("kv_cache_tokens"),
        }


def text(found: list[dict[str, Any]]) -> str:
    """Return the file: a line for each configuration and each run."""
    parts = []
    for one in found:
        runs = ",\n  ".join(json.dumps(run) for run in one["runs"])
        parts.append(json.dumps({**one, "runs": []})[:-2] + f"\n  {runs}\n]}}")
    return "[\n" + ",\n".join(parts) + "\n]\n"


def main() -> int:
    """Build, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="only compare with the file")
    given = parser.parse_args()
    found = configurations(given.folder)
    if not found:
        print(f"{given.folder} has no {RESULTS}", file=sys.stderr)
        return 2
    new = text(found)
    if given.check:
        return int(OUT.read_text("utf-8") != new)
    OUT.write_text(new, "utf-8")
    print(f"{len(found)} configurations, {sum(len(one['runs']) for one in found)} speeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
