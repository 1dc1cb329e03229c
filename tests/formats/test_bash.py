"""The rendered lines in a real bash: what docker and vllm are given is what was meant."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from launches import EXAMPLE, launches
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats import FORMATS
from sparkbook.formats import shell as shell_line
from sparkbook.formats.words import container_words, serve_groups
from sparkbook.recipes import Launch, Serve
from sparkbook.util.shell_text import HOME

PRINT_ARGV = '#!/bin/bash\nprintf "%s\\0" "$@" > "$OUT/argv"\nenv -0 > "$OUT/env"\n'


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with fake docker and vllm commands in bin/, and a home whose name needs quoting."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "my home").mkdir()
    for name in ("docker", "vllm"):
        script = tmp_path / "bin" / name
        script.write_text(PRINT_ARGV)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def run(machine: Path, text: str, shell: str = "bash") -> tuple[list[str], dict[str, str]]:
    """What the fake command was given: its arguments and its environment."""
    env = {
        "PATH": f"{machine / 'bin'}:{os.environ['PATH']}",
        "HOME": str(machine / "my home"),
        "OUT": str(machine),
        "LC_ALL": "C.UTF-8",
    }
    result = subprocess.run(
        [shell], input=text.encode(), env=env, capture_output=True, timeout=60, check=False
    )
    assert result.returncode == 0 and not result.stderr, result.stderr.decode()
    argv = (machine / "argv").read_bytes().decode().split("\0")[:-1]
    seen = dict(
        pair.split("=", 1) for pair in (machine / "env").read_bytes().decode().split("\0") if pair
    )
    return argv, seen


def home(machine: Path, text: str) -> str:
    """A launch's string with its leading ~ expanded."""
    return str(machine / "my home") + text[1:] if text == "~" or text.startswith("~/") else text


def meant(machine: Path, launch: Launch) -> list[str]:
    """docker's arguments, put together without any quoting."""
    container, words = launch.container, ["run", "-d"]
    entry, groups = container_words(launch)
    gpus = f'"{container.gpus}"' if container.gpus and "," in container.gpus else container.gpus
    for option, value in [
        ("--name", container.name),
        ("--gpus", gpus),
        ("--runtime", container.runtime),
        ("--ipc", container.ipc),
        ("--shm-size", container.shm_size),
        ("--network", container.network),
        ("--restart", container.restart),
        ("--user", container.user),
        ("--entrypoint", entry),
    ]:
        words += [] if value is None else [option, home(machine, value)]
    for name, limit in container.ulimits.items():
        words += ["--ulimit", f"{name}={limit}"]
    for port in container.ports:
        words += ["-p", port]
    for volume in container.volumes:
        words += ["-v", home(machine, volume)]
    for name, value in launch.env.items():
        words += ["-e", name if value is None else f"{name}={home(machine, value)}"]
    assert launch.image is not None
    return [
        *words,
        launch.image,
        *(word.replace(HOME, str(machine / "my home")) for group in groups for word in group),
    ]


def in_process(machine: Path, launch: Launch) -> list[str]:
    groups = serve_groups(launch.on_host().serve)
    return [
        "serve",
        *(word.replace(HOME, str(machine / "my home")) for group in groups for word in group),
    ]


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_the_docker_line(machine: Path, shell: str) -> None:
    argv, _ = run(machine, FORMATS["docker"].write(EXAMPLE), shell)
    where = machine / "my home"
    assert argv == [
        "run",
        "-d",
        "--name",
        "x",
        "--gpus",
        '"device=0,1"',
        "--ulimit",
        "memlock=-1:-1",
        "-p",
        "127.0.0.1:8000:8000",
        "-v",
        f"{where}/my models:/models",
        "-e",
        "HF_HOME=/models",
        "-e",
        "NOTE=it's $5 \\ {a,b}",
        "-e",
        f"CACHE={where}/c d",
        "-e",
        "COLON=a:~/b",
        "-e",
        "HF_TOKEN",
        "nvcr.io/nvidia/vllm:26.04-py3",
        "vllm",
        "serve",
        "/models/m",
        "--served-model-name",
        "a",
        "b c",
        "--speculative-config",
        f'{{"model":"/models/d","k":[1,"{where}/e"]}}',
        "--enforce-eager",
        "--seed",
        "-1",
        "--suffix=-x",
        "--chat-template",
        f"{where}/t'e",
    ]


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_the_shell_line(machine: Path, shell: str) -> None:
    argv, env = run(machine, FORMATS["shell"].write(EXAMPLE), shell)
    where = machine / "my home"
    assert argv == [
        "serve",
        f"{where}/my models/m",
        "--served-model-name",
        "a",
        "b c",
        "--speculative-config",
        f'{{"model":"{where}/my models/d","k":[1,"{where}/e"]}}',
        "--enforce-eager",
        "--seed",
        "-1",
        "--suffix=-x",
        "--chat-template",
        f"{where}/t'e",
        "--host",
        "127.0.0.1",
    ]
    assert env["HF_HOME"] == f"{where}/my models" and env["CACHE"] == f"{where}/c d"
    assert env["NOTE"] == "it's $5 \\ {a,b}" and env["COLON"] == "a:~/b" and "HF_TOKEN" not in env


