"""What a checkpoint's name says: the model that it was made of, the format, and the size.

    >>> parts = read("unsloth/Qwen3.6-27B-NVFP4")
    >>> parts.format, parts.params_b
    ('nvfp4', 27.0)

Publishers name a quantized checkpoint after its base. A name proves nothing: what is taken from it
is marked as taken from it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sparkbook.checkpoint import gguf
from sparkbook.checkpoint.values import Range

_FORMATS: tuple[tuple[str, str], ...] = (
    (r"nvfp4\w*|fp4|w4a4", "nvfp4"),
    (r"mxfp4", "mxfp4"),
    (r"int4|w4a16|4bit|quantized\.w4a16", "int4"),
    (r"mxfp8", "mxfp8"),
    (r"fp8\w*", "fp8"),
    (r"int8|w8a8|8bit|quantized\.w8a8", "int8"),
    (r"awq|gptq|autoround|qat", "int4"),
    (r"bf16|bfloat16|fp16", "bf16"),
)
"""Words of a name that state a format. Of several, the first here holds most of the weights: the
narrow one of a mix, and a width before the method that made it.
"""

_NEUTRAL = frozenset(
    {
        "instruct",
        "it",
        "chat",
        "base",
        "thinking",
        "reasoning",
        "hf",
        "text",
        "preview",
        "dynamic",
        "ct",
        "block",
        "static",
        "pertensor",
        "fast",
        "mixed",
        "original",
        "embedding",
        "reranker",
        "nvidia",
        "meta",
        "gb10",
        "spark",
        "coder",
        "code",
        "uncensored",
        "abliterated",
        "heretic",
        "ultimate",
        "aeon",
    }
)
"""Words that change weights and not their shape."""

_OTHER_SHAPE = re.compile(
    r"(vl|omni|asr|tts\w*|ocr|audio|image\w*|vision|draft|eagle\d*|speculator\S*|dflash\d*|dspark"
    r"|assistant|distill|pruned|next|flash|pro|mini|nano|super|ultra|lite|small|medium|large|turbo"
    r"|gguf|mlx|mtp|guard|air|k\d+|max)$"
)
"""Words that stand for another model than the same name without them."""

_DATE = re.compile(r"\d{4}|\d{6,8}|20\d\d")
_SIZE = re.compile(r"(a)?(\d+(?:\.\d+)?)(m|b|t)$")
_SCALE = {"m": 1e-3, "b": 1.0, "t": 1e3}


@dataclass(frozen=True)
class Parts:
    """A name taken apart.

    Attributes:
        words: the words that name the model, its sizes included.
        rest: other words.
        format: format of the weights; None: not stated.
        params_b, active_b: 10^9 parameters, all and those of one token; None: not stated.
        reduced: whether experts have been taken out (REAP).
        gguf: bits of a weight of the GGUF file that is named; None: none is.
    """

    words: frozenset[str]
    rest: frozenset[str]
    format: str | None
    params_b: float | None
    active_b: float | None
    reduced: bool
    gguf: Range | None = None

    def same_shape(self, base: Parts) -> bool:
        """Whether a checkpoint of this name has the shape of the base, as far as names say."""
        if not base.words or not base.words <= self.words:
            return False
        return not any(
            _OTHER_SHAPE.fullmatch(word) or (_SIZE.fullmatch(word) and not self.reduced)
            for word in self.words - base.words
        )


@functools.lru_cache(maxsize=2048)
def read(name: str) -> Parts:
    """Take a handle or path apart."""
    last, gguf_bits = gguf.split(name.rstrip("/").rpartition("/")[2].lower())
    words = [word for word in re.split(r"[-_ ]+", last) if word]
    stated = [form for form in map(_format, words) if form is not None]
    kept = {word for word in words if _format(word) is None}
    rest = {word for word in kept if word in _NEUTRAL or _DATE.fullmatch(word)}
    sizes = [match for word in words if (match := _SIZE.fullmatch(word))]
    full = [float(match[2]) * _SCALE[match[3]] for match in sizes if not match[1]]
    active = [float(match[2]) * _SCALE[match[3]] for match in sizes if match[1]]
    return Parts(
        frozenset(kept - rest),
        frozenset(rest),
        _FORMATS[min(stated)][1] if stated else None,
        full[-1] if full else _several(last),
        active[-1] if active else None,
        any(word.startswith("reap") for word in words),
        gguf_bits,
    )


def _several(name: str) -> float | None:
    """The size of `8x7B`: experts share the rest, so it is somewhat less than the product."""
    match = re.search(r"(\d+)x(\d+(?:\.\d+)?)b", name)
    return round(int(match[1]) * float(match[2]) * 0.85, 1) if match else None


def _format(word: str) -> int | None:
    """The place in `_FORMATS` of the format that a word states."""
    return next(
        (at for at, (pattern, _) in enumerate(_FORMATS) if re.fullmatch(pattern, word)), None
    )


def base_of(name: str, bases: Iterable[str]) -> str | None:
    """Return the base whose name says most about this one, if one has its shape.

    Args:
        name: handle or path.
        bases: handles.
    """
    parts = read(name)
    fitting = [(len(of.words), base) for base in bases if parts.same_shape(of := read(base))]
    # Of several as good, one that is not quantized itself, then the first by name.
    fitting.sort(key=lambda found: (-found[0], read(found[1]).format is not None, found[1].lower()))
    return fitting[0][1] if fitting else None
