"""What the GPU is, what it does at this moment, and what its driver wrote to the kernel's log."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkbook.host import machine as seen
from sparkbook.host.access import Access, last_line, number_in
from sparkbook.host.machine import Wanted


def gpu_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    ask = "--query-gpu=name,compute_cap,driver_version,memory.total,temperature.gpu"
    asked = access.runner(["nvidia-smi", ask, "--format=csv,noheader"])
    if asked.code == 127:
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in asked.out.splitlines()]
    rows = [row for row in rows if len(row) == 5]
    if asked.code or not rows:
        return {"gpu": seen.Gpu(error=last_line(asked.err or asked.out)[:200])}
    header = re.search(r"CUDA Version:\s*([\d.]+)", access.runner(["nvidia-smi"]).out)
    first = rows[0]
    gpu = seen.Gpu(
        names=[row[0] for row in rows],
        capability=first[1],
        driver=first[2],
        memory=first[3],
        temperature_c=number_in(first[4]),
        cuda=header[1] if header else None,
    )
    sample = _sample(access)
    busy = sample is not None and sample.utilization >= 50
    return {
        "gpu": gpu,
        "load": watch(access, "the program that runs there", 3, 0.5) if busy else None,
    }


def _sample(access: Access) -> seen.Load | None:
    """Return the GPU at this moment."""
    asked = access.runner(
        [
            "nvidia-smi",
            "--query-gpu=utilization.gpu,clocks.sm,power.draw,temperature.gpu",
            "--format=csv,noheader,nounits",
        ]
    )
    cells = [number_in(cell) for cell in (asked.out.splitlines() or [""])[0].split(",")]
    if asked.code or len(cells) != 4 or cells[0] is None:
        return None
    return seen.Load(
        by="",
        seconds=0,
        utilization=cells[0],
        clock_mhz=cells[1],
        power_w=cells[2],
        temperature_c=cells[3],
    )


def watch(
    access: Access, by: str, seconds: float, step_s: float, going: Callable[[], bool] = lambda: True
) -> seen.Load | None:
    """Return the largest of several samples, taken until the time is over or the load ends."""
    begin, samples = access.clock(), []
    while access.clock() - begin < seconds and going():
        if sample := _sample(access):
            samples.append(sample)
        access.sleep(step_s)
    if not samples:
        return None

    def most(name: str) -> float | None:
        return max(
            (value for sample in samples if (value := getattr(sample, name)) is not None),
            default=None,
        )

    return seen.Load(
        by=by,
        seconds=round(access.clock() - begin, 1),
        utilization=most("utilization") or 0,
        clock_mhz=most("clock_mhz"),
        power_w=most("power_w"),
        temperature_c=most("temperature_c"),
    )


def kernel_log_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    asked = access.runner(["dmesg"])
    if asked.code:
        return {}
    wrong = re.compile(r"NVRM: Xid|NV_ERR_NO_MEMORY|NVRM.*out of memory", re.IGNORECASE)
    return {
        "kernel_messages": [line[:300] for line in asked.out.splitlines() if wrong.search(line)][
            -20:
        ]
    }


# Run by the Python that the `vllm` command belongs to.
_PACKAGES = """
import importlib.metadata as m, json, re
names = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
starts = ("vllm", "torch", "triton"), ("nvidia-cu", "flashinfer")
keep = {n: v for n, v in names.items() if n in starts[0] or n.startswith(starts[1])}
try:
    import torch
    import vllm._C
    error = None
except Exception as problem:
    error = f"{type(problem).__name__}: {problem}"
print(json.dumps({"packages": keep, "error": error}))
"""


def python_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    command = shutil.which("vllm", path=access.environ.get("PATH", ""))
    if command is None or not found.get("gpu", seen.Gpu()).names:
        return {}
    with Path(command).open("rb") as script:
        first = script.readline(500).decode("utf-8", "replace")
    interpreter = first[2:].strip() if first.startswith("#!") else "python3"
    asked = access.runner([*interpreter.split(), "-c", _PACKAGES])
    said: dict[str, Any] = (
        json.loads(last_line(asked.out))
        if asked.code == 0
        else {"packages": {}, "error": last_line(asked.err)}
    )
    nvcc = access.runner(["nvcc", "--version"])
    nvcc = nvcc if nvcc.code == 0 else access.runner(["/usr/local/cuda/bin/nvcc", "--version"])
    release = re.search(r"release ([\d.]+)", nvcc.out) if nvcc.code == 0 else None
    packages = dict(sorted(said["packages"].items()))
    return {
        "python": seen.Python(
            vllm=packages.get("vllm"),
            packages=packages,
            import_error=said["error"] and said["error"][:300],
            nvcc=release[1] if release else None,
        )
    }
