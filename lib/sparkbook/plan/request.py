"""From what a user names (a recipe's id, a file, a launch line) to what is to be planned. The line
is read as the linter reads it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook import checkpoint as checkpoints
from sparkbook.checkpoint import gguf_file
from sparkbook.checkpoint.values import ZERO, Cache, Checkpoint, Range
from sparkbook.errors import SparkbookError
from sparkbook.host.spark import TOTAL
from sparkbook.launch.arguments import NUMBERS, converted, problem, refused
from sparkbook.plan.evidence import Served, of_setup
from sparkbook.plan.setup import CoTenant, Host, Setup
from sparkbook.units import GIB, parse_size

if TYPE_CHECKING:
    from sparkbook.lint.case import Case
    from sparkbook.recipes.schema import Recipe

BATCHED = 2048
"""Default of `--max-num-batched-tokens` of a server on a Spark (vLLM 0.32.0, `get_batch_defaults`).
A GPU of 70 GiB or more gets 8,192, but vLLM asks NVML for the size, which on GB10 answers "Not
Supported": so a Spark is taken for a small GPU. The embedded CPU build has the same default.
"""
SEQUENCES = 256
"""Default of `--max-num-seqs` there; 1,024 on a large GPU that tells its size."""

_MOST = 10**9
"""Tokens, sequences or machines above which a number is a slip of the hand, and the arithmetic
would leave what a float holds.
"""
_MEMORY_GIB = (0.001, 1e6)
"""Likewise of a machine's memory, GiB."""

_VARIABLES = {
    "MAX_MODEL_LEN": "max-model-len",
    "MAX_NUM_SEQS": "max-num-seqs",
    "MAX_NUM_BATCHED_TOKENS": "max-num-batched-tokens",
    "GPU_MEMORY_UTILIZATION": "gpu-memory-utilization",
    "GPU_MEMORY_UTIL": "gpu-memory-utilization",
}
"""Variables by which the catalogue's wrapper images take vLLM's options."""

_PLANNED = (
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
)
"""Options whose numbers a plan rests on."""

_CONTEXT = 32_768
"""Tokens that are planned where nothing states the model's context."""

_DRAFT_GUESS = (Cache("full", 5, 8, 128, 128), Cache("full", 8, 8, 128, 128))
"""What a draft of unknown shape may keep: nothing but what is known, or up to eight layers of 8
KV heads.
"""


@dataclass(frozen=True)
class Override:
    """What the command line says instead of the input; None: what the input says.

    Attributes:
        look: asked for a checkpoint by name and revision before what is written down; None where it
            finds nothing.
    """

    context: int | None = None
    sequences: int | None = None
    kv_dtype: str | None = None
    fraction: float | None = None
    release: str | None = None
    hub: bool = False
    look: Callable[[str, str | None], Checkpoint | None] | None = None


def tenant(text: str) -> CoTenant:
    """Return a co-tenant as it is written on the command line: `0.42`, `engine=0.42`, `32GiB`,
    `embedder=32GiB`.

    Raises:
        SparkbookError: it is neither a fraction nor a size.
    """
    name, _, value = text.rpartition("=")
    name, value = name.strip() or "co-tenant", value.strip()
    if re.fullmatch(r"0?\.\d+|1(\.0+)?|0", value):
        return CoTenant(name, fraction=float(value))
    if re.fullmatch(r"\d+(\.\d+)?", value):
        raise SparkbookError(
            f"co-tenant '{text}': write a fraction below 1, such as 0.42, or a size with a unit,"
            " such as 32GiB"
        )
    return CoTenant(name, size=parse_size(value))


