"""The recipe: everything known about serving one model in one way, as one validated value.

A recipe is a superset of what NVIDIA's local-ai-inference-recipes (version 4) and sparkrun's
recipes (version 2) can say. Facts that are not known are null, never zero. Whatever is a claim
carries the id of a source listed at the end of the recipe.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from sparkbook.recipes.launch import (
    Container,
    Env,
    Launch,
    Serve,
    Strict,
    check_docker_options,
    check_plain,
    check_repository,
)
from sparkbook.recipes.names import EntryPoint, entrypoint_of
from sparkbook.units import gb_to_gib
from sparkbook.util.secret import without_secrets

Status = Literal["published", "lint-clean", "run"]
"""`published`: taken over from its sources; `lint-clean`: judged against the release it names;
`run`: executed by this project.
"""

Family = Literal[
    "qwen",
    "gemma",
    "nvidia",
    "mistral",
    "openai",
    "meta",
    "microsoft",
    "poolside",
    "deepseek",
    "minimax",
    "zai",
    "embedded",
    "other",
]
RepositoryName = Annotated[str, AfterValidator(check_repository)]
"""Hub id of a model, the name of one that ships with this package, or a path."""
SourceId = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="id of one of the recipe's sources")
]


class Source(Strict):
    """Where a fact or a figure comes from."""

    id: SourceId
    title: str
    url: str | None = Field(None, pattern=r"^https?://\S+$")
    date: datetime.date | None = Field(None, description="when it was published or last seen")


class Quantization(Strict):
    """How the weights are stored."""

    format: Literal["nvfp4", "mxfp4", "fp8", "bf16", "awq", "gptq", "fp32", "unknown"]
    producer: Literal["modelopt", "compressed-tensors", "openai", "none", "vllm"] | None = Field(
        None, description="producer of the checkpoint format; `vllm`: quantized while loading"
    )
    note: str | None = None


class Context(Strict):
    """Context lengths in tokens."""

    native: int | None = Field(None, gt=0, description="what the checkpoint was trained for")
    extended: int | None = Field(
        None, gt=0, description="what it reaches with a rope extension such as YaRN"
    )


class Model(Strict):
    """The checkpoint."""

    repo: RepositoryName = Field(
        description="Hugging Face handle, or the name of a model that ships with this package"
    )
    revision: str | None = Field(
        None, description="commit of the repository; null: not pinned by any source"
    )
    publisher: str | None = None
    architecture: str | None = Field(None, description="class name in the checkpoint's config.json")
    design: str | None = Field(None, description="in words: `MoE, hybrid attention`")
    mixture_of_experts: bool | None = None
    total_params_b: float | None = Field(None, gt=0, description="10^9 parameters")
    active_params_b: float | None = Field(
        None, gt=0, description="10^9 parameters that take part in one token"
    )
    quantization: Quantization
    weights_gb: float | None = Field(
        None, gt=0, description="size of the weights in GB (10^9 bytes)"
    )
    weights_counted: bool = Field(
        False,
        description=(
            "`weights_gb` is the middle of what shape and formats give: no source states a size, or"
            " what it states is false"
        ),
    )
    context: Context = Field(default_factory=Context)
    modalities: list[Literal["text", "image", "video", "audio"]] = Field(["text"], min_length=1)
    license: str | None = None
    gated: bool | None = Field(
        None, description="whether a license has to be accepted before the download"
    )

    @property
    def weights_gib(self) -> float | None:
        """Size of the weights in GiB (2^30 bytes)."""
        return None if self.weights_gb is None else gb_to_gib(self.weights_gb)


class Draft(Strict):
    """How tokens are proposed in speculative decoding."""

    method: Literal["mtp", "dflash", "dspark", "ngram", "draft_model", "eagle3", "suffix"]
    model: RepositoryName | None = Field(
        None,
        description=(
            "handle or path of a separate draft; null: built into the target or none needed"
        ),
    )
    tokens: int = Field(gt=0, description="num_speculative_tokens")
    params_b: float | None = Field(None, gt=0)
    size_gb: float | None = Field(None, gt=0)
    note: str | None = None


class Image(Strict):
    """The container image."""

    ref: str = Field(description="name and tag")
    digest: str | None = Field(
        None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="null: no source gives it; the tag may move",
    )
    vllm: str | None = Field(
        None, description="vLLM release inside, or the range that works: `==0.19.0`, `>=0.21`"
    )
    platforms: list[str] = Field(default_factory=lambda: ["linux/arm64"])
    entrypoint: EntryPoint | None = Field(None, description="left out: known from the name")
    moving: bool = Field(
        False,
        description="the tag is re-pushed (nightly, latest): pin a digest before depending on it",
    )

    @field_validator("vllm")
    @classmethod
    def _vllm(cls, text: str | None) -> str | None:
        try:
            SpecifierSet(text or "")
        except InvalidSpecifier:
            raise ValueError(
                f"'{text}' is not a version range: write ==0.19.0 or >=0.21,<0.24"
            ) from None
        return text


class PrepareStep(Strict):
    """Something to do once on the host before the first start."""

    do: Literal["download", "fetch", "run"] = Field(
        description="download a repository, fetch one file, or run a command"
    )
    why: str
    repo: RepositoryName | None = None
    url: str | None = None
    to: str | None = Field(None, description="local folder or file on the host")
    sha256: str | None = Field(None, description="of a fetched file: 64 hex digits, or `unknown`")
    command: str | None = None
    size_gb: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _complete(self) -> PrepareStep:
        needs = {"download": ["repo"], "fetch": ["url", "to", "sha256"], "run": ["command"]}[
            self.do
        ]
        if missing := [name for name in needs if getattr(self, name) is None]:
            raise ValueError(f"a '{self.do}' step needs {', '.join(missing)}")
        if self.sha256 and self.sha256 != "unknown" and not _is_sha256(self.sha256):
            raise ValueError("sha256 is 64 hex digits, or the word unknown")
        return self


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


class RequestDefaults(Strict):
    """What a request should carry, for one kind of use."""

    use: str = Field("general", description="`general`, `reasoning`, `tool calling`, …")
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = None
    max_tokens: int | None = Field(None, gt=0)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: str | None = None
    system_prompt: str | None = Field(
        None, description="the text, or the file of the repository that holds it"
    )
    source: SourceId | None = None

    def body(self) -> dict[str, Any]:
        """The fields as they go into a request's JSON body; a system prompt is a message, not a
        field.
        """
        values = self.model_dump(exclude={"use", "source", "system_prompt"}, exclude_none=True)
        return {name: value for name, value in values.items() if value != {}}


class Capabilities(Strict):
    """What this recipe's launch line makes the server able to do; readiness checks what is claimed
    here.
    """

    chat: bool = True
    tools: bool = False
    reasoning: bool = False
    structured_output: bool = True
    vision: bool = False
    video: bool = False
    audio: bool = False
    embedding: bool = False
    reranking: bool = False
    transcription: bool = False

    @model_validator(mode="after")
    def _a_chat(self) -> Capabilities:
        if not self.chat and (self.tools or self.reasoning or self.structured_output):
            raise ValueError("tools, reasoning and structured_output are parts of a chat")
        return self


class Remark(Strict):
    """Something to know, with its source."""

    text: str
    level: Literal["note", "warning", "caution"] = "note"
    source: SourceId


class Correction(Strict):
    """A claim of a source that is wrong or has expired: the claim, what holds now, and since when
    that is known.
    """

    claim: str
    now: str
    date: datetime.date = Field(description="when it was checked")
    source: SourceId = Field(description="the evidence")


class Successor(Strict):
    """What to take instead of an obsolete recipe."""

    recipe: str = Field(
        pattern=r"^[a-z0-9][a-z0-9./-]*$", description="id of the recipe to take instead"
    )
    why: str = Field(description="what is obsolete about this one")
    date: datetime.date = Field(description="when that was found out")
    source: SourceId


class AccuracyRow(Strict):
    """One benchmark: a value for each series, in the series' order."""

    label: str
    values: list[float | None]


