"""The recipe catalogue: every recipe is valid, safe to start, true to its sources, and says each
fact once.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.specifiers import SpecifierSet
from sparkbook import recipes
from sparkbook.host import spark
from sparkbook.recipes.catalogue import CATALOGUE, SCHEMA_FILE
from sparkbook.recipes.schema import Recipe
from sparkbook.util.secret import is_secret

IDS = recipes.ids()

ON_SPARK = [name for name in IDS if not name.startswith("embedded/")]

# Minor releases of vLLM whose parser and envs.py were read, and the first of them that lacks the
# name (None: no release has it).
RELEASES = [
    "0.11.0",
    "0.15.1",
    "0.16.0rc2",
    "0.17.0",
    "0.19.0",
    "0.19.1",
    "0.21.0",
    "0.23.0",
    "0.24.0",
    "0.26.0",
    "0.27.0",
    "0.27.1",
    "0.28.0",
    "0.30.0",
    "0.32.0",
]
GONE = {
    "VLLM_USE_FLASHINFER_MOE_FP4": "0.24.0",
    "VLLM_FLASHINFER_MOE_BACKEND": "0.24.0",
    "VLLM_NVFP4_GEMM_BACKEND": "0.24.0",
    "VLLM_TEST_FORCE_FP8_MARLIN": "0.30.0",
    "VLLM_FP8_MOE_BACKEND": None,
    "VLLM_ATTENTION_BACKEND": "0.17.0",
    "VLLM_USE_V1": "0.17.0",
}
DEAD_FLAGS = [
    "speculative-disable-by-batch-size",
    "speculative-model",
    "num-speculative-tokens",
    "enable-reasoning",
    "rope-scaling",
]

# The guide's charts, row by row: recipe, table, its values in the order of the series.
CHARTS: dict[tuple[str, int], dict[str, list[float]]] = {
    ("qwen3.6-35b-a3b-nvfp4", 0): {
        "MMLU Pro": [85.6, 85.0],
        "GPQA Diamond": [84.9, 84.8],
        "τ²-Bench Telecom": [95.5, 94.7],
        "SciCode": [40.8, 40.6],
        "AIME 2025": [89.2, 88.8],
        "AA-LCR": [62.0, 62.0],
        "IFBench": [62.3, 62.8],
        "MMMU Pro": [74.1, 74.5],
    },
    ("qwen3.6-27b-nvfp4", 0): {
        "SWE-bench Verified": [77.2, 75.0, 52.0],
        "SWE-bench Pro": [53.5, 51.2, 35.7],
        "LiveCodeBench v6": [83.9, 80.7, 80.0],
        "AIME 2026": [94.1, 92.6, 89.2],
    },
    ("gemma-4-31b-it-nvfp4", 0): {
        "GPQA Diamond": [75.71, 75.46],
        "AIME 2025": [66.25, 65.94],
        "MMLU Pro": [85.25, 84.94],
        "LiveCodeBench": [70.9, 70.63],
        "SciCode": [33.61, 33.18],
        "Terminal-Bench Hard": [27.08, 27.08],
    },
    ("gemma-4-26b-a4b-nvfp4", 0): {
        "GPQA Diamond": [80.3, 79.9],
        "AIME 2025": [88.95, 90.0],
        "MMLU Pro": [85.0, 84.8],
        "LiveCodeBench": [80.5, 79.8],
        "IFBench": [77.77, 78.1],
        "IFEval": [96.6, 96.4],
    },
    ("gemma-4-12b-coder-nvfp4", 0): {"HumanEval": [90.2], "MBPP": [85.7]},
    ("gemma-4-12b-coder-nvfp4", 1): {"HumanEval[:50]": [96, 96]},
    ("diffusiongemma-26b-a4b-nvfp4", 0): {
        "GPQA Diamond": [69.4, 68.6],
        "AIME 2025": [68.33, 67.33],
        "GSM8K": [94.54, 94.01],
        "IFEval": [94.01, 94.56],
        "HumanEval": [94.09, 95.0],
        "MMMLU 0-shot": [88.5, 88.13],
        "MMLU Pro": [81.0, 80.7],
    },
    ("nemotron-3-nano-30b-a3b-nvfp4", 0): {
        "MMLU-Pro": [78.3, 77.4],
        "AIME 2025": [89.1, 86.7],
        "GPQA": [73.0, 71.9],
        "LiveCodeBench": [68.3, 65.4],
        "TauBench V2 average": [49.0, 45.6],
        "IFBench": [71.5, 70.7],
    },
    ("mistral-small-4-119b-nvfp4", 0): {
        "End-to-end latency, latency-optimized": [0.6],
        "Requests per second, throughput-optimized": [3],
    },
}


def raw(name: str) -> dict[str, Any]:
    """A recipe's own file, without what it extends."""
    return yaml.safe_load((CATALOGUE / f"{name}.yaml").read_text("utf-8"))


