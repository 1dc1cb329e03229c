"""Every parameter of every chapter works over its whole range.

A chapter runs once with its defaults, in this process; for each other value the cells that depend
on the parameter run again. Cells that need an engine are left out, as with `target=plan`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import pytest
from in_process import Chapter
from sparkbook import recipes, releases
from sparkbook.formats import FORMATS
from sparkbook.register import claims
from sparkbook.runner import notebooks
from sparkbook.runner.project import here

NOTEBOOKS = here().root / "notebooks"
DATA = here().root / "tests" / "data"
RECORDED = here().root / "lib/sparkbook/bench/recorded"
CHAPTERS = [*(path.stem for path in here().chapters()), "model"]

ALL = recipes.ids()
SPARK = [name for name in ALL if not name.startswith("embedded/")]
OTHERWISE_MOUNTED = list(
    {(*one.container.volumes, *one.env): one.id for one in map(recipes.load, SPARK)}.values()
)
"""A recipe for each set of volumes and variables: the chapter reads the whole machine for each."""
ONE_SPARK = [name for name in SPARK if recipes.load(name).topology.nodes == 1]
RELEASES = releases.table()["releases"]
SOME_RELEASES = [*RELEASES[::6], RELEASES[-1]]
FRACTIONS = (0.05, 0.5, 1.0)
BANDWIDTHS = (50.0, 1000.0)

ENGINE = "starts engines; with target=plan no cell reads it"
RANGES: dict[str, dict[str, Iterable[Any] | str]] = {
    "00_first_hour": {
        "recipe_id": ENGINE,
        "target": ENGINE,
        "spark_recipe": ("gpt-oss-20b-64gb", "qwen3.6-35b-a3b-nvfp4-2026-09"),
        "client": ("claude-code", "llm"),
    },
    "01_landscape": {"show_recipe": SPARK},
    "02_hardware": {
        "utilization": FRACTIONS,
        "bandwidth_gb_s": (273.0,),
        "most_requests": (2, 64),
    },
    "03_model_store": {
        "show_recipe": SPARK,
        "disk_free_gb": (0.0, 1e5),
        "fetch_recipe": "downloads weights",
    },
    "04_volumes": {"show_recipe": OTHERWISE_MOUNTED, "cache_on_host": ("/var/cache/vllm", "~/a b")},
    "05_host_setup": {
        "recipe": ["", *ALL],
        "run_container": "starts a container on a GPU",
        "utilization": FRACTIONS,
        "example": ("headless", "after-download", "shared"),
    },
    "06_launch": {"recipe_id": ENGINE, "target": ENGINE, "spark_recipe": ONE_SPARK},
    "06_clients": {
        "recipe_id": ENGINE,
        "target": ENGINE,
        "client": ("claude-code", "open-webui"),
        "address": ("https://spark.lan",),
        "turns": ENGINE,
    },
    "07_gemma4": {"image": ("vllm/vllm-openai:v0.32.0", "vllm/vllm-openai:v0.33.0")},
    "07_models": {
        "family": ("all", *sorted({recipes.load(name).family for name in ALL})),
        "bandwidth_gb_s": BANDWIDTHS,
    },
    "08_flags": {
        "release": SOME_RELEASES,
        "before": SOME_RELEASES,
        "line": ("vllm serve openai/gpt-oss-20b", "docker run vllm/vllm-openai:v0.19.0 a/b --x 1"),
    },
    "09_prewarm": {"recipe_id": ENGINE, "target": ENGINE, "at_most": ENGINE},
    "10_clients": {"record": (str(RECORDED / "clients.json"),)},
    "10_verify": dict.fromkeys(
        ("recipe_id", "target", "requests", "max_tokens", "bench_requests"), ENGINE
    ),
    "11_troubleshooting": {
        "log_name": ("h100-kv-small", "h100-moe", "gb10-fragment"),
        "log_file": (str(DATA / "logs" / "h200-0.24.0-nvfp4-plugin.log"),),
        "word": ("memory", "key", "no such word"),
        "engine_recipe": ENGINE,
        "target": ENGINE,
    },
    "12_several_sparks": {
        "recipe_id": SPARK,
        "nodes": (2, 4, 8),
        "jobs": "starts kernels; tests/runner has the batches",
    },
    "13_mtp": {
        **dict.fromkeys(("recipe_id", "target", "requests", "max_tokens"), ENGINE),
        "drafts": (1, 5),
        "spark_recipe": SPARK,
    },
    "13_drafts": {
        "draft_cost": (0.0, 1.0),
        "block_cost": (0.0, 2.0),
        "verify_cost": (0.0, 0.5),
    },
    "13_ngrams": {
        **dict.fromkeys(("recipe_id", "target", "requests", "max_tokens"), ENGINE),
        "drafts": (2, 4),
    },
    "13_lossless": {"file": (str(RECORDED / "lossless.jsonl"),)},
    "13_turboquant": {
        "compression": (1.0, 8.0),
        "cache_gib": (1.0, 110.0),
        "context": (1000, 262144),
        "users": (1, 1000),
    },
    "14_kernels_gb10": {
        "tokens": (1, 65536),
        "file": (str(here().root / "kernels/results/h100.json"),),
    },
    "14_nvfp4_claims": {"seed": (2**31,), "rows": (64, 1024)},
    "15_keep_running": {"recipe_id": ENGINE, "target": ENGINE, "former_id": ENGINE},
    "15_long_agents": {
        "recipe_id": ALL,
        "prompt": (8_000, 1_000_000),
        "new": (1, 7_999),
        "turns": (1, 500),
    },
    "16_will_it_fit": {
        "recipe_id": ALL,
        "context": (1, 4096, 10_000_000),
        "sequences": (1, 256),
        "fraction": FRACTIONS,
    },
    "16_ask_vllm": dict.fromkeys(("target", "long", "flag", "plain", "spark", "spark_gib"), ENGINE),
    "17_bring_your_own": {
        "source": ("gpt-oss-20b", "vllm serve openai/gpt-oss-20b"),
        "formats_shown": [name for name, form in FORMATS.items() if form.write],
    },
    "18_claims": {"documents": ["all", *claims.registers()]},
    "19_tune": {
        "recipe_id": ("qwen3.6-35b-a3b-nvfp4", "qwen3-next-80b-a3b-nvfp4", "embedded/tiny-mtp-k3"),
        "use": ("agent", "users", "batch"),
    },
    "model": {"recipe_id": ALL, "target": ("auto", "plan")},
}
"""Values to try for each parameter, or the reason why none can be tried here."""

WITHOUT = {"12_several_sparks": ("batch", "outcome")}
"""Cells that are left out: those with these names start kernels, or check what came of it."""


@functools.cache
def chapter(name: str) -> Chapter:
    return Chapter(NOTEBOOKS / f"{name}.ipynb", WITHOUT.get(name, ()))


def tried(name: str) -> list[str]:
    """The parameters of a chapter with values to try."""
    return [parameter for parameter, values in RANGES[name].items() if not isinstance(values, str)]


@pytest.fixture(autouse=True)
def _in_the_folder_of_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_parameter_has_a_range_or_a_reason(name: str) -> None:
    assert set(RANGES[name]) == set(notebooks.parameters(NOTEBOOKS / f"{name}.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        "gpt-oss-20b",  # windows, no prediction head
        "gemma-4-31b-dflash",  # windows of another width, a draft of its own
        "mistral-small-4-119b-nvfp4",  # latent attention
        "nemotron-3-nano-30b-a3b-nvfp4",  # Mamba-2 states under an old release
        "diffusiongemma-26b-a4b-nvfp4",  # no estimate of its speed
    ],
)
def test_will_it_fit_works_for_each_kind_of_cache(recipe: str) -> None:
    chapter("16_will_it_fit").run("recipe_id", recipe)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, parameter) for name in CHAPTERS for parameter in tried(name)],
)
def test_a_parameter_works_over_its_range(name: str, parameter: str) -> None:
    for value in RANGES[name][parameter]:
        chapter(name).run(parameter, value)