class Accuracy(Strict):
    """A table of scores. With two series named baseline and quantized it says what quantization
    cost.
    """

    title: str
    series: list[str] = Field(min_length=1)
    rows: list[AccuracyRow] = Field(min_length=1)
    unit: str = "%"
    machine: str | None = Field(None, description="where it was measured")
    source: SourceId

    @model_validator(mode="after")
    def _rectangular(self) -> Accuracy:
        for row in self.rows:
            if len(row.values) != len(self.series):
                raise ValueError(
                    f"'{row.label}' has {len(row.values)} values for {len(self.series)} series"
                )
        return self


class Speed(Strict):
    """One published speed. What a source does not say stays null."""

    configuration: str | None = Field(None, description="what differs from the recipe, in words")
    prompt_class: str | None = Field(None, description="code, prose, dialogue, …")
    concurrency: int = Field(1, gt=0)
    context_tokens: int | None = Field(None, gt=0)
    prompt_tokens: int | None = Field(None, gt=0)
    output_tokens: int | None = Field(None, gt=0)
    decode_tok_s: float | None = Field(
        None, gt=0, description="one request's decode rate; of a range, its lower end"
    )
    decode_tok_s_max: float | None = Field(
        None, gt=0, description="upper end of a range, or a peak"
    )
    aggregate_tok_s: float | None = Field(
        None, gt=0, description="all concurrent requests together"
    )
    prefill_tok_s: float | None = Field(None, gt=0)
    ttft_ms: float | None = Field(None, gt=0)
    tpot_ms: float | None = Field(None, gt=0)
    acceptance: float | None = Field(None, ge=0, le=1, description="accepted / drafted tokens")
    acceptance_length: float | None = Field(
        None, ge=1, description="tokens a step, the target's own included"
    )
    machine: str
    date: datetime.date | None = None
    note: str | None = None
    source: SourceId

    @property
    def on_spark(self) -> bool:
        """Whether it was measured on a Spark. Other machines' figures are shown with their machine,
        never next to a Spark's.
        """
        return "spark" in self.machine.lower()

    @property
    def best_tok_s(self) -> float | None:
        """One request's decode rate; of a range its upper end, but of an average and a momentary
        peak the average.
        """
        if self.decode_tok_s is not None and "peak" in (self.note or "").lower():
            return self.decode_tok_s
        return self.decode_tok_s_max or self.decode_tok_s


