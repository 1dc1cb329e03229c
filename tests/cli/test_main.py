"""The command as a whole: errors, exit codes, a full disk, a closed pipe. One call of each kind is
of the installed program.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import pytest
from command_line import COMMAND, ENV, in_terminal, installed, run


def entry_point(script: str) -> str:
    """Return what an installed script calls."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    found: str = tomllib.loads(project.read_text("utf-8"))["project"]["scripts"][script]
    return found


def test_version_and_help() -> None:
    assert re.fullmatch(r"sparkbook \d+\.\d+\.\d+\n", installed("--version").stdout)
    assert "recipes" in run("--help").stdout
    assert "validate" in run("recipes", "--help").stdout


def test_a_number_that_breaks_the_arithmetic_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkbook.plan.memory.plan", lambda *_: 1 / 0)
    assert run("plan", "gpt-oss-120b", check=2).stderr == (
        "sparkbook: A number in the input is out of range (division by zero).\n"
    )


def test_errors_are_one_message_and_exit_2(tmp_path: Path) -> None:
    result = installed("recipes", "show", "gpt-oss-12b", check=2)
    assert result.stdout == "" and result.stderr.startswith(
        "sparkbook: there is no recipe 'gpt-oss-12b'; did you mean gpt-oss-120b"
    )
    assert "no recipe file" in run("recipes", "show", str(tmp_path / "x.yaml"), check=2).stderr
    assert "'facts'" in run("recipes", "show", "gpt-oss-120b", "--as", "helm", check=2).stderr
    run("recipes", "nonsense", check=2)


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
        assert result.returncode == 2 and result.stderr == "sparkbook: No space left on device\n"


def in_bash(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("sparkbook", f'"{COMMAND}"')],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ENV,
    )


@pytest.mark.parametrize("words", ["recipes schema", "plan gpt-oss-120b", "client"])
def test_a_reader_that_leaves_early_is_no_error_and_no_verdict(words: str) -> None:
    result = in_bash(f"sparkbook {words} | true")
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        ("client", ">&-"),
        ("plan gpt-oss-120b", ">&-"),
        ("rules show HOST006", "2>&-"),
        ("recipes list", "<&- >&- 2>&-"),
    ],
)
def test_a_stream_that_is_closed_is_no_fault(words: str, closed: str) -> None:
    result = in_bash(f"sparkbook {words} {closed}")
    assert (result.returncode, result.stderr) == (0, "")


def test_what_is_printed_to_nobody_is_in_no_file(tmp_path: Path) -> None:
    file = tmp_path / "lock.json"
    assert in_bash(f"sparkbook lock gpt-oss-120b -o {file} >&- 2>&-").returncode == 0
    assert json.loads(file.read_text())["format"] == "sparkbook-lock/1"


def test_an_interrupt_before_the_verb_begins_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkbook.cli.app", mock.Mock(side_effect=KeyboardInterrupt))
    assert run("recipes", "list", check=130).stderr == ""


def test_ctrl_c_while_the_command_is_imported_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    module, name = entry_point("sparkbook").split(":")
    program = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import {name}; {name}()"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False, env=ENV
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_no_standard_input_is_nobody_to_ask() -> None:
    result = in_bash("sparkbook start <&-")
    assert result.returncode == 2 and "name a recipe" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("columns", ["0", "-3"])
def test_no_columns_is_no_width(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setitem(ENV, "COLUMNS", columns)
    assert "gpt-oss-120b" in in_terminal(80, "recipes", "list")[1]
