"""The entry point through which vLLM finds the kernels: group `vllm.general_plugins`, name
`sparkbook_nvfp4`.

vLLM calls `register` in every one of its processes. It does nothing unless SPARKBOOK_VLLM_NVFP4 is
1; then it says in vLLM's log either that the kernels were registered, or why not, and vLLM goes on
without them. Nothing is imported, built or changed with the switch off.

With it on, layers that vLLM gives to Marlin take, for each number of tokens, whichever was measured
faster when the model was loaded: Marlin's product or ours. More tokens than were measured, prefill
among them, and other backends stay as they were.
"""

from __future__ import annotations

import logging
import os

SWITCH = "SPARKBOOK_VLLM_NVFP4"
_log = logging.getLogger("vllm.sparkbook")  # vLLM shows what is logged below 'vllm'


def register() -> None:
    """What vLLM calls. Never raises."""
    switch = os.environ.get(SWITCH, "0")
    if switch not in ("", "0", "1"):
        _log.warning("%s is '%s', and only 1 switches the sparkbook kernels on", SWITCH, switch)
    if switch != "1":
        return
    try:
        from sparkbook.kernels.vllm_support import refusal

        reason = refusal()
        if reason is None:
            from sparkbook.kernels import vllm_layers

            vllm_layers.install()
            _log.info(
                "%s: NVFP4 layers on Marlin take the sparkbook kernels where they measure faster",
                SWITCH,
            )
    except Exception as error:  # noqa: BLE001 - a plug-in must not take the server down
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        _log.warning("%s is set, but the sparkbook kernels are not used: %s", SWITCH, reason)