class Benchmarks(Strict):
    """Published figures: scores, speeds, and what vendors claim in words."""

    accuracy: list[Accuracy] = Field(default_factory=list)
    speed: list[Speed] = Field(default_factory=list)
    claims: list[Remark] = Field(default_factory=list)

    @property
    def best(self) -> Speed | None:
        """The figure with the highest decode rate of one request at a time on a Spark; None where
        there is none.

        Of a range the upper end counts, of an average and a peak the average, as in
        `sparkbook.checkpoint.bandwidth.published_points`. Figures of other machines are on the
        recipe's page, each with its machine; next to a Spark's they would mislead.
        """
        figures = [
            figure
            for figure in self.speed
            if figure.concurrency == 1 and figure.on_spark and figure.best_tok_s is not None
        ]
        return max(figures, key=lambda figure: figure.best_tok_s or 0, default=None)


def _entries(value: Any) -> Any:
    """A list that may also be written as a mapping `name: entry`.

    A list replaces the list of the recipe that is extended; a mapping merges with its mapping, so
    that a variant can add an entry, or take one out with null, and need not repeat the others. The
    names matter to the merge only and are dropped here.
    """
    return list(value.values()) if isinstance(value, dict) else value


def _sources(value: Any) -> Any:
    """As `_entries`, where the name is the source's id."""
    if not isinstance(value, dict):
        return value
    return [
        {"id": name, **entry} if isinstance(entry, dict) else entry for name, entry in value.items()
    ]


def _or_mapping(schema: dict[str, Any]) -> None:
    """Says in the JSON Schema what `_entries` accepts."""
    schema["type"] = ["array", "object"]
    schema["additionalProperties"] = schema["items"]


def _or_source_mapping(schema: dict[str, Any]) -> None:
    """Says in the JSON Schema what `_sources` accepts: a source without its id."""
    text = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema["type"] = ["array", "object"]
    schema["additionalProperties"] = {
        "type": "object",
        "required": ["title"],
        "additionalProperties": False,
        "properties": {"title": {"type": "string"}, "url": text, "date": text},
    }


class Topology(Strict):
    """How many machines and how the model is spread over them."""

    nodes: int = Field(1, gt=0)
    tensor_parallel: int = Field(1, gt=0)
    pipeline_parallel: int = Field(1, gt=0)
    memory_gb: Literal[64, 128] = Field(
        128, description="memory of each Spark by its name, GB: the smallest that the line fits"
    )


VARIANTS = {
    "as-published": "as its source published it",
    "lint-clean": "with the linter's fixes, on the same image",
}
"""Variants that a recipe may have besides itself, loaded as `ID@NAME`, and what each is."""


