"""What other people wrote is read within bounds, whoever reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.recipes.catalogue import CATALOGUE
from sparkbook.util import limits
from typer.main import get_command


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, 2]}')
    assert limits.read_json(tmp_path / "a.json") == {"a": [1, 2]}
    assert limits.read_text(tmp_path / "a.json", most=13) == '{"a": [1, 2]}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x" * 101, "the lock .* has more than 0.0001 MB"),
        (b"\xff", "the lock .* is not UTF-8 text"),
        (b"{", "the lock .* is not JSON"),
        (b"[" * 90, "the lock .* is not JSON"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(SparkbookError, match=message):
        limits.read_json(file, "the lock", most=100)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for place, message in [
        ("/dev/zero", "is a device"),
        (str(tmp_path), "can't be read: Is a directory"),
        (str(tmp_path / "none"), "can't be read: No such file"),
        ("a\0b", "is not the name of a file"),
    ]:
        with pytest.raises(SparkbookError, match=message):
            limits.read_bytes(place)
    assert limits.read_bytes(os.devnull) == b""


def test_a_pipe_is_read_to_its_end_and_an_unused_one_is_empty(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert limits.read_bytes(pipe) == b""
    reader, writer = os.pipe()
    os.write(writer, b"abc")
    os.close(writer)
    assert limits.read_bytes(f"/proc/self/fd/{reader}") == b"abc"
    os.close(reader)


@pytest.mark.parametrize("text", ["[" * 200_000, "[" + "1," * 2_100_000 + "1]", "9" * 5000])
def test_a_document_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(SparkbookError, match="the reply"):
        limits.json_value(text, "the reply")


def test_a_command_is_run(tmp_path: Path) -> None:
    assert limits.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=30) == (
        3,
        "out\n",
        "err",
    )
    assert limits.run(["cat"], timeout_s=30, stdin="abc").out == "abc"
    assert limits.run([str(tmp_path / "none")], timeout_s=30).code == 127


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_a_command_that_prints_without_end_is_stopped(stream: str) -> None:
    ran = limits.run(["sh", "-c", f"yes {stream}"], timeout_s=60, most=100_000)
    assert ran.code == 125
    assert "printed more than 0.1 MB" in ran.err
    assert len(ran.out) <= 100_000


def test_a_command_that_takes_too_long_is_killed_and_what_it_printed_stays() -> None:
    ran = limits.run(["sh", "-c", "echo begun; exec sleep 600"], timeout_s=1)
    assert (ran.code, ran.out) == (124, "begun\n")


FILES = [
    ["lint", "{}"],
    ["plan", "{}"],
    ["convert", "{}", "--to", "docker"],
    ["lock", "verify", "{}"],
    ["lock", "diff", "{}", "{}"],
    ["check", "--probes", "{}"],
    ["recipes", "validate", "{}"],
    ["metrics", "{}", "{}"],
    ["bench", "{}"],
    ["cluster", "check", "{}"],
    ["plan", "gpt-oss-120b", "--nodes", "2", "--fabric", "{}"],
    ["plan", "gpt-oss-120b", "--meminfo", "{}"],
    ["plan", "gpt-oss-120b", "--calibration", "{}"],
    ["diagnose", __file__, "--facts", "{}"],
    ["tune", "gpt-oss-120b", "--for", "chat", "--dry-run", "--space", "{}"],
    ["lock", "make", "gpt-oss-120b", "--bench", "{}"],
    ["serve", "--locked", "{}", "--dry-run"],
    ["monitor", "up", "--dry-run", "--key-file", "{}"],
    ["proxy", "caddy", "--host", "a.lan", "--folder", "px", "--key-file", "{}"],
    ["book", "--matrix", "{}"],
    ["advise", "{}", "{}"],
]
"""What reads a file whole."""
LOGS = [
    ["diagnose", "{}"],
    ["diagnose", "{}", "{}"],
    ["plan", "gpt-oss-120b", "--log", "{}"],
    ["record", "out", "--no-host", "--log", "{}"],
]
OTHERS = {
    "convert --env-file": "any text is one",
    "record --metrics": "any text is one",
    "upgrade --lock": "read once the Docker engine answers",
    "tune --journal": "read once the Docker engine answers",
    "client --key-file": "read once the server answers",
    "proxy --certificate": "named in the configuration, not read",
    "proxy --certificate-key": "named in the configuration, not read",
}
WRITTEN = {"--out", "--output", "-o"}


def test_every_option_that_reads_a_file_is_tried() -> None:
    def options(command: Any, words: list[str]) -> Iterator[str]:
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            yield from options(command.get_command(None, name), [*words, name])
        for parameter in command.params:
            if parameter.metavar == "FILE" and parameter.param_type_name == "option":
                yield " ".join([*words, parameter.opts[0]])

    tried = {
        " ".join([*words[: 1 + (words[1] in ("make", "up"))], words[words.index("{}") - 1]])
        for words in [*FILES, *LOGS]
    }
    found = {one for one in options(get_command(app), []) if one.split()[-1] not in WRITTEN}
    assert {one for one in found if not one.endswith("--cluster")} - tried == set(OTHERS)


RUN_ALL = """
import contextlib, io, json, resource, sys, traceback
from sparkbook.cli import main
resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))
answers = []
for words in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        sys.argv = ["sparkbook", *words]
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        except Exception:
            code = traceback.format_exc()
    answers.append([words, code, out.getvalue()])