def host(
    memory_gib: float | None = None,
    available_gib: float | None = None,
    cotenants: tuple[str, ...] = (),
    meminfo: str | None = None,
    total: int | None = None,
) -> Host:
    """Return the machine as the command line describes it; a Spark where it says nothing.

    Args:
        memory_gib: total, GiB.
        available_gib: available before the start, GiB.
        cotenants: what else will run, as `tenant` reads it; what runs already is off what is
            available, so it is not named again.
        meminfo: text of /proc/meminfo, instead of the two sizes.
        total: bytes of the Spark that the line is for (`Setup.total`), where no total is given.

    Raises:
        SparkbookError: sizes that cannot be.
    """
    if memory_gib is None and total:
        memory_gib = total / GIB
    for size in (memory_gib, available_gib):
        if size is not None and not math.isfinite(size):
            raise SparkbookError(f"{size} is no size: write GiB as a number such as 121.6")
    tenants = tuple(tenant(text) for text in cotenants)
    if memory_gib is not None and not _MEMORY_GIB[0] <= memory_gib <= _MEMORY_GIB[1]:
        raise SparkbookError(
            f"{memory_gib:g} GiB can't be: a machine has some memory, between {_MEMORY_GIB[0]:g}"
            f" and {_MEMORY_GIB[1]:,.0f} GiB"
        )
    total = round((memory_gib or Host().total / GIB) * GIB)
    if available_gib is not None and not 0 <= available_gib <= total / GIB:
        raise SparkbookError(
            f"{available_gib:g} GiB available of {total / GIB:g}: what is available is a part of"
            " the total"
        )
    if meminfo is not None:
        from sparkbook.host import parse_meminfo

        memory = parse_meminfo(meminfo)
        if (
            not _MEMORY_GIB[0] * GIB <= memory.total <= _MEMORY_GIB[1] * GIB
            or max(memory.available, memory.free) > memory.total
        ):
            raise SparkbookError(
                "/proc/meminfo: MemTotal is no memory of a machine, or less than what is free"
            )
        return Host(memory.total, Range.of(memory.available), tenants, memory.free)
    if available_gib is not None:
        return Host(total, Range.of(available_gib * GIB), tenants)
    if memory_gib is not None and abs(total - TOTAL) > 0.01 * GIB:
        return Host.sized(total, tenants)
    return Host(cotenants=tenants)


def read(source: str, override: Override | None = None) -> Setup:
    """Return what is to be planned.

    Args:
        source: a recipe's id, a recipe, compose or text file, `-`, or a launch line.
        override: what to take instead of what the input says.

    Raises:
        SparkbookError: the input cannot be used, or names a checkpoint of which nothing is known.
    """
    from sparkbook.formats.lines import given  # in the browser a plan is one of many imports
    from sparkbook.lint.case import Case

    line, _ = given(source)
    return of_case(Case(line, override.release if override else None), override or Override())


def served(recipe: Recipe) -> Served | None:
    """Return what is known of a recipe's model; None where its bytes, or those of its draft, are
    not, or the recipe is not for a Spark.
    """
    from sparkbook.formats.lines import of_launch
    from sparkbook.lint.case import Case

    return of_setup(of_case(Case(of_launch(recipe.launch, recipe)), Override()))


def of_case(case: Case, override: Override) -> Setup:
    """Return what is to be planned, from a launch line that has been read against its release.

    Raises:
        SparkbookError: the line is broken, holds a word where a number belongs, or names a
            checkpoint of which nothing is known.
    """
    from sparkbook.lint.rules.spark import one_gpu

    _check(case, override)
    stated = _options(case)
    checkpoint = _checkpoint(case, override)
    context, most, assumed = _context(case, override, checkpoint, stated)
    fraction = (
        stated.get("gpu-memory-utilization") if override.fraction is None else override.fraction
    )
    if fraction is None:
        default = case.release.option("gpu-memory-utilization").default
        fraction = float(default) if isinstance(default, int | float) else 0.9
    kv_bytes = stated.get("kv-cache-memory-bytes") if override.fraction is None else None
    method, drafted, draft_bytes, caches, missing = _draft(case)
    embedded = bool(case.recipe and case.recipe.family == "embedded")
    return Setup(
        checkpoint=checkpoint,
        context=context,
        sequences=_count(
            "the number of sequences (--seqs, --max-num-seqs)",
            override.sequences or stated.get("max-num-seqs") or SEQUENCES,
        ),
        fraction=float(fraction),
        kv_bytes=int(kv_bytes) if kv_bytes else None,
        kv_dtype=override.kv_dtype
        or case.value("kv-cache-dtype")
        or stated.get("kv-cache-dtype")
        or "auto",
        release=case.version,
        batched=_count(
            "--max-num-batched-tokens",
            stated.get("max-num-batched-tokens") or BATCHED,
        ),
        method=method,
        drafted=drafted,
        draft_bytes=draft_bytes,
        draft_caches=caches,
        eager=case.on("enforce-eager"),
        prefix_caching=not case.off("enable-prefix-caching"),
        load_format=_load_format(case, checkpoint),
        shards=_shards(case),
        stages=_stages(case),
        split=_split(case),
        block=_block(case, embedded),
        assumed=(*assumed, *missing),
        table_on_disk=_table_on_disk(case),
        most=most,
        recipe=case.recipe,
        total=_total(case),
        crowded=next(one_gpu.findings(case), None),
    )


def _total(case: Case) -> int | None:
    """Return the memory of the Spark that a recipe is for: of one with 64 GB, that share of a
    Spark's.
    """
    size = case.recipe.topology.memory_gb if case.recipe else 128
    return None if size == 128 else Host().total * size // 128


