"""`sparkbook serve --unit`: a unit that systemd takes, of the line that was given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.serve import boot
from sparkbook.serve.launcher import Wish

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from command_line import COMMAND, run

RECIPE = "gpt-oss-20b"
LINE = "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.28.0 --model openai/gpt-oss-20b"
ODD = ["/bin/true", "serve", 'a"b', "50%", "$HOME", "it's", "back\\slash", "two words", "a;b"]


def made(command=("/bin/true", "serve", RECIPE), **wish):
    return boot.unit(
        Wish(**({"source": RECIPE} | wish)), command, user="root", folder=Path("/my %models")
    )


def lines(text, name):
    return [row.partition("=")[2] for row in text.splitlines() if row.startswith(f"{name}=")]


def test_the_command_prints_the_line_without_the_option():
    text = json.loads(run("serve", RECIPE, "--offline", "--unit", "--json").stdout)["unit"]
    assert lines(text, "ExecStart") == [f":{COMMAND} serve {RECIPE} --offline --watch"]
    assert run("serve", RECIPE, "--offline", "--unit").stdout == text


def test_a_container_waits_for_docker_and_is_watched_and_a_process_stays_anyway():
    assert "docker.service" in made() and made(watch=True).count("--watch") == 0
    process = made(source="embedded/tiny-dense")
    assert "docker" not in process and "--watch" not in process


def test_what_fails_is_not_started_forever_and_what_is_unusable_not_again():
    text = made()
    assert lines(text, "StartLimitBurst") == ["4"] and lines(text, "StartLimitIntervalSec") == [
        "1d"
    ]
    assert lines(text, "RestartPreventExitStatus") == ["2"]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"source": "vllm serve x"}, "put the launch line into a file"),
        ({"source": "-"}, "put the launch line into a file"),
        ({"source": "/dev/null"}, "put the launch line into a file"),
        ({"restart_always": True}, "either restarts it"),
        ({"source": "no-such-recipe"}, "no-such-recipe"),
        ({"target": "moon"}, "'moon' is not a target"),
    ],
)
def test_what_cannot_be_served_gets_no_unit(wish, message):
    with pytest.raises(SparkbookError, match=message):
        made(**wish)


def test_a_file_with_a_blank_in_its_name_is_a_file(tmp_path):
    file = tmp_path / "my line.txt"
    file.write_text(LINE)
    command = ["/bin/true", "serve", str(file)]
    assert lines(made(command, source=str(file)), "ExecStart") == [
        f':/bin/true serve "{file}" --watch'
    ]


def test_a_letter_that_would_begin_another_line_is_refused():
    with pytest.raises(SparkbookError, match="can't be in a unit"):
        made(command=["/bin/true", "a\nExecStartPre=/bin/false"])


def test_a_program_that_systemd_does_not_start_is_refused():
    with pytest.raises(SparkbookError, match="a quote or a backslash"):
        made(command=["/it's/sparkbook", "serve", RECIPE])


def test_the_command_refuses_what_does_not_go_together():
    assert "--dry-run" in run("serve", RECIPE, "--unit", "--dry-run", check=2).stderr
    assert "several" in run("serve", "two-chats", "--unit", check=2).stderr
    share = ["--gpu-memory-utilization", f"{RECIPE}=0.5"]
    assert "ID=SHARE only for a set" in run("serve", RECIPE, *share, "--unit", check=2).stderr


@pytest.mark.systemd
@pytest.mark.parametrize("source", [RECIPE, "embedded/tiny-dense"])
def test_systemd_takes_it(source, tmp_path):
    program = tmp_path / "100% $HOME ;x" / "true"  # systemd looks whether it is there
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    file = tmp_path / "spark.service"
    file.write_text(made(command=[str(program), *ODD[1:]], source=source))
    asked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = [row for row in asked.stderr.splitlines() if "spark.service" in row]
    assert (asked.returncode, said) == (0, []), asked.stderr
