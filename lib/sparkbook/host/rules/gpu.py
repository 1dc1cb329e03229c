"""The GPU: its driver, temperature, clocks and power."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.host.family import Unknown, check, spark_only, version
from sparkbook.host.machine import Machine
from sparkbook.host.spark import STUCK_MHZ
from sparkbook.rules import Hit

MINIMUM_DRIVER = 580
"""Branch of the NVIDIA driver that DGX OS ships for CUDA 13
(https://docs.nvidia.com/dgx/dgx-spark/release-notes.html).
"""

DOUBTFUL_DRIVERS = (590,)
"""Driver branches with a public report of faults: 590 hung while CUDA graphs were captured."""

_BUSY, _IDLE_W, _HOT_C = 80, 25, 85


def _branch(machine: Machine) -> int | None:
    return (version(machine.gpu.driver) or (None,))[0]


@check("driver", probe="gpu")
def driver(machine: Machine) -> str:
    gpu = machine.gpu
    if gpu.error:
        return "no answer"
    if _branch(machine) is None:
        raise Unknown("no NVIDIA driver" if not gpu.names else f"its version is '{gpu.driver}'")
    return f"{gpu.driver}, runs CUDA up to {gpu.cuda or 'an unknown version'}"


@driver.rule(
    "HOST002",
    "driver-too-old",
    "error",
    kind="driver",
    source="https://docs.nvidia.com/dgx/dgx-spark/release-notes.html",
    fix="Update DGX OS (Dashboard, or `sudo apt full-upgrade`) and restart.",
    fails={"gpu": {"driver": "570.86.10"}},
)
def driver_too_old(machine: Machine) -> Iterator[Hit]:
    """Images for the Spark are built with CUDA 13, which needs the driver's branch 580 or newer."""
    branch = _branch(machine)
    if machine.is_spark and branch is not None and branch < MINIMUM_DRIVER:
        yield Hit(
            f"The NVIDIA driver {machine.gpu.driver} is too old for CUDA 13 images.",
            f"branch {branch}, needed {MINIMUM_DRIVER}",
        )


@driver.rule(
    "HOST003",
    "driver-doubtful",
    "warning",
    kind="driver",
    confidence="medium",
    source="https://conselara.dev/notes/vllm-dgx-spark-sm121-gotchas/",
    fix="Stay on the 580 branch that DGX OS ships.",
    fails={"gpu": {"driver": "590.44.01"}},
    passes={"gpu": {"driver": "610.43"}},
)
def driver_doubtful(machine: Machine) -> Iterator[Hit]:
    """Branch 590 was reported to hang during or after the capture of CUDA graphs."""
    if machine.is_spark and _branch(machine) in DOUBTFUL_DRIVERS:
        yield Hit(
            f"The NVIDIA driver {machine.gpu.driver} is of a branch that was seen to hang while"
            " CUDA graphs are captured."
        )


@driver.rule(
    "HOST013",
    "driver-silent",
    "error",
    kind="driver",
    source="https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html",
    fix="Restart the machine; if that does not help, reinstall the driver through DGX OS.",
    fails={
        "gpu": {
            "names": [],
            "driver": None,
            "error": "Failed to initialize NVML: Driver/library version mismatch",
        }
    },
)
def driver_silent(machine: Machine) -> Iterator[Hit]:
    """nvidia-smi is installed and ends with an error, as after an update of the driver without a
    restart.
    """
    if machine.gpu.error:
        yield Hit("The NVIDIA driver does not answer.", machine.gpu.error)


@driver.rule(
    "HOST014",
    "image-newer-than-driver",
    "error",
    kind="arch-ptx-driver",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/08-image-toolchain-newer-than-driver.md",
    fix="Take an image whose CUDA is not newer than what nvidia-smi shows, or update the driver.",
    fails={"image": {"cuda": "13.2.0"}},
)
def image_newer_than_driver(machine: Machine) -> Iterator[Hit]:
    """Code that the image compiles at run time is in the language of its own CUDA, and an older
    driver refuses it: `cudaErrorUnsupportedPtxVersion (222)`. Code that was compiled beforehand
    still works, so only some models fail, sometimes at the first token.
    """
    image = version(machine.image.cuda if machine.image else None)
    driver = version(machine.gpu.cuda)
    if not machine.gpu.error and image and driver and image[:2] > driver[:2]:
        yield Hit(
            "The image's CUDA is newer than the driver's: kernels that are compiled at run time"
            " are refused.",
            f"image CUDA {'.'.join(map(str, image[:2]))}, driver CUDA {machine.gpu.cuda}",
        )


@check("compute capability", probe="gpu")
def capability(machine: Machine) -> str:
    if not machine.gpu.names:
        raise Unknown("no NVIDIA GPU answers")
    return f"{machine.gpu.capability or 'not reported'} ({', '.join(machine.gpu.names)})"


@check("GPU memory query", probe="gpu")
def memory_query(machine: Machine) -> str:
    spark_only(machine, "only there does the GPU have no memory of its own")
    return machine.gpu.memory or "nothing"


@memory_query.rule(
    "HOST015",
    "no-gpu-memory-of-its-own",
    "info",
    kind="nvml-not-supported",
    source="https://github.com/leptonai/gpud/pull/1170",
    fix="Read /proc/meminfo; nvidia-smi --query-compute-apps shows what each process holds.",
    fails={"gpu": {"memory": "[N/A]"}},
)
def no_gpu_memory(machine: Machine) -> Iterator[Hit]:
    """A GB10 has no memory of its own, so NVML answers "Not Supported" and nvidia-smi shows
    `[N/A]`. Tools that take this for a broken GPU are wrong. A library that replaces NVML for the
    whole system hides more than it helps.
    """
    text = machine.gpu.memory or "nothing"
    if re.search(r"N/A|not supported", text, re.IGNORECASE):
        yield Hit(
            "nvidia-smi cannot report the memory of a GB10, and nothing is broken: read"
            " /proc/meminfo.",
            text,
        )


def _hottest(machine: Machine) -> float | None:
    readings = [machine.gpu.temperature_c, machine.load.temperature_c if machine.load else None]
    return max((value for value in readings if value is not None), default=None)


@check("temperature", probe="gpu")
def temperature(machine: Machine) -> str:
    hottest = _hottest(machine)
    if hottest is None:
        raise Unknown("no GPU reports its temperature")
    return f"{hottest:.0f} °C"


@temperature.rule(
    "HOST016",
    "gpu-hot",
    "warning",
    kind="thermal-throttle",
    confidence="medium",
    source="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
    fix="Give it air; if that is not enough: `sudo nvidia-smi -lgc 0,2000`.",
    fails={"load": {"temperature_c": 91}},
    passes={"load": {"temperature_c": 80}},
)
def hot(machine: Machine) -> Iterator[Hit]:
    """Above 85 °C a GB10 lowers its clocks; sudden power-offs were reported at 91 °C and more. A
    lower clock costs a server little, because decoding waits for memory and not for arithmetic.
    """
    hottest = _hottest(machine)
    if hottest is not None and hottest >= _HOT_C:
        yield Hit(f"The GPU is hot ({hottest:.0f} °C): it slows itself down.", f"{hottest:.0f} °C")


@check("clocks and power", probe="load")
def clocks(machine: Machine) -> str:
    spark_only(machine, "the stuck states are the GB10's")
    load = machine.load
    if load is None or load.utilization < _BUSY or load.clock_mhz is None:
        raise Unknown(
            "an idle GPU may clock low: give --run to put a short load on it, or check while a"
            " server answers"
        )
    power = "power not reported" if load.power_w is None else f"{load.power_w:.0f} W"
    return f"{load.clock_mhz:.0f} MHz, {power} at {load.utilization:.0f} % under {load.by}"


@clocks.rule(
    "HOST017",
    "clocks-stuck",
    "warning",
    kind="power-throttle",
    source="https://github.com/Blackwellboy/model-serving-minefield/pull/55",
    fix="Shut down, pull the power plug for a minute, start again.",
    fails={"load": {"clock_mhz": 513, "power_w": 14}},
)
def clocks_stuck(machine: Machine) -> Iterator[Hit]:
    """A GB10 can stay at 513, 721 or 800 MHz under full load, with no reason shown by nvidia-smi. A
    warm restart does not help; disconnecting the machine from power does. No measurement taken in
    this state is valid.
    """
    load = machine.load
    if load and load.clock_mhz is not None and load.clock_mhz < STUCK_MHZ:
        yield Hit(
            f"The GPU is stuck at {load.clock_mhz:.0f} MHz under load, far below its speed.",
            clocks.look(machine),
        )


@clocks.rule(
    "HOST018",
    "busy-without-power",
    "warning",
    kind="power-throttle",
    confidence="low",
    source="https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1",
    fix=(
        "Compare the decode time of a step with another day's; if it is slower, disconnect the"
        " machine from power for a minute."
    ),
    fails={"load": {"power_w": 18}},
)
def busy_without_power(machine: Machine) -> Iterator[Hit]:
    """High utilization only means that a kernel was resident. At a normal clock and about 20 W the
    GPU waits for something, or its power is capped below what NVML can see.
    """
    load = machine.load
    if load is None or load.clock_mhz is None or load.clock_mhz < STUCK_MHZ:
        return
    if load.power_w is not None and load.power_w < _IDLE_W:
        yield Hit(
            f"The GPU is busy and takes only {load.power_w:.0f} W: it waits, or its power is"
            " capped.",
            clocks.look(machine),
        )