def _table_on_disk(case: Case) -> bool:
    """Return whether a lookup table stays on the disk, by the variable of one fork or the option of
    another.
    """
    given = next((one for one in case.args.options if one.name == "engram-config"), None)
    engram = "".join(word.text for word in given.values) if given else ""
    on_disk = re.search(r'"table_memory":\s*"disk"', engram) is not None
    return on_disk or case.line.env.get("VLLM_PLE_TABLE_MEMORY") == "disk"


def _check(case: Case, override: Override) -> None:
    """Refuse a line that does not start what it describes, or whose numbers are none.

    Raises:
        SparkbookError: the line is broken, or a number in it is none or only a shell knows it.
    """
    if broken := case.line.broken:
        raise broken.error()
    replaced = {
        "max-model-len": override.context,
        "max-num-seqs": override.sequences,
        "gpu-memory-utilization": override.fraction,
    }
    for given in case.options.values():
        option = given.option
        if option is None or option.type not in NUMBERS or replaced.get(option.name) is not None:
            continue
        if wrong := problem(given, option):
            raise SparkbookError(f"{wrong[1]}. Correct the line: vLLM refuses this value")
        if option.name in _PLANNED and any(not word.known for word in given.values):
            raise SparkbookError(
                f"{given.shown}: only your shell can fill this in: write the number"
            )


def _context(
    case: Case, override: Override, checkpoint: Checkpoint, stated: dict[str, Any]
) -> tuple[int, int | None, list[str]]:
    """Return the context in tokens, the most that vLLM allows where the line asks for one, and what
    was assumed.
    """
    geometry = checkpoint.geometry
    native = geometry.context if geometry else None
    recipe_native = case.recipe.model.context.native if case.recipe else None
    stated_context = override.context or stated.get("max-model-len")
    context = stated_context or recipe_native or native
    assumed = [mistake.message for mistake in case.line.mistakes]
    if context is None:
        context = _CONTEXT
        assumed.append(
            f"the model's own context: {_CONTEXT:,} tokens are planned; give --context for another"
        )
    elif not stated_context and "max-model-len" in case.options:
        assumed.append(
            "--max-model-len auto: vLLM takes the longest context that fits; the model's own"
            f" {int(context):,} tokens are planned"
        )
    elif not stated_context:
        assumed.append(
            f"no --max-model-len on the line: the model's own {int(context):,} tokens count"
        )
    checks = stated_context and not case.context_lifted and (checkpoint.certain or case.recipe)
    most = (native or recipe_native) if checks else None
    return _count("the context (--context, --max-model-len)", context), most, assumed


def _load_format(case: Case, checkpoint: Checkpoint) -> str | None:
    """Return the format that vLLM brings the weights into while it loads them."""
    quantized = case.value("quantization") == "fp8" and checkpoint.quantization.format == "none"
    return "fp8" if quantized else None


def _shards(case: Case) -> int:
    parallel = case.recipe.topology.tensor_parallel if case.recipe else 1
    return _count("--tensor-parallel-size", case.number("tensor-parallel-size") or parallel)


def _stages(case: Case) -> int:
    return _count("--pipeline-parallel-size", case.number("pipeline-parallel-size") or 1)


def _split(case: Case) -> int:
    machines = _count(
        "--decode-context-parallel-size", case.number("decode-context-parallel-size") or 1
    )
    return machines if _shards(case) % machines == 0 else 1


def _block(case: Case, embedded: bool) -> int | None:
    """Return the tokens of a KV cache block; None for the release's default."""
    if embedded:
        return 128
    block = case.number("block-size")
    return _count("--block-size", block) if block else None


def _count(what: str, value: float) -> int:
    """Return the number whole, where it can be one of tokens, sequences or machines."""
    if not 1 <= value <= _MOST:
        raise SparkbookError(
            f"{what} is {'below 1' if value < 1 else 'too large'}: give a number from 1 to"
            f" {_MOST:,}"
        )
    return int(value)


def _options(case: Case) -> dict[str, Any]:
    """Return the options that matter, from the line and from the variables that wrapper images
    read.

    Raises:
        SparkbookError: a variable that such an image reads holds no number.
    """
    values: dict[str, Any] = {}
    for name in _PLANNED:
        # -1 and auto leave the number to vLLM.
        if (value := case.number(name)) is not None and value > 0:
            values[name] = value
    for variable, name in _VARIABLES.items():
        text, option = case.line.env.get(variable), case.release.options.get(name)
        if name in values or not text or option is None:
            continue
        wrong = refused(text, option, variable)
        if wrong is None:
            number = converted(text, option.type)
            values |= {name: number} if number > 0 else {}
        elif case.line.runs == "wrapper":
            raise SparkbookError(f"{wrong[1]}. Correct the variable: vLLM refuses this value")
    extra = case.line.env.get("VLLM_EXTRA_ARGS") or ""
    if match := re.search(r"--kv-cache-dtype[ =](\S+)", extra):
        values["kv-cache-dtype"] = match[1]
    return values


