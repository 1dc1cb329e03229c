"""The entry point through which vLLM finds the kernels: group `vllm.general_plugins`, name
`sparkbook_nvfp4`.

vLLM calls `register` in every one of its processes. It does nothing unless SPARKBOOK_VLLM_NVFP4 is
1; then it says in vLLM's log either that the kernels were registered, or why not, and vLLM goes on
without them. Nothing is imported, built or changed with the switch off.

With it on, NVFP4 products of linear layers take K3, and a mixture-of-experts layer that was set to
use the backend 'emulation' (`--moe-backend emulation`: the one that keeps the checkpoint's own
layout) takes K5 for up to eight tokens. More tokens, and whatever else the kernels don't do, go the
way that they went before.
"""

from __future__ import annotations

import logging
import os

SWITCH = "SPARKBOOK_VLLM_NVFP4"
_log = logging.getLogger("vllm.sparkbook")  # vLLM shows what is logged below 'vllm'


def register() -> None:
    """What vLLM calls. Never raises."""
    if os.environ.get(SWITCH, "0") != "1":
        return
    try:
        from sparkbook.kernels.vllm_support import refusal

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