@pytest.mark.parametrize(
    "word", ["é", "日本 x", "a\tb", "a\nb", "\x1b[2J", "it's\r!x\\", "~/é\x01"]
)
def test_what_a_terminal_takes_for_a_key_is_printable(machine: Path, word: str) -> None:
    launch = EXAMPLE.model_copy(
        update={"env": {"A": word}, "serve": Serve(model="m", args={"x": word})}
    )
    text = FORMATS["shell"].write(launch)
    assert text.isascii() and text.replace("\n", "").isprintable()
    argv, env = run(machine, text)
    assert home(machine, word) in argv and env["A"] == home(machine, word)
    assert shell_line.read(text) == launch.on_host()


def test_commands_before_run_in_the_containers_shell(machine: Path) -> None:
    """The script that docker hands on is run by a second bash, whose home is another one."""
    launch = EXAMPLE.model_copy(
        update={
            "serve": Serve(
                model="~/m n", args={"x": {"a": "~/it's"}}, before=["echo 'a  b' ~ > \"$OUT/said\""]
            )
        }
    )
    argv, _ = run(machine, FORMATS["docker"].write(launch))
    assert argv[-3:-1] == ["bash", "-lc"]
    inner = {
        "PATH": f"{machine / 'bin'}:{os.environ['PATH']}",
        "HOME": "/container",
        "OUT": str(machine),
    }
    subprocess.run(["bash", "-c", argv[-1]], env=inner, check=True, timeout=60)
    assert (machine / "said").read_text() == "a  b /container\n"
    where = machine / "my home"
    assert (machine / "argv").read_text().split("\0")[:-1] == [
        "serve",
        f"{where}/m n",
        "--x",
        f'{{"a":"{where}/it\'s"}}',
    ]


@settings(
    deadline=None,
    derandomize=True,
    max_examples=12,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(launch=launches())
def test_random_docker_lines(machine: Path, launch: Launch) -> None:
    argv, _ = run(machine, FORMATS["docker"].write(launch))
    assert argv == meant(machine, launch)


@settings(
    deadline=None,
    derandomize=True,
    max_examples=12,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    launch=launches().filter(
        lambda launch: launch.entrypoint != "wrapper" and not launch.serve.before
    )
)
def test_random_shell_lines(machine: Path, launch: Launch) -> None:
    env = {
        name: value
        for name, value in launch.env.items()
        if name not in ("PATH", "HOME", "OUT", "_")
    }
    launch = launch.model_copy(update={"env": env})
    argv, seen = run(machine, FORMATS["shell"].write(launch))
    assert argv == in_process(machine, launch)
    assert {name: seen[name] for name in launch.on_host().env} == {
        name: home(machine, v) for name, v in launch.on_host().env.items() if v is not None
    }


def test_bash_accepts_every_line_of_the_catalogue() -> None:
    seen = 0
    for recipe in recipes.all():
        for name in ("docker", "shell"):
            try:
                text = FORMATS[name].write(recipe.launch)
            except SparkbookError:
                continue
            subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=60)
            lines = [line for line in text.splitlines() if "{" not in line and "@sha" not in line]
            assert max(map(len, lines)) <= 100
            seen += 1
    assert seen > 0