def _checkpoint(case: Case, override: Override) -> Checkpoint:
    recipe = case.recipe
    name = recipe.model.repo if recipe else case.model
    revision = recipe.model.revision if recipe else case.value("revision")
    if not name:
        raise SparkbookError("the line names no model, so there is nothing to plan for")
    if override.hub:
        return checkpoints.load(name, hub=True, revision=revision)
    shipped = recipe is not None and recipe.family == "embedded"
    if override.look and not shipped and (found := override.look(name, revision)):
        return found
    if recipe is not None:
        return checkpoints.of_recipe(recipe)
    names = _names(case)
    for known in names:
        there = os.path.isdir(known) or gguf_file.is_file(known)  # noqa: PTH112 (never raises)
        if there or known in checkpoints.names():
            return checkpoints.load(known)
    from sparkbook import recipes

    for listed in recipes.all():
        if listed.model.repo in names:
            return checkpoints.of_recipe(listed)
    return _likely(names, _stated(case))


def _stated(case: Case) -> checkpoints.Stated:
    """Return what another tool's recipe says of the model."""
    model = case.line.stated
    if model is None:
        return checkpoints.Stated()
    form = None if model.quantization.format == "unknown" else model.quantization.format
    return checkpoints.Stated(None, model.total_params_b, form, model.context.native)


def _names(case: Case) -> list[str]:
    """Return what may name the line's model: the word itself, of a path in a container the folder
    that is mounted there, of a path in a cache the handle, and the served name.
    """
    name = case.model
    if not name.startswith(("/", "~", ".")):
        return [name]
    found = [name]
    if cached := re.search(r"models--([^/]+?)--([^/]+)", name):
        found.append(f"{cached[1]}/{cached[2]}")
    for volume in case.line.values("volume"):
        host, _, inside = volume.partition(":")
        inside = inside.partition(":")[0].rstrip("/")
        if inside and (name == inside or name.startswith(f"{inside}/")):
            found.append(f"{Path(host).expanduser()}{name[len(inside) :]}")
    return [*found, *filter(None, [case.value("served-model-name")])]


def _likely(names: list[str], stated: checkpoints.Stated) -> Checkpoint:
    """Return the first of the names of which something is known.

    Raises:
        SparkbookError: nothing is known of any; the reason is the first name's.
    """
    problem: SparkbookError | None = None
    for name in names:
        try:
            return checkpoints.load(name, stated=stated)
        except SparkbookError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _draft(case: Case) -> tuple[str | None, int, Range, tuple[tuple[Cache, ...], ...], list[str]]:
    """Return method, drafted tokens, bytes of a draft of its own, what its layers may keep, and
    what is not known of it.
    """
    recipe, spec = case.recipe, case.spec
    draft = recipe.draft if recipe else None
    method = case.method or (draft.method if draft else None)
    tokens = case.draft_tokens or (draft.tokens if draft else 0)
    if (spec is None and draft is None) or not method or not tokens:
        return None, 0, ZERO, ((),), []
    if method in ("ngram", "suffix"):
        return method, tokens, ZERO, ((),), []
    model = str((spec or {}).get("model") or (draft.model if draft else None) or "")
    if (method == "mtp" or method.endswith("_mtp")) and model in ("", case.model):
        return "mtp", tokens, ZERO, ((),), []
    if (folder := checkpoints.shipped(model)) is not None:
        own = checkpoints.load(str(folder))
        return method, tokens, own.bytes, (own.geometry.caches if own.geometry else (),), []
    from sparkbook.checkpoint.known import facts

    entry = facts()["drafts"].get(model, {})
    size = draft.size_gb if draft and draft.size_gb else entry.get("size_gb")
    missing = [f"{fact} {model}" for fact in entry.get("unknown", ["size and shape of the draft"])]
    # Published block and assistant drafts have 0.8 to 4.3 GB.
    bytes_ = Range(0.5e9, 5e9) if size is None else Range(size * 0.95e9, size * 1.05e9)
    possible: tuple[tuple[Cache, ...], ...] = (
        (),
        (_DRAFT_GUESS[0 if entry.get("layers") == 5 else 1],),
    )
    return method, tokens, bytes_, possible, missing