class Recipe(Strict):
    """One way to serve one model."""

    schema_version: Literal[1] = 1
    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*)?(@[a-z-]+)?$")
    title: str = Field(
        pattern=r"^[^<>`\x00-\x1f]{1,120}$",
        description="one line of plain text: it heads a page and names it in lists",
    )
    summary: str
    family: Family
    status: Status = "published"
    model: Model
    draft: Draft | None = None
    image: Image | None = Field(None, description="null: runs as a process, without a container")
    container: Container = Field(default_factory=Container)
    serve: Serve = Field(default_factory=Serve)
    env: Env = Field(default_factory=dict)
    prepare: list[PrepareStep] = Field(default_factory=list)
    request: list[RequestDefaults] = Field(default_factory=list)
    capabilities: Capabilities = Field(default_factory=Capabilities)
    remarks: Annotated[list[Remark], BeforeValidator(_entries)] = Field(
        default_factory=list, json_schema_extra=_or_mapping
    )
    corrections: Annotated[list[Correction], BeforeValidator(_entries)] = Field(
        default_factory=list, json_schema_extra=_or_mapping
    )
    benchmarks: Benchmarks = Field(default_factory=Benchmarks)
    topology: Topology = Field(default_factory=Topology)
    successor: Successor | None = Field(None, description="set: this recipe is obsolete")
    variants: dict[Literal["as-published", "lint-clean"], dict[str, Any] | None] = Field(
        default_factory=dict,
        description="what differs in each variant, merged like `extends`; null: no such variant",
    )
    foreign: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description=(
            "of a recipe read from another format: by the format's name, what has no field here;"
            " without effect"
        ),
    )
    guide_section: str | None = Field(
        None, description="section of the guide that it comes from, such as 7.1.1"
    )
    sources: Annotated[list[Source], BeforeValidator(_sources)] = Field(
        min_length=1, json_schema_extra=_or_source_mapping
    )

    @model_validator(mode="before")
    @classmethod
    def _printable(cls, data: Any) -> Any:
        # All of it is shown in a terminal or on a page.
        if isinstance(data, dict):
            check_plain(data, printable=True)
        return data

    @field_validator("foreign")
    @classmethod
    def _foreign(cls, foreign: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, kept in foreign.items():
            # Other formats hold docker's options beside their own keys.
            check_docker_options(kept if name == "docker" else kept.get("docker", {}))
        if without_secrets(foreign) != foreign:
            raise ValueError("a secret must not be in a recipe: leave it out")
        return foreign

    @model_validator(mode="after")
    def _sources_exist(self) -> Recipe:
        known = [source.id for source in self.sources]
        if twice := {name for name in known if known.count(name) > 1}:
            raise ValueError(f"sources: {', '.join(sorted(twice))} is listed twice")
        for place, name in self._cited():
            if name not in known:
                raise ValueError(
                    f"{place} cites the source '{name}', which is not listed; listed are"
                    f" {', '.join(known)}"
                )
        return self

    def _cited(self) -> list[tuple[str, str]]:
        """Every citation: where it stands, and the source's id."""
        groups: dict[str, Sequence[Any]] = {
            "remarks": self.remarks,
            "corrections": self.corrections,
            "request": self.request,
            "benchmarks.accuracy": self.benchmarks.accuracy,
            "benchmarks.speed": self.benchmarks.speed,
            "benchmarks.claims": self.benchmarks.claims,
        }
        return [
            (f"{group}[{i}]", item.source)
            for group, items in groups.items()
            for i, item in enumerate(items)
            if item.source
        ] + ([("successor", self.successor.source)] if self.successor else [])

    @model_validator(mode="after")
    def _launch_is_valid(self) -> Recipe:
        able = self.capabilities
        if not (able.chat or able.embedding or able.reranking or able.transcription):
            raise ValueError(
                "capabilities: nothing is left that the server does: chat, embedding, reranking or"
                " transcription"
            )
        _ = self.launch
        return self

    @property
    def launch(self) -> Launch:
        """What is started. The digest, where one is known, is what gets pulled."""
        image = entrypoint = None
        if self.image:
            image = f"{self.image.ref}@{self.image.digest}" if self.image.digest else self.image.ref
            entrypoint = self.image.entrypoint or entrypoint_of(self.image.ref)
        serve = self.serve
        if entrypoint == "wrapper" and serve.command is None:
            # The wrapper script takes its model from environment variables: no word follows the
            # image.
            serve = serve.model_copy(update={"command": []})
        if serve.model is None and serve.command is None:
            serve = serve.model_copy(update={"model": self.model.repo})
        return Launch(
            image=image,
            entrypoint=entrypoint or "command",
            container=self.container,
            env=dict(self.env),
            serve=serve,
        )

    @property
    def served_name(self) -> str:
        """The name that clients put into a request's `model` field."""
        named = self.serve.args.get("served-model-name") or self.env.get("SERVED_MODEL_NAME")
        if isinstance(named, list):
            return str(named[0])
        return str(named or self.serve.model or self.env.get("MODEL") or self.model.repo)

    @property
    def slug(self) -> str:
        """The id as a file name."""
        return self.id.replace("/", "-")

    def source(self, name: str) -> Source:
        """The source with this id; the recipe's validation has made sure that it is there."""
        return next(source for source in self.sources if source.id == name)
