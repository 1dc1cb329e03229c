"""Fuzzes every reader of `sparkbook.formats`: whatever the input, the answer is a recipe or a
`SparkbookError`.

    python tools/fuzz_formats.py hypothesis 30000     # texts, broken examples and documents with
    the formats' own keys,
               each to every reader
    python tools/fuzz_formats.py atheris 100000       # coverage-guided, the readers of shell lines;
    needs `pip install atheris`

A run prints how many inputs it gave and how many of them were read; the first unhandled exception
ends it with a traceback. The fast test suite runs a small share of the first
(tests/formats/test_fuzz.py).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data/formats"
SLOW_S = 5.0
"""Seconds of CPU: an input that takes longer is reported: a reader that does not end is as bad as
one that breaks.
"""
counts: Counter[str] = Counter()

_WORDS = """docker run create container vllm serve python3 -m vllm.entrypoints.openai.api_server bash -c -lc exec env export sudo
-e -p -v --gpus all
--name --entrypoint --network host --port 8000 --model m a/b $PORT ${PORT:-8000} ${A[@]} $HOME ~ ~/x $(id) `id` && || ; | & > >>
< << <<EOF EOF <<'X'
' " \\ \n # ( ) { } {port} {{ }} = A=1 A=(1 2) HF_TOKEN=hf_x services: image: command: &a *a <<: - [ ] , ? ! !!str null true 5 -1
1e999 .inf 0x1f
2026-01-01 --- ... \t \ufeff \u2028 \ud800 \x00 é""".split(" ")  # noqa: SIM905 (a list of a hundred quoted words reads worse)
_KEYS = sorted(
    {
        "services",
        "image",
        "command",
        "entrypoint",
        "environment",
        "volumes",
        "ports",
        "ulimits",
        "network_mode",
        "networks",
        "deploy",
        "resources",
        "reservations",
        "devices",
        "driver",
        "count",
        "device_ids",
        "capabilities",
        "gpus",
        "ipc",
        "shm_size",
        "restart",
        "user",
        "runtime",
        "container_name",
        "recipe_version",
        "name",
        "container",
        "containers",
        "defaults",
        "env",
        "model",
        "model_revision",
        "min_nodes",
        "executor_config",
        "metadata",
        "quantization",
        "model_params",
        "mods",
        "build_args",
        "engine",
        "engines",
        "params",
        "constraints",
        "args",
        "schema_version",
        "backend",
        "backend_version",
        "serve",
        "checkpoint",
        "target_label",
        "precision",
        "label",
        "topology",
        "node_count",
        "tensor_parallel_size",
        "limitations",
        "security",
        "notes",
        "validation",
        "validated_at",
        "setup_command",
        "port",
        "meta",
        "model_id",
        "base_args",
        "base_env",
        "features",
        "modes",
        "default_mode",
        "variants",
        "extra_args",
        "extra_env",
        "hardware_overrides",
        "dgx_spark_gb10",
        "docker_image",
        "nvidia",
        "min_vllm_version",
        "parameter_count",
        "context_length",
        "architecture",
        "tp",
        "opt_in_features",
        "hardware",
        "strategy",
        "docker_command",
        "argv",
        "recommended_command",
        "hf_id",
        "kind",
        "apiVersion",
        "spec",
        "template",
        "valueFrom",
        "value",
        "hostPath",
        "path",
        "limits",
        "nvidia.com/gpu",
        "volumeMounts",
        "mountPath",
        "emptyDir",
        "medium",
        "sizeLimit",
        "securityContext",
        "runAsUser",
        "containerPort",
        "hostPort",
        "hostIP",
        "profiles",
        "workload",
        "results",
        "extends",
        "family",
        "sources",
        "id",
        "title",
        "published",
        "target",
        "host_ip",
        "protocol",
        "type",
        "source",
        "read_only",
        "soft",
        "hard",
        "x-a",
    }
)
_VALUES = [
    None,
    True,
    False,
    0,
    1,
    3,
    4,
    -1,
    1.5,
    "",
    "1",
    "2",
    "x",
    "vllm",
    "Deployment",
    "all",
    "vllm/vllm-openai:v0.19.0",
    "~/x",
    "$X",
    "${X}",
    "${X:-y}",
    "vllm serve a/b --port {port}",
    "docker run vllm/vllm-openai:v0.19.0 a/b",
    "8000:8000",
    "a:/b",
    "-1:-1",
    "nvfp4",
    "2026-09-03",
    "\ud800",
    "\x00",
    "{",
    "'",
    "--x",
    10**30,
    float("inf"),
]


def give(text: str) -> None:
    """Gives one input to detection and to every reader, and what was read to a writer.

    Raises:
        Exception: whatever is not a `SparkbookError`, or an input that takes longer than `SLOW_S`.
    """
    from sparkbook import formats
    from sparkbook.errors import SparkbookError
    from sparkbook.formats import compose, performance

    counts["inputs"] += 1
    began = time.process_time()
    try:
        formats.detect(text)
        counts["detected"] += 1
    except SparkbookError:
        pass
    for name in formats.FORMATS:
        try:
            recipe = formats.read(text, name).recipe
        except SparkbookError as error:
            str(error).encode()
            continue
        counts["read"] += 1
        counts[f"read as {name}"] += 1
        # One writer in turn: each of them sees thousands of recipes in a run.
        target = list(formats.FORMATS)[counts["read"] % len(formats.FORMATS)]
        try:
            formats.write(recipe, target)
            counts["written"] += 1
        except SparkbookError:
            pass
    for reader in (compose.read_env, performance.read):
        with contextlib.suppress(SparkbookError):
            reader(text)
    if (took := time.process_time() - began) > SLOW_S:
        raise TimeoutError(f"{took:.1f} s for {text[:300]!r}")


def inputs() -> Any:
    """A hypothesis strategy: any text, words of these formats in any order, broken examples, and
    documents with the formats' keys.
    """
    from hypothesis import strategies as st

    examples = [path.read_text("utf-8") for path in sorted(DATA.iterdir())]
    words = st.lists(st.one_of(st.sampled_from(_WORDS), st.text(max_size=4)), max_size=14).map(
        " ".join
    )

    @st.composite
    def broken(draw: st.DrawFn) -> str:
        text = draw(st.sampled_from(examples))
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, len(text)))
            end = at + draw(st.integers(0, 12))
            text = (
                text[:at]
                + draw(st.one_of(st.just(""), st.sampled_from(_WORDS), st.text(max_size=3)))
                + text[end:]
            )
        return text

    @st.composite
    def swapped(draw: st.DrawFn) -> str:
        """An example document in which one value, anywhere, is another one."""
        from sparkbook.util.documents import parse_all

        document = draw(
            st.sampled_from(
                [text for text in examples if text[:1] not in "#e" or "recipe_version" in text]
            )
        )
        values = parse_all(document)
        value = values[-1]
        node: Any = value
        while isinstance(node, dict | list) and node:
            key = draw(
                st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node)))
            )
            if (
                not isinstance(node[key], dict | list)
                or not node[key]
                or draw(st.integers(0, 3)) == 0
            ):
                node[key] = draw(document_values)
                break
            node = node[key]
        return json.dumps(value)

    document_values = st.recursive(
        st.sampled_from(_VALUES),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6)
        ),
        max_leaves=14,
    )
    documents = st.dictionaries(st.sampled_from(_KEYS), document_values, max_size=8).map(json.dumps)
    return st.one_of(st.text(max_size=60), words, broken(), swapped(), swapped(), documents)


def with_hypothesis(count: int, seed: int = 0) -> None:
    """Gives `count` inputs of `inputs`, the same ones for the same seed."""
    import hypothesis

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(inputs())
    def run(text: str) -> None:
        give(text)

    run()


def with_atheris(count: int) -> None:
    """Lets atheris look for inputs of the readers of shell lines that take new ways through them."""
    import atheris

    with atheris.instrument_imports(include=["sparkbook.formats", "sparkbook.launch"]):
        from sparkbook.errors import SparkbookError
        from sparkbook.formats import docker_run, shell

    def target(data: bytes) -> None:
        counts["inputs"] += 1
        text = atheris.FuzzedDataProvider(data).ConsumeUnicode(len(data))
        for reader in (docker_run.read, shell.read):
            try:
                reader(text)
                counts["read"] += 1
            except SparkbookError:
                pass
        if counts["inputs"] % 50_000 == 0:
            print(dict(counts), flush=True)

    folder = ROOT / "_build/fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    for path in DATA.glob("*.sh"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "words.dict").write_text(
        "\n".join(
            json.dumps(word) for word in _WORDS if word.isascii() and word.isprintable() and word
        )
        + "\n"
    )
    atheris.Setup(
        [
            sys.argv[0],
            f"-runs={count}",
            f"-dict={folder / 'words.dict'}",
            "-max_len=600",
            "-timeout=10",
            str(folder),
        ],
        target,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "lib"))
    engine, number = sys.argv[1], int(sys.argv[2])
    if engine == "atheris":
        with_atheris(number)
    else:
        with_hypothesis(number, int(sys.argv[3]) if len(sys.argv) > 3 else 0)
        print(dict(counts))
