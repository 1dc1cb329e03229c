"""The `sparkbook` command: what it prints, where, and how it exits. One call of each kind goes to
the program as it is installed.
"""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from unittest import mock

import pytest
import typer
import typer.main
from sparkbook import cli, recipes
from sparkbook.formats import FORMATS

COMMAND = Path(sys.executable).with_name("sparkbook")
ENV = {
    key: value
    for key, value in os.environ.items()
    if key
    not in (
        "COLUMNS",
        "LINES",
        "FORCE_COLOR",
        "NO_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    )
}


def installed(*arguments: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, which takes half a second to start."""
    return checked(
        subprocess.run(
            [COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, env=ENV
        ),
        check,
    )


def run(*arguments: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """The same, in this process: what the installed program calls."""
    out, err, words = io.StringIO(), io.StringIO(), [str(COMMAND), *arguments]
    world = mock.patch.dict(os.environ, ENV, clear=True), mock.patch.object(sys, "argv", words)
    with (
        world[0],
        world[1],
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    return checked(
        subprocess.CompletedProcess(
            words, int(end.value.code or 0), out.getvalue(), err.getvalue()
        ),
        check,
    )


def checked(
    result: subprocess.CompletedProcess[str], status: int
) -> subprocess.CompletedProcess[str]:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr and "\x1b" not in result.stdout + result.stderr
    return result


def in_terminal(width: int, *arguments: str) -> tuple[str, str]:
    """What the command shows in a terminal of this width: raw, and without escape codes."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    process = subprocess.Popen(
        [COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env={**ENV, "TERM": "xterm"}
    )
    os.close(slave)
    raw = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how a terminal's end of output reads on Linux
            break
        if not chunk:
            break
        raw += chunk
    os.close(master)
    assert process.wait(timeout=60) == 0
    text = raw.decode()
    return text, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


def test_what_runs_is_the_one_verb_that_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str | None]] = []
    get_command = typer.main.get_command

    def kept(asked: typer.Typer):
        made.append([command.name for command in asked.registered_commands])
        return get_command(asked)

    monkeypatch.setattr(typer.main, "get_command", kept)
    run("plan", "no-such-recipe", check=2)
    run("--version")
    assert made[0] == ["plan"]
    assert "plan" in made[1] and len(made[1]) > 5


def test_a_number_that_breaks_the_arithmetic_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkbook.plan.memory.plan", lambda *_: 1 / 0)
    assert run("plan", "gpt-oss-120b", check=2).stderr.startswith(
        "sparkbook: a number in what was given"
    )


def test_version_and_help() -> None:
    assert re.fullmatch(r"sparkbook \d+\.\d+\.\d+\n", installed("--version").stdout)
    assert "recipes" in run("--help").stdout
    assert "validate" in run("recipes", "--help").stdout


def test_the_command_starts_without_what_it_does_not_need() -> None:
    heavy = ["pydantic", "yaml", "numpy", "matplotlib", "docker", "openai", "httpx"]
    code = f"import sys, sparkbook.cli; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        == "[]\n"
    )