def base_of(name: str) -> str | None:
    """The recipe that this one varies; None where it extends only a shared base."""
    base = raw(name).get("extends")
    return base if base and not Path(base).name.startswith("_") else None


VARIANTS = [name for name in IDS if base_of(name)]


def leaves(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping's values under dotted keys."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= (
            leaves(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return found


def texts(recipe: Recipe) -> list[str]:
    """Every sentence of a recipe that a reader sees."""
    marks = recipe.benchmarks
    found = [
        recipe.title,
        recipe.summary,
        *(item.text for item in [*recipe.remarks, *marks.claims]),
    ]
    found += [text for item in recipe.corrections for text in (item.claim, item.now)]
    found += [text for row in marks.speed for text in (row.configuration, row.note) if text]
    return found + [table.title for table in marks.accuracy] + [step.why for step in recipe.prepare]


def words_of(recipe: Recipe) -> str:
    """Options that reach vLLM, whichever way they are given."""
    options = [f"--{name} {value}" for name, value in recipe.serve.args.items()]
    return " ".join(
        [*options, *(value or "" for value in recipe.env.values()), *(recipe.serve.command or [])]
    )


def test_the_catalogue_is_complete() -> None:
    assert len(ON_SPARK) >= 100 and len(IDS) == len(set(IDS))
    guide = [name for name in IDS if recipes.load(name).guide_section]
    assert len(guide) == 24, "what the guide showed stays reachable"
    assert {"nvidia", "deepseek", "minimax", "zai", "other"} <= {
        recipe.family for recipe in recipes.all()
    }


@pytest.mark.parametrize("name", recipes.ids())
def test_loads_and_survives_a_round_trip(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.id == name
    assert Recipe.model_validate(recipe.model_dump()) == recipe
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_titles_and_names_are_unique_and_fit_a_table() -> None:
    loaded = recipes.all()
    for field in ("title", "summary"):
        values = [getattr(recipe, field) for recipe in loaded]
        assert len(values) == len(set(values))
        assert all("\n" not in value and len(value) <= 150 for value in values)
    assert all(recipe.summary.endswith(".") for recipe in loaded)


@pytest.mark.parametrize("name", ON_SPARK)
def test_is_safe_to_start(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.container.network is None
    assert recipe.container.ports and all(
        port.startswith("127.0.0.1:") for port in recipe.container.ports
    )
    assert {"VLLM_API_KEY", "HF_TOKEN"} <= set(recipe.env)


@pytest.mark.parametrize("name", IDS)
def test_holds_no_secret_and_no_path_of_one_machine(name: str) -> None:
    recipe = recipes.load(name)
    assert all(value is None for variable, value in recipe.env.items() if is_secret(variable))
    text = recipe.model_dump_json()
    assert not re.search(r"hf_[A-Za-z0-9]{16,}|nvapi-[\w-]{16,}|sk-[A-Za-z0-9]{16,}", text)
    assert not re.search(r"(?<![\w.~:])/(root|home|work|tmp|Users)\b", text)


@pytest.mark.parametrize("name", ON_SPARK)
def test_a_tag_that_moves_says_so(name: str) -> None:
    image = recipes.load(name).image
    assert image is not None
    tag = image.ref.rpartition("/")[2].partition(":")[2]
    # A dated nightly stays what it is; without a tag docker means latest.
    moves = tag == "" or bool(re.search(r"(^|-)(nightly|latest|main)$", tag))
    assert not moves or image.moving or image.digest
    assert not (image.digest and image.moving)


def test_most_lines_are_pinned_by_a_digest() -> None:
    present = [recipe for recipe in recipes.all() if recipe.image and not recipe.successor]
    assert sum(bool(recipe.image.digest) for recipe in present if recipe.image) > len(present) / 2


def test_what_is_obsolete_leads_to_what_is_not() -> None:
    obsolete = [recipe for recipe in recipes.all() if recipe.successor]
    assert len(obsolete) >= 20
    for recipe in obsolete:
        assert recipe.successor is not None
        instead = recipes.load(recipe.successor.recipe)
        assert instead.successor is None, recipe.id
        assert recipe.successor.why.endswith(".")


def test_images_of_the_past_are_marked() -> None:
    """Whoever still stands on one of these has a successor."""
    past = r"cu130-nightly|gemma4-cu130|:v0\.19|aeon-7/|vllm-dflash-tq|avarok/|^vllm-node"
    for recipe in recipes.all():
        if recipe.image and re.search(past, recipe.image.ref):
            assert recipe.successor, f"{recipe.id} stands on {recipe.image.ref}"


@pytest.mark.parametrize("name", ON_SPARK)
def test_a_new_container_finds_what_the_last_one_compiled(name: str) -> None:
    launch = recipes.load(name).launch
    assert any(volume.endswith(":/cache") for volume in launch.container.volumes)
    assert launch.env["VLLM_CACHE_ROOT"] == "/cache/vllm"


@pytest.mark.parametrize("name", ON_SPARK)
def test_the_line_asks_for_no_more_than_a_spark_can_give(name: str) -> None:
    recipe = recipes.load(name)
    if recipe.successor or recipe.guide_section:
        return
    fraction = recipe.serve.args.get("gpu-memory-utilization")
    assert isinstance(fraction, float)
    assert fraction <= spark.REACHABLE
    # The system of a small Spark takes as much as that of a large one.
    assert recipe.topology.memory_gb == 128 or fraction <= 0.75


@pytest.mark.parametrize("name", ON_SPARK)
def test_a_line_over_several_sparks_says_so(name: str) -> None:
    recipe = recipes.load(name)
    args, spread = recipe.serve.args, recipe.topology
    assert int(str(args.get("tensor-parallel-size", 1))) == spread.tensor_parallel
    assert int(str(args.get("pipeline-parallel-size", 1))) == spread.pipeline_parallel
    assert spread.nodes == spread.tensor_parallel * spread.pipeline_parallel
    assert not {"nnodes", "node-rank", "master-addr"} & set(args), "sparkbook fills them in"


@pytest.mark.parametrize("name", ON_SPARK)
def test_the_image_knows_every_variable_and_flag(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.image is not None
    assert not [flag for flag in DEAD_FLAGS if f"--{flag}" in words_of(recipe)]
    if recipe.image.vllm:
        inside = [
            release
            for release in RELEASES
            if SpecifierSet(recipe.image.vllm, prereleases=True).contains(release)
        ]
        assert inside, f"{recipe.image.vllm} holds none of the releases that were looked at"
    elif recipe.image.moving:
        inside = RELEASES[-1:]
    else:
        inside = RELEASES  # not known: it is enough that one release reads the name
    oldest = RELEASES.index(inside[0])
    for variable in recipe.env:
        if variable in GONE:
            gone = GONE[variable]
            assert gone is not None and oldest < RELEASES.index(gone), (
                f"{variable} is unknown to vLLM {inside[0]}"
            )
    if recipe.serve.args.get("reasoning-parser") == "nano_v3":
        assert "reasoning-parser-plugin" in recipe.serve.args


def test_the_dead_names_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above does fail: on a variable that the pinned release lost, and on a flag."""
    recipe = recipes.load("qwen3.6-35b-a3b-nvfp4-2026-09")
    broken = recipe.model_copy(update={"env": {**recipe.env, "VLLM_NVFP4_GEMM_BACKEND": "marlin"}})
    monkeypatch.setattr(recipes, "load", lambda name: broken)
    with pytest.raises(AssertionError, match="VLLM_NVFP4_GEMM_BACKEND"):
        test_the_image_knows_every_variable_and_flag("x")
    dead = recipe.serve.model_copy(
        update={"args": {**recipe.serve.args, "speculative-disable-by-batch-size": 32}}
    )
    broken = recipe.model_copy(update={"serve": dead})
    with pytest.raises(AssertionError):
        test_the_image_knows_every_variable_and_flag("x")


@pytest.mark.parametrize(("name", "table"), CHARTS)
def test_the_guides_charts_are_there_row_by_row(name: str, table: int) -> None:
    accuracy = recipes.load(name).benchmarks.accuracy[table]
    assert {row.label: row.values for row in accuracy.rows} == CHARTS[name, table]


@pytest.mark.parametrize("name", [name for name, _ in CHARTS])
def test_two_series_have_the_names_that_a_loss_is_computed_from(name: str) -> None:
    for accuracy in recipes.load(name).benchmarks.accuracy:
        assert len(accuracy.series) != 2 or accuracy.series == ["baseline", "quantized"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3.6-35b-a3b-nvfp4-2026-09", {"prefill_tok_s": 12276, "decode_tok_s": 94.78}),
        ("gemma-4-31b-it-nvfp4-gemma4-image", {"decode_tok_s": 10.6, "prefill_tok_s": 810}),
        ("gemma-4-26b-a4b-fp8-eugr", {"decode_tok_s": 45, "decode_tok_s_max": 57}),
        ("nemotron-3-super-120b-a12b-nvfp4", {"decode_tok_s": 23}),
        ("qwen3.5-27b-dflash", {"concurrency": 16, "aggregate_tok_s": 151.8, "tpot_ms": 104}),
        (
            "qwen3.5-27b-dflash-low-concurrency",
            {"decode_tok_s": 12, "configuration": "without the draft"},
        ),
        (
            "qwen3.5-27b-dflash-turboquant",
            {"context_tokens": 32000, "decode_tok_s": 17.22, "note": "−11.38 % against off"},
        ),
        ("qwen3-next-80b-a3b-nvfp4-mtp", {"decode_tok_s": 67, "decode_tok_s_max": 111.9}),
        ("qwen3-next-80b-a3b-nvfp4", {"decode_tok_s": 1.1}),
    ],
)
def test_published_speeds_are_there(name: str, expected: dict[str, Any]) -> None:
    rows = [row.model_dump() for row in recipes.load(name).benchmarks.speed]
    assert any(expected.items() <= row.items() for row in rows)


def test_turboquant_has_every_row_of_its_three_tables() -> None:
    speed = recipes.load("qwen3.5-27b-dflash-turboquant").benchmarks.speed
    short = {
        (row.configuration, row.prompt_class, row.concurrency): row.aggregate_tok_s
        for row in speed
        if not row.context_tokens
    }
    assert len(short) == 3 * 2 * 4
    for row in speed:
        if not row.note:
            continue
        # The source's own delta must follow from its two speeds, up to their rounding.
        field = "decode_tok_s" if row.context_tokens else "aggregate_tok_s"
        at = (row.prompt_class, row.concurrency, row.context_tokens)
        off = next(
            o
            for o in speed
            if o.configuration == "TQ_MODE=off"
            and (o.prompt_class, o.concurrency, o.context_tokens) == at
        )
        change = 100 * (getattr(row, field) / getattr(off, field) - 1)
        assert change == pytest.approx(float(row.note.split()[0].replace("−", "-")), abs=0.06)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_shares_its_bases_facts_and_repeats_none(name: str) -> None:
    base = base_of(name)
    assert base is not None
    own, theirs = recipes.load(name).model, recipes.load(base).model
    shared = ["architecture", "design", "mixture_of_experts", "context", "modalities"]
    if own.repo == theirs.repo:
        shared += [
            "publisher",
            "total_params_b",
            "active_params_b",
            "quantization",
            "weights_gb",
            "license",
            "gated",
        ]
    assert {field: getattr(own, field) for field in shared} == {
        field: getattr(theirs, field) for field in shared
    }
    merged = recipes.load(base).model_dump(mode="json")
    for section in ("model", "serve", "env", "container"):
        before = leaves(merged[section])
        repeated = [
            key
            for key, value in leaves(raw(name).get(section) or {}).items()
            if value is not None and before.get(key) == value
        ]
        assert not repeated, f"{section} repeats {repeated} of {base}"


@pytest.mark.parametrize("name", IDS)
def test_a_draft_is_the_one_that_is_started(name: str) -> None:
    recipe = recipes.load(name)
    config = recipe.serve.args.get("speculative-config")
    if isinstance(config, dict):
        assert recipe.draft is not None
        assert (config["method"], config["num_speculative_tokens"], config.get("model")) == (
            recipe.draft.method,
            recipe.draft.tokens,
            recipe.draft.model,
        )
    elif "DFLASH_DRAFTER" in recipe.env:
        assert recipe.draft is not None
        assert (recipe.env["DFLASH_DRAFTER"], recipe.env["DFLASH_NUM_SPEC_TOKENS"]) == (
            recipe.draft.model,
            str(recipe.draft.tokens),
        )
    elif match := re.search(r"--speculative-config '(.*?)'", words_of(recipe)):
        assert recipe.draft is not None
        assert json.loads(match[1]) == {
            "method": recipe.draft.method,
            "num_speculative_tokens": recipe.draft.tokens,
        }
    else:
        assert recipe.draft is None


@pytest.mark.parametrize("name", IDS)
def test_what_it_can_do_follows_from_its_line(name: str) -> None:
    recipe = recipes.load(name)
    args, can = recipe.serve.args, recipe.capabilities
    assert can.tools == ("enable-auto-tool-choice" in args) == ("tool-call-parser" in args)
    assert can.chat or args.get("runner") == "pooling" or can.transcription
    assert (can.embedding or can.reranking) == (args.get("runner") == "pooling")
    # gpt-oss alone gets its reasoning parser without asking.
    assert can.reasoning == (
        "reasoning-parser" in args or recipe.model.architecture == "GptOssForCausalLM"
    )
    assert (can.vision, can.video, can.audio) == tuple(
        kind in recipe.model.modalities for kind in ("image", "video", "audio")
    )


@pytest.mark.parametrize("name", IDS)
def test_what_a_reader_sees_is_whole_sentences(name: str) -> None:
    recipe = recipes.load(name)
    for text in texts(recipe):
        assert text == text.strip() and "\n" not in text and "  " not in text and text
    for item in recipe.remarks:
        assert item.text.endswith((".", '."'))
    for correction in recipe.corrections:
        assert correction.claim.endswith(".") and correction.now.endswith(".")
    assert all(item.date.year == 2026 for item in recipe.corrections)
    assert all(source.url or source.id == "training" for source in recipe.sources)


@pytest.mark.parametrize("name", [name for name in IDS if name.startswith("embedded/")])
def test_embedded_recipes_run_as_a_process(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.image is None and recipe.family == "embedded" and recipe.status == "run"
    assert not recipe.container.ports and recipe.container.gpus is None
    assert (
        recipe.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        and recipe.serve.args["distributed-executor-backend"] == "uni"
    )
    assert recipe.env["VLLM_API_KEY"] is None


def test_a_pinned_revision_is_served_as_well_as_fetched() -> None:
    """`main` would be another commit one day, and with only the pinned one staged, an engine
    without a network finds nothing.
    """
    pinned = {recipe.id: recipe for recipe in recipes.all() if recipe.model.revision}
    assert "qwen3.6-35b-a3b-nvfp4-2026-09" in pinned
    for recipe in pinned.values():
        assert recipe.serve.args.get("revision") == recipe.model.revision, recipe.id


def test_only_what_this_project_executes_is_marked_run() -> None:
    assert {recipe.id for recipe in recipes.all() if recipe.status == "run"} == {
        name for name in IDS if name.startswith("embedded/")
    }


def test_a_recipe_of_named_entries_can_add_and_take_out(tmp_path: Path) -> None:
    child = tmp_path / "child.yaml"
    child.write_text("""
extends: gpt-oss-120b
id: child
remarks:
  tools: null
  own: {text: Mine., source: own}
sources:
  own: {title: Own source}
""")
    recipe = recipes.load(child)
    assert [item.text for item in recipe.remarks][-1] == "Mine."
    assert len(recipe.remarks) == len(recipes.load("gpt-oss-120b").remarks)
    assert recipe.source("own").title == "Own source"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("remarks: {x: {text: A., source: nowhere}}", "cites the source 'nowhere'"),
        ("remarks: {x: {txt: A., source: guide}}", "did you mean 'text'"),
        ("sources: {x: Just a title}", "sources"),
        ("sources: {x: {titel: A}}", "did you mean 'title'"),
    ],
)
def test_a_wrong_named_entry_is_explained(tmp_path: Path, text: str, complaint: str) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(f"extends: gpt-oss-120b\nid: child\n{text}\n")
    with pytest.raises(recipes.RecipeError, match=re.escape(complaint)):
        recipes.load(child)


def test_the_published_schema_is_current_and_accepts_every_recipe() -> None:
    assert SCHEMA_FILE.read_text("utf-8") == recipes.json_schema()
    validator = jsonschema.Draft202012Validator(json.loads(recipes.json_schema()))
    for recipe in recipes.all():
        assert not list(validator.iter_errors(json.loads(recipe.model_dump_json()))), recipe.id


def test_the_published_schema_accepts_named_entries() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(recipes.json_schema()))
    data = json.loads(recipes.load("gpt-oss-120b").model_dump_json())
    data["remarks"] = {"a": data["remarks"][0]}
    data["sources"] = {
        source["id"]: {"title": source["title"], "url": source["url"]} for source in data["sources"]
    }
    assert not list(validator.iter_errors(data))
    data["remarks"] = {"a": {"nonsense": 1}}
    assert list(validator.iter_errors(data))
