"""The entry point through which vLLM finds the kernels: group `vllm.general_plugins`, name
`sparkbook_nvfp4`.

vLLM calls `register` in every one of its processes. It does nothing unless SPARKBOOK_VLLM_NVFP4 is
1; then it says in vLLM's log either that the kernels were registered, or why not, and vLLM goes on
without them. Nothing is imported, built or changed with the switch off.

With it on, NVFP4 products of linear layers take K3, and a mixture-of-experts layer that was told to
use the backend 'emulation' (`--moe-backend emulation`: the one that keeps the checkpoint's own
layout) takes K5 for up to eight tokens. More tokens, and whatever else the kernels don't do, go the
way that they went before.
"""

from __future__ import annotations

import logging
import os

SWITCH = "SPARKBOOK_VLLM_NVFP4"
#: Releases whose layers the classes in `vllm_layers` were read against. vLLM's layer interfaces change without notice.
RELEASES = ("0.24", "0.32", "0.33")
_log = logging.getLogger("vllm.sparkbook")  # vLLM shows what is logged below 'vllm'


def register() -> None:
    """What vLLM calls. Never raises."""
    if os.environ.get(SWITCH, "0") != "1":
        return
    try:
        reason = refusal()
        if reason is None:
            from sparkbook.kernels import vllm_layers

            vllm_layers.install()
            _log.info(
                "%s: NVFP4 decoding uses the sparkbook kernels (linear layers; experts with"
                " --moe-backend emulation)",
                SWITCH,
            )
    except Exception as error:  # noqa: BLE001 - a plug-in must not take the server down
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        _log.warning("%s is set, but the sparkbook kernels are not used: %s", SWITCH, reason)


def refusal() -> str | None:
    """Why the kernels can't be used in this process; None if they can. Asks no question that starts
    CUDA: vLLM may fork later.
    """
    import vllm
    from vllm.platforms import current_platform

    from sparkbook.errors import SparkbookError
    from sparkbook.kernels import build, library
    from sparkbook.util.shell_text import command_line

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
