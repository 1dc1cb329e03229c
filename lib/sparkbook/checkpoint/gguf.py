"""How many bits a weight of a GGUF file takes, as far as the file's name says."""

from __future__ import annotations

import re

from sparkbook.checkpoint.values import Range

_BITS = {
    "iq1_s": 2.0042,
    "iq1_m": 2.1460,
    "iq2_xxs": 2.3824,
    "iq2_xs": 2.5882,
    "iq2_s": 2.7403,
    "iq2_m": 2.9294,
    "iq3_xxs": 3.2548,
    "iq3_xs": 3.4977,
    "iq3_s": 3.6606,
    "iq3_m": 3.7628,
    "iq4_xs": 4.4597,
    "iq4_nl": 4.6818,
    "q2_k_s": 2.9697,
    "q2_k": 3.1593,
    "q3_k_s": 3.6429,
    "q3_k_l": 4.2979,
    "q4_k_s": 4.6672,
    "q4_k_m": 4.8944,
    "q5_k_s": 5.5704,
    "q5_k_m": 5.7036,
    "q6_k": 6.5633,
    "q8_0": 8.5008,
}
"""Bits of a weight of Llama-3.1-8B, embedding and head included (llama.cpp,
https://github.com/ggml-org/llama.cpp/blob/master/tools/quantize/README.md, 29 November 2026).
"""
_LESS, _MORE, _LARGER = 0.95, 1.12, 1.3
"""Of other models: the embedding, in a wider type, is a larger share of small ones. `_LARGER` is
for types that the table lacks, such as Q4_K_XL and Q8_K_XL, which keep more layers in wider types.
"""
SPEED = "how fast vLLM's plug-in for GGUF is: vLLM's documentation calls it under-optimized"
"""vllm-gguf-plugin (https://docs.vllm.ai/en/latest/features/quantization/gguf/, 29 November
2026).
"""

_TYPE = re.compile(
    r"(?:^|[-_.:/])(?:ud-|i1-)?(i?q[1-8]_(?:k(?:_(?:s|m|l|xl))?|xxs|xs|nl|[01sm]))"
    r"(?:-\d{5}-of-\d{5})?(?:\.gguf)?$"
)


def split(name: str) -> tuple[str, Range | None]:
    """Return a model's name without what names one GGUF file of it, and the bits of a weight.

    Args:
        name: in small letters: `x-gguf:q4_k_m`, `x-q4_k_m.gguf`; any other name stays as it is.
    """
    match = _TYPE.search(name)
    if match is None:
        return name, None
    rest = re.sub(r"[-_.]gguf$", "", name[: match.start()])
    if bits := _BITS.get(match[1]):
        return rest, Range(bits * _LESS, bits * _MORE)
    like = [
        bits for known, bits in _BITS.items() if known.lstrip("i")[1] == match[1].lstrip("i")[1]
    ]
    return rest, Range(min(like, default=8.5) * _LESS, max(like, default=8.5) * _LARGER)
