"""Whether the kernels can be used inside a vLLM process. vLLM is imported when it is asked."""

from __future__ import annotations

from sparkbook.errors import SparkbookError
from sparkbook.kernels import build, library
from sparkbook.util.shell_text import command_line

RELEASES = ("0.24", "0.32", "0.33")
"""Releases whose layers the classes in `vllm_layers` were read against. vLLM's layer interfaces
change without notice.
"""


def refusal() -> str | None:
    """Return why this process can't use the kernels; None if it can. Nothing here starts CUDA:
    vLLM may fork later.
    """
    import vllm
    from vllm.platforms import current_platform

    release = ".".join(vllm.__version__.split("+")[0].split(".")[:2])
    if release not in RELEASES:
        return f"they were written for vLLM {', '.join(RELEASES)}, and this is {vllm.__version__}"
    if not current_platform.is_cuda():
        return (
            "they need an NVIDIA GPU, and this vLLM runs on"
            f" {current_platform.device_name or current_platform.device_type}"
        )
    capability = current_platform.get_device_capability()
    if capability is None:
        return "vLLM does not know this GPU's compute capability"
    try:
        target = library.target_of((capability.major, capability.minor))
        if not build.library_path(target).is_file():
            return (
                f"the library for {target} is not built; run:"
                f" {command_line('sparkbook', 'kernels', 'build', '--target', target)}"
            )
    except SparkbookError as error:
        return str(error)
    return None
