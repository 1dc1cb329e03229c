"""What vLLM said of a launch line: the value that `sparkbook.oracle` answers with, and that the
linter and the planner take as an input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RECORDED = Path(__file__).with_name("answers.json")
"""What vLLM said of the catalogue's recipes; `tools/record_answers.py` makes it."""

Depth = Literal["parse", "config", "model", "cache", "admission"]
DEPTHS: tuple[Depth, ...] = ("parse", "config", "model", "cache", "admission")


class _Value(BaseModel):
    # The reply of a program that may be anybody's: what is not known is left out, what is of
    # another type is refused.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Judge(_Value):
    """Which vLLM answered, and on which machine.

    Attributes:
        vllm: its version.
        machine: name of the GPU, and whether it was pretended.
        installed: packages that counted as installed: version, true or false.
        image: the image that it ran in; None: an environment on this machine.
    """

    vllm: str = Field(max_length=100)
    torch: str = Field("", max_length=100)
    transformers: str = Field("", max_length=100)
    machine: str = Field("", max_length=100)
    pretended: bool = True
    installed: dict[str, str | bool] = Field(default_factory=dict, max_length=50)
    image: str | None = None

    def __str__(self) -> str:
        where = f" in {self.image}" if self.image else ""
        return f"vLLM {self.vllm}{where}"


class Part(_Value):
    """Weights of one class and dtype, in bytes."""

    kind: str = Field(max_length=50)
    dtype: str = Field(max_length=50)
    bytes: int = Field(ge=0)


class Backend(_Value):
    """The code that would run layers of one kind."""

    kind: str = Field(max_length=200)
    backend: str = Field(max_length=300)
    layers: int = Field(ge=0)


class Capacity(_Value):
    """What vLLM makes of so many bytes of KV cache.

    Attributes:
        context: tokens of a sequence; less than the line's where `auto` chose it.
        refused: vLLM's words where it would not start with so little.
    """

    bytes: int = 0
    blocks: int | None = None
    context: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    refused: str | None = Field(None, max_length=4000)


class Layers(_Value):
    """Layers whose caches are alike."""

    spec: str = Field(max_length=100)
    block_size: int
    page_bytes: int
    window: int | None = None
    layers: int


class Group(_Value):
    """Layers that share a block table.

    Attributes:
        blocks: blocks that one sequence of full length takes.
    """

    spec: str = Field(max_length=100)
    layers: int
    block_size: int
    window: int | None = None
    blocks: int


class KvCache(_Value):
    """The KV cache: its layers, and what each size holds.

    Attributes:
        groups: its groups of layers; empty where no size was asked about.
        block_bytes: bytes of one block of the pool that all groups draw from.
        least: the answer to a size that is too small, for what vLLM says it needs.
    """

    layers: list[Layers] = Field(default_factory=list, max_length=1000)
    block_size: int | None = None
    groups: list[Group] = Field(default_factory=list, max_length=1000)
    block_bytes: int | None = None
    sizes: list[Capacity] = Field(default_factory=list, max_length=50)
    least: Capacity | None = None


class Admission(_Value):
    """The check of free memory at the start."""

    requested_bytes: int | None = None
    refused: str | None = Field(None, max_length=4000)
    unknown: str | None = Field(None, max_length=400)


class Raised(_Value):
    """Where vLLM raised its refusal.

    Attributes:
        error: kind of the error.
        place: file and function of the innermost frame in vLLM.
        package: that of the innermost frame of all; empty where it is Python's own library.
    """

    error: str = Field("", max_length=200)
    place: str = Field("", max_length=400)
    package: str = Field("", max_length=200)


class Speculation(_Value):
    """Speculative decoding, as resolved."""

    method: str | None = Field(None, max_length=100)
    tokens: int | None = None
    model: str | None = Field(None, max_length=1000)
    quantization: str | None = Field(None, max_length=200)


class Answer(_Value):
    """What vLLM said of one line.

    Attributes:
        id: of the question.
        judge: who answered.
        depth: how far vLLM got.
        accepted: whether nothing was refused as far as it got.
        refused: vLLM's own words where it refuses the line.
        failed: what happened where vLLM gave no answer: a crash, a hang, an import error.
        last_words: the end of its log then.
        resolved: option (with underscores): what the line asks for, null where it is silent, and
            what vLLM made of it.
        left_out: options of the line that were not passed on, since they name code or files of the
            machine of the start.
        warnings, choices: lines of vLLM's log: warnings, and the backends that it chose.
        files: where the config of each model came from.
    """

    id: str | None = None
    judge: Judge
    depth: Depth = "parse"
    accepted: bool = False
    refused: str | None = Field(None, max_length=4000)
    by: Raised | None = None
    failed: str | None = Field(None, max_length=4000)
    last_words: list[str] = Field(default_factory=list, max_length=20)
    resolved: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]] = Field(
        default_factory=dict, max_length=500
    )
    speculation: Speculation | None = None
    weights: list[Part] = Field(default_factory=list, max_length=500)
    backends: list[Backend] = Field(default_factory=list, max_length=500)
    cache: KvCache | None = None
    admission: Admission | None = None
    left_out: list[str] = Field(default_factory=list, max_length=100)
    warnings: list[str] = Field(default_factory=list, max_length=100)
    choices: list[str] = Field(default_factory=list, max_length=100)
    files: dict[str, str] = Field(default_factory=dict, max_length=20)

    @property
    def weights_bytes(self) -> int | None:
        """Bytes of all weights as built, the draft's included; None where no model was built."""
        return sum(part.bytes for part in self.weights) if self.weights else None

    @property
    def draft_bytes(self) -> int:
        """Bytes of the draft alone."""
        return sum(part.bytes for part in self.weights if part.kind == "draft")

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Options that vLLM gave another value than the line asks for."""
        return {
            name: (asked, got)
            for name, (asked, got) in self.resolved.items()
            if asked is not None and _normal(asked) != _normal(got) and _fixed(asked)
        }

    def reached(self, depth: Depth) -> bool:
        """Return whether vLLM accepted the line as far as a depth."""
        return self.accepted and DEPTHS.index(self.depth) >= DEPTHS.index(depth)


def _normal(value: Any) -> str:
    return str(value).lower().replace("-", "_").rpartition(".")[2]


def _fixed(asked: Any) -> bool:
    """Whether a value is meant, and not left to vLLM."""
    return _normal(asked) not in ("auto", "none", "_1", "1")


def recorded_all() -> dict[str, dict[str, Any]]:
    """The recorded answers as stored: by recipe, the words that were asked about and the answer."""
    return json.loads(RECORDED.read_text("utf-8")) if RECORDED.is_file() else {}


class Recorded(_Value):
    """What is kept of a recipe of the catalogue.

    Attributes:
        answer: what vLLM said when it was last asked; None: it was not.
        reason: why it was not.
        note: why another release than the image's was asked.
        words: of the line that was asked about.
    """

    answer: Answer | None = None
    reason: str | None = None
    note: str | None = None
    words: list[str] = Field(default_factory=list)


def recorded(recipe: str) -> Recorded | None:
    """Return what is kept of a recipe; None: nothing.

    Args:
        recipe: its id.
    """
    entry = recorded_all().get(recipe)
    return None if entry is None else Recorded.model_validate(entry)