def test_list_in_a_pipe_has_one_line_for_each_recipe() -> None:
    lines = installed("recipes", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == recipes.ids()
    [line] = [line for line in lines if line.startswith("gpt-oss-120b ")]
    assert line.split() == [
        "gpt-oss-120b",
        "openai/gpt-oss-120b",
        "mxfp4",
        "65",
        "nvcr.io/nvidia/vllm:26.04-py3",
        recipes.load("gpt-oss-120b").status,
    ]


def test_list_as_json_and_by_family() -> None:
    everything = json.loads(run("recipes", "list", "--json").stdout)
    assert [row["id"] for row in everything] == recipes.ids()
    openai = json.loads(run("recipes", "list", "--family", "openai", "--json").stdout)
    assert openai == [row for row in everything if row["family"] == "openai"] != []
    assert "families are" in run("recipes", "list", "--family", "x", check=2).stderr


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_list_in_a_terminal(width: int) -> None:
    _, text = in_terminal(width, "recipes", "list")
    assert max(map(len, text.splitlines())) <= width
    whole = re.sub(r"\s", "", text)
    for row in json.loads(run("recipes", "list", "--json").stdout):
        assert row["id"] in whole and row["model"] in whole and (row["image"] or "none") in whole
    assert ("Quantization" in text) == (width == 240)


@pytest.mark.parametrize("width", [60, 100])
def test_facts_in_a_terminal(width: int) -> None:
    raw, text = in_terminal(width, "recipes", "show", "gpt-oss-120b")
    assert "\x1b[1m" in raw and max(map(len, text.splitlines())) <= width
    for word in ("openai/gpt-oss-120b", "Remarks", "Sources", "https://vlaicu.io/posts/dgx-vllm/"):
        assert word in text


def test_facts_of_every_recipe() -> None:
    for name in ("gpt-oss-120b", *recipes.ids()[:2], recipes.ids()[-1]):
        recipe, text = recipes.load(name), run("recipes", "show", name).stdout
        shown = [
            recipe.id,
            recipe.model.repo,
            *(r.text for r in recipe.remarks),
            *(c.now for c in recipe.corrections),
            *(s.title for s in recipe.sources),
        ]
        assert all(part in text for part in shown)


@pytest.mark.parametrize("form", FORMATS)
def test_a_launch_line_is_printed_alone(form: str) -> None:
    assert run("recipes", "show", "gpt-oss-120b", "--as", form).stdout == FORMATS[form].write(
        recipes.load("gpt-oss-120b")
    )


def test_a_recipe_as_json() -> None:
    data = json.loads(run("recipes", "show", "gpt-oss-120b", "--as", "json").stdout)
    assert data == json.loads(run("recipes", "show", "gpt-oss-120b", "--json").stdout)
    assert recipes.Recipe.model_validate(data) == recipes.load("gpt-oss-120b")


def test_a_recipe_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: gpt-oss-120b\nid: mine\nserve: {args: {port: 9999}}\n")
    assert "--port 9999" in run("recipes", "show", str(path), "--as", "docker").stdout


def test_errors_are_one_message_and_exit_2(tmp_path: Path) -> None:
    result = installed("recipes", "show", "gpt-oss-12b", check=2)
    assert result.stdout == "" and result.stderr.startswith(
        "sparkbook: there is no recipe 'gpt-oss-12b'; did you mean gpt-oss-120b"
    )
    assert "no recipe file" in run("recipes", "show", str(tmp_path / "x.yaml"), check=2).stderr
    assert "'facts'" in run("recipes", "show", "gpt-oss-120b", "--as", "helm", check=2).stderr
    run("recipes", "nonsense", check=2)


def test_validate(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("extends: gpt-oss-120b\nid: good\n")
    bad.write_text("extends: gpt-oss-120b\nid: bad\nfamliy: qwen\n")
    assert run("recipes", "validate", str(good)).stdout == f"{good} is a valid recipe\n"
    result = run("recipes", "validate", str(good), str(bad), str(tmp_path / "none.yaml"), check=2)
    assert "good.yaml is a valid recipe" in result.stdout
    assert "did you mean 'family'" in result.stderr and "there is no recipe file" in result.stderr
    answer = json.loads(
        installed("recipes", "validate", "--json", str(good), str(bad), check=2).stdout
    )
    assert [row["valid"] for row in answer] == [True, False] and "famliy" in answer[1]["problem"]


def test_schema_is_the_published_one() -> None:
    assert run("recipes", "schema").stdout == recipes.json_schema()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_without_a_traceback() -> None:
    for arguments in ("list", "schema"):
        with Path("/dev/full").open("w") as full:
            command = [COMMAND, "recipes", arguments]
            result = subprocess.run(
                command,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
                env=ENV,
            )
        assert (
            result.returncode == 2
            and result.stderr == "sparkbook: [Errno 28] No space left on device\n"
        )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    result = subprocess.run(
        ["bash", "-c", f'"{COMMAND}" recipes schema | true'],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=ENV,
    )
    assert result.stderr == ""


def test_show_as_text_and_as_json_is_refused() -> None:
    assert (
        "leave one of them out"
        in run("recipes", "show", "gpt-oss-120b", "--as", "docker", "--json", check=2).stderr
    )


@pytest.mark.parametrize("columns", ["0", "-3"])
def test_no_columns_is_no_width(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setitem(ENV, "COLUMNS", columns)
    assert "gpt-oss-120b" in in_terminal(80, "recipes", "list")[1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("metrics http://127.0.0.1:1 --seconds nan", "--seconds is nan: write a number from 0"),
        ("metrics a b --seconds inf", "--seconds is inf"),
        ("metrics a b --power nan", "--power is nan"),
        ("metrics a b --clock -3", "--clock is -3"),
        ("metrics a b --release 99", "99"),
        ("metrics 127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("metrics /dev/null no-such-file", "no-such-file can't be read"),
        ("advise 127.0.0.1:8000", "write http://127.0.0.1:8000"),
        ("advise http://127.0.0.1:1 a.json", "http://127.0.0.1:1 stands among files"),
        ("advise http://127.0.0.1:1 --seconds 1e30", "--seconds is 1e+30"),
        ("advise http://127.0.0.1:1 --draft-cost nan", "--draft-cost is nan"),
        ("bench http://127.0.0.1:1 --rate nan", "rates above 0, to 10,000"),
        ("bench http://127.0.0.1:1 --rate inf", "rates above 0, to 10,000"),
        ("bench http://127.0.0.1:1 --concurrency 99999999999", "concurrencies from 1"),
        ("bench http://127.0.0.1:1 --requests 99999999999", "a million at most"),
        ("bench http://127.0.0.1:1 --seconds nan", "--seconds is nan"),
        ("bench http://127.0.0.1:1 --timeout inf", "--timeout is inf"),
        ("bench http://127.0.0.1:1 --timeout 0", "--timeout is 0: write a number from 0.1"),
        ("serve gpt-oss-20b --dry-run --deadline nan", "--deadline is nan"),
        ("serve gpt-oss-20b --dry-run --deadline -1", "--deadline is -1"),
        ("serve gpt-oss-20b --dry-run --floor x", "'x' is not a size"),
        ("serve gpt-oss-20b --dry-run --floor -8GiB", "'-8GiB' is not a size"),
        ("serve gpt-oss-20b --dry-run --host x", "--host is 'x': write ssh://"),
        ("plan gpt-oss-20b --fraction 0", "gpu-memory-utilization is 0"),
        ("plan gpt-oss-20b --calibration no-such.json", "there is no calibration no-such.json"),
    ],
)
def test_no_option_is_ignored_and_no_number_out_of_bounds_gets_far(line: str, told: str) -> None:
    """Nothing listens on these ports and no file is there: what is wrong with an option is said
    before anything is asked.
    """
    assert told in run(*line.split(), check=2).stderr
