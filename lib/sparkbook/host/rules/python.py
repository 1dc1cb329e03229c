"""vLLM without a container."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.host.family import Unknown, check
from sparkbook.host.machine import Machine, Python
from sparkbook.rules import Hit


@check("vLLM on the host", probe="python")
def vllm(machine: Machine) -> str:
    python = machine.python
    if python is None or (python.vllm is None and python.import_error is None):
        raise Unknown("vLLM is not installed outside a container")
    return (
        f"vLLM {python.vllm or 'not importable'}, torch {python.packages.get('torch', 'unknown')},"
        f" nvcc {python.nvcc or 'none'}"
    )


def _two_cudas(python: Python) -> str | None:
    """Return a library of CUDA 12 and one of CUDA 13, where both are installed."""
    names = sorted(name for name in python.packages if name.startswith("nvidia-"))
    twelve = next((name for name in names if name.endswith("-cu12")), None)
    thirteen = next((name for name in names if name.endswith("-cu13")), None)
    return f"{twelve}, {thirteen}" if twelve and thirteen else None


@vllm.rule(
    "HOST073",
    "vllm-not-importable",
    "error",
    kind="libcudart",
    source="https://github.com/transformerlab/transformerlab-app/issues/1334",
    fix=(
        "Point the app at a server in a container, or make a new environment with `uv pip"
        " install vllm --torch-backend=cu130`."
    ),
    fails={
        "python": {
            "import_error": (
                "ImportError: libcudart.so.12: cannot open shared object file: No such file or"
                " directory"
            )
        }
    },
)
def vllm_not_importable(machine: Machine) -> Iterator[Hit]:
    """vLLM is installed and cannot be imported. On a Spark the reason is mostly a set of packages
    for x86 and CUDA 12, as apps bring along that manage their own vLLM.
    """
    python = machine.python
    if python and python.import_error:
        mixed = "libcudart" in python.import_error or _two_cudas(python)
        why = ": its libraries are of two CUDA versions" if mixed else ""
        yield Hit(f"vLLM cannot be imported{why}.", python.import_error[:200])


@vllm.rule(
    "HOST071",
    "two-cudas",
    "error",
    kind="libcudart",
    source="https://github.com/vllm-project/vllm/issues/36099",
    fix="Make a new environment with `uv pip install vllm --torch-backend=cu130`.",
    fails={
        "python": {
            "vllm": "0.16.0",
            "packages": {
                "torch": "2.9.1+cu130",
                "nvidia-cuda-runtime-cu12": "12.8.90",
                "nvidia-cuda-runtime-cu13": "13.0.96",
            },
            "nvcc": "13.0",
        }
    },
)
def two_cudas(machine: Machine) -> Iterator[Hit]:
    """Libraries of CUDA 12 and CUDA 13 in one environment: vLLM is linked to one, torch to the
    other, and the import ends with `libcudart.so.12: cannot open shared object file`.
    """
    python = machine.python
    both = _two_cudas(python) if python and not python.import_error else None
    if both:
        yield Hit("Libraries of CUDA 12 and of CUDA 13 are installed side by side.", both)


@vllm.rule(
    "HOST072",
    "wheel-without-gb10-code",
    "error",
    kind="arch-no-kernel",
    source="https://github.com/vllm-project/vllm/issues/30855",
    fix=(
        "Make a new environment with `uv pip install vllm --torch-backend=cu130`;"
        " torch.version.cuda has to be 13.0 or more."
    ),
    fails={"python": {"vllm": "0.12.0", "packages": {"torch": "2.9.0+cu128"}, "nvcc": "13.0"}},
)
def wheel_without_gb10_code(machine: Machine) -> Iterator[Hit]:
    """A torch for CUDA 12 holds no code for the GB10: `no kernel image is available for execution
    on the device`.
    """
    name = machine.python.packages.get("torch", "") if machine.python else ""
    cuda = re.search(r"\+cu(\d{2})(\d)", name)
    if machine.is_spark and cuda and int(cuda[1]) < 13:
        yield Hit(f"The torch {name} has no code for the GB10.", f"torch {name}")


@vllm.rule(
    "HOST070",
    "no-nvcc",
    "warning",
    kind="flashinfer-jit",
    source="https://github.com/NVIDIA/xr-ai/blob/main/docs/source/guides/troubleshooting.md",
    fix="Install the CUDA toolkit that matches the driver, or use the container.",
    fails={"python": {"vllm": "0.28.0", "packages": {"torch": "2.9.1+cu130"}}},
    passes={"python": {"vllm": "0.28.0", "packages": {"torch": "2.9.1+cu130"}, "nvcc": "13.0"}},
)
def no_nvcc(machine: Machine) -> Iterator[Hit]:
    """FlashInfer and others compile kernels at their first use. Without a container they need nvcc,
    of a CUDA that the driver can run.
    """
    python = machine.python
    if machine.gpu.names and python and python.nvcc is None and not python.import_error:
        yield Hit("There is no nvcc: kernels that are compiled at first use cannot be.")