print(json.dumps(answers))
"""


def answers(commands: list[list[str]], folder: Path) -> None:
    """Run commands in one process: each refuses what it was given, without a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=json.dumps(commands), cwd=folder,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert len(rows) == len(commands)
    for words, code, text in rows:
        assert code in (1, 2), (words, code, text[-500:])
        assert text.strip() and "Traceback" not in text, (words, text[-500:])


@pytest.mark.slow
@pytest.mark.parametrize("endless", ["/dev/zero", "pipe"])
def test_no_verb_reads_without_end(endless: str, tmp_path: Path) -> None:
    """A device without an end, or a pipe without a writer, is an error or an empty file. (A log is
    a stream: `diagnose` waits for the writer of a pipe, as `cat` does.)
    """
    place = endless
    verbs = [*FILES, *LOGS] if endless != "pipe" else FILES
    if endless == "pipe":
        place = str(tmp_path / "pipe")
        os.mkfifo(place)
    answers([[word.format(place) for word in words] for words in verbs], tmp_path)


HEX = "0x" + "f" * 5000  # Python computes with it, and refuses to write it
BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
DOCUMENTS = [
    f"{BOMB}nodes: *a9",
    *(f"a: {HEX}", f"{HEX}: 1", "a: 0b" + "1" * 20_000, "a: " + "9" * 5000, "a: 2026-99-99"),
    *(
        '"\\ud800"',
        '{"recipe": "\\ud800"}',
        "a: 1e999",
        '{"schema": Infinity}',
        "<<: 1",
        "? [a]\n: 1",
    ),
    *("", "null", "3", "[1]", '"x"', "\0", '{"a":' * 100 + "1" + "}" * 100),
    *('{"schema": 1, "recipe": {}}', '{"recipe": 3}', '{"model": 3}', '{"system": 3, "gpus": 3}'),
    f"nodes: [{{host: a, env: {{1: {HEX}}}}}]\nlink_gbit: {HEX}",
    "nodes: [{host: a, address: 2026-99-99}, {host: b, address: 1.5}]",
    f"services: {{v: {{image: 'vllm/vllm-openai:v0.28.0', command: [a/b], shm_size: {HEX}}}}}",
    "kind: Deployment\napiVersion: apps/v1\nspec: {template: {spec: {containers: [{name: v,"
    f" image: 'vllm/vllm-openai:v0.28.0', args: [--model, a/b, --seed, {HEX}]}}]}}}}}}",
    *(
        (CATALOGUE / "gpt-oss-120b.yaml").read_text("utf-8").replace("weights_gb: 65", change)
        for change in (f"weights_gb: {HEX}", "weights_gb: 2026-99-99", "weights_gb: [1]")
    ),
]


@pytest.mark.slow
def test_no_verb_answers_a_document_with_a_traceback(tmp_path: Path) -> None:
    """Documents that are not what any verb reads, or hold a value that breaks Python itself."""
    verbs = [
        *([*words] for words in FILES if words[0] != "bench"),
        *(["convert", "{}", "--to", name] for name in ("compose", "kubernetes", "recipe")),
        *(["recipes", "show", "{}", "--as", name] for name in ("nvidia", "sparkrun")),
        *(["ask", "{}"], ["lock", "make", "{}"], ["serve", "{}", "--dry-run"]),
        *(["weights", "verify", "{}"], ["cluster", "status", "{}"]),
    ]
    commands = []
    for number, text in enumerate(DOCUMENTS):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text, "utf-8")
        commands += [[word.format(file) for word in words] for words in verbs]
    answers(commands, tmp_path)


@pytest.mark.parametrize(
    ("file", "message", "said"),
    [
        ("zero", "the matrix zero is a device", "the matrix zero is a device"),
        ("./zero", "zero is a device", "zero is a device"),
        ("o", "zero is too long", "o: zero is too long"),
        ("a.yaml", "this is not YAML", "a.yaml: this is not YAML"),
    ],
)
def test_a_file_is_named_once(file: str, message: str, said: str) -> None:
    with pytest.raises(SparkbookError) as caught, limits.naming(file):
        raise SparkbookError(message)
    assert str(caught.value) == said
