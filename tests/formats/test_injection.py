"""Text that is made to be pasted, given to a real bash: nothing runs but the programs it names.

The machine has stubs for a few programs, and `pwn`, which every hostile value wants to run. What
they are given is written down; no other program is on the path, and no file may appear.
"""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launches import EXAMPLE, launches
from sparkbook.checkpoint.store import Mount, download_lines, repositories
from sparkbook.cli import main
from sparkbook.cluster import sighting
from sparkbook.cluster.rules import FAB
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.formats import FORMATS, docker_run
from sparkbook.host import checks as host_checks
from sparkbook.host.family import HOST
from sparkbook.host.machine import Machine, recorded
from sparkbook.lint import RULES as LINT_RULES
from sparkbook.lint import lint
from sparkbook.logs import diagnose
from sparkbook.recipes import Launch, Recipe, catalogue
from sparkbook.serve import faults
from sparkbook.util.shell_text import quote
from sparkbook.weights import denied, verify

STUBS = ("docker", "vllm", "hf", "rm", "mkdir", "sudo", "sparkbook", "pwn")
PAYLOADS = [
    "$(pwn)",
    "`pwn`",
    "; pwn #",
    "\npwn\n",
    "' ; pwn ; '",
    '" ; pwn ; "',
    "&& pwn",
    "| pwn",
    "> owned",
    "<(pwn)",
    "${x:-$(pwn)}",
    "\\$(pwn)",
    "'\"'\"'; pwn #",
    "$(pwn)Å",
    "\t\t$(pwn)",
    "!!; pwn",
    "\nEOF\npwn\n",
    "~/$(pwn)",
    "a b",
    "é",
    "-x",
    "{a,b}",
    "*",
    "\\",
    "\r",
    "\x1b[2J",
    "$(pwn)\x1b\x05",  # expands the line that stands there
    "\x15pwn\r",  # empties it, and types another
    "\x03pwn\n",
]
hostile = st.lists(st.sampled_from(PAYLOADS), min_size=1, max_size=3).map("".join)
some = settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Box:
    """A folder with stubs in bin/, an empty home, and what was called."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "PATH": str(self.folder / "bin"),
            "HOME": str(self.folder / "home"),
            "LOG": str(self.folder / "log"),
            "USER": "me",
            "LC_ALL": "C",
            "TERM": "dumb",
            "PS1": "$ ",
            "HISTFILE": "/dev/null",
            "INPUTRC": "/dev/null",
        }

    def run(self, text: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            ["/bin/bash"],
            input=text.encode(),
            env=self.env,
            cwd=self.folder / "home",
            capture_output=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> list[list[str]]:
        """What was called since the last look; no file has appeared."""
        log = self.folder / "log"
        entries = log.read_bytes().decode().split("\0\0\n")[:-1] if log.exists() else []
        log.unlink(missing_ok=True)
        assert not list((self.folder / "home").iterdir())
        return [entry.split("\0") for entry in entries]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    for name in STUBS:
        stub = tmp_path / "bin" / name
        stub.write_text(
            '#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" >> "$LOG"\nprintf \'\\0\\n\' >> "$LOG"\n'
        )
        stub.chmod(0o755)
    return Box(tmp_path)


def ran(box: Box, text: str) -> list[list[str]]:
    """The calls of a text that is nothing but commands."""
    done = box.run(text)
    assert done.returncode == 0 and not done.stderr, (text, done.stderr)
    return box.calls()


def test_the_box_sees_an_injection(box: Box) -> None:
    assert ran(box, "docker a$(pwn) 'b c'") == [["pwn"], ["docker", "a", "b c"]]


# ---- recipes


def recipe(**changes: Any) -> Recipe:
    data = {
        "id": "x",
        "title": "T",
        "summary": "S",
        "family": "other",
        "model": {"repo": "org/m", "quantization": {"format": "nvfp4"}},
        "image": {"ref": "nvcr.io/nvidia/vllm:26.04-py3"},
        "sources": [{"id": "me", "title": "t"}],
    }
    return Recipe.model_validate(data | changes)


BAD_KEYS = ["; pwn #", "--x $(pwn)", "--x;pwn", "x", "", "-", "--", "--a b", "--é", "--a\n", "-xy"]


@pytest.mark.parametrize("key", BAD_KEYS)
@pytest.mark.parametrize("place", ["docker", "nvidia", "vllm-recipes-json"])
def test_a_key_of_foreign_that_is_no_option_is_refused(key: str, place: str) -> None:
    options = {key: ["a"]}
    foreign = {place: options if place == "docker" else {"docker": options}}
    with pytest.raises(ValueError, match="is not the name of an option"):
        recipe(foreign=foreign)
    with pytest.raises(SparkbookError, match="is not the name of an option"):
        docker_run.write(EXAMPLE, options)


@pytest.mark.parametrize("kept", [["a"], {"--x": "a"}, {"--x": [5]}])
def test_options_of_foreign_are_lists_of_texts(kept: Any) -> None:
    with pytest.raises(ValueError, match="docker: "):
        recipe(foreign={"nvidia": {"docker": kept}})


def test_other_keys_of_foreign_are_free() -> None:
    assert recipe(foreign={"eugr": {"any key": 1}, "nvidia": {"serve": {}}}).foreign


def test_the_command_refuses_such_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evil.yaml"
    file.write_text(
        'extends: gpt-oss-20b\nid: evil\nforeign: {docker: {"; pwn #": [a], "--x $(pwn)": [""]}}\n'
    )
    for words in (
        ["recipes", "validate", str(file)],
        ["recipes", "show", str(file), "--as", "docker"],
    ):
        monkeypatch.setattr("sys.argv", ["sparkbook", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert ended.value.code in (1, 2) and "docker run" not in shown.out
        assert "'; pwn #' is not the name of an option" in shown.out + shown.err


@pytest.mark.parametrize("option", ["'--foo;pwn;=b'", "'--x $(pwn)' b", "'-$(pwn)' b", "'-;' b"])
def test_a_line_with_an_option_that_is_none_is_refused(option: str) -> None:
    with pytest.raises(SparkbookError, match="is not an option of docker run"):
        docker_run.read(f"docker run -d {option} vllm/vllm-openai:v0.28.0 --model a/b")


@pytest.mark.parametrize(
    "repo",
    ["a/b; pwn #", "a b", "$(pwn)", "`pwn`", "a/b'", "-x", "a\nb", "a\x01", "é", "a|b", "a>b", ""],
)
def test_a_model_has_a_models_name(repo: str) -> None:
    good = {"quantization": {"format": "nvfp4"}}
    for changes in (
        {"model": {"repo": repo, **good}},
        {"draft": {"method": "dflash", "model": repo, "tokens": 3}},
        {"prepare": [{"do": "download", "why": "w", "repo": repo}]},
    ):
        with pytest.raises(ValueError, match=r"hub id|control character"):
            recipe(**changes)


@pytest.mark.parametrize("repo", ["openai/gpt-oss-20b", "tiny-dense", "/models/m", "~/m", "./m"])
def test_names_of_models(repo: str) -> None:
    assert recipe(model={"repo": repo, "quantization": {"format": "nvfp4"}}).model.repo == repo


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\r", "\x7f", "\x9b", "\u202e", "\u2066"])
@pytest.mark.parametrize(
    "changes",
    [
        {"serve": {"args": {"served-model-name": "a{}"}}},
        {"serve": {"args": {"hf-overrides": {"a{}": 1}}}},
        {"env": {"A": "a{}"}},
        {"container": {"volumes": ["a{}:/b"]}},
        {"foreign": {"docker": {"--label": ["a{}"]}}},
    ],
)
def test_a_recipe_holds_no_control_character_anywhere(character: str, changes: dict) -> None:
    text = yaml.safe_dump(changes)
    assert recipe(**yaml.safe_load(text))
    with pytest.raises(ValueError, match="control character"):
        recipe(**_filled(changes, character))


def _filled(value: Any, character: str) -> Any:
    if isinstance(value, dict):
        return {_filled(key, character): _filled(item, character) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, character) for item in value]
    return value.replace("{}", character) if isinstance(value, str) else value


option = st.from_regex(r"\A--[a-z][a-z0-9.-]{0,8}\Z").filter(lambda name: name != "--name")


@some
@given(
    launch=launches(), foreign=st.dictionaries(option, st.lists(hostile, max_size=2), max_size=3)
)
def test_a_docker_line_runs_docker_and_nothing_else(
    box: Box, launch: Launch, foreign: dict[str, list[str]]
) -> None:
    (call,) = ran(box, docker_run.write(launch, foreign))
    assert call[:3] == ["docker", "run", "-d"]
    for name, values in foreign.items():
        assert call.count(name) >= len(values)


@some
@given(values=st.lists(hostile, min_size=8, max_size=8), key=hostile)
def test_a_line_of_hostile_values_runs_docker_and_nothing_else(
    box: Box, values: list[str], key: str
) -> None:
    launch = Launch.model_validate(
        {
            "image": "nvcr.io/nvidia/vllm:26.04-py3",
            "container": {
                "gpus": values[0],
                "network": values[1],
                "user": values[2],
                "runtime": values[3],
                "volumes": [f"{values[4].replace(':', '')}:/m"],
            },
            "env": {"A": values[5]},
            "serve": {"model": values[6], "args": {"x": values[7], "y": {key: [key]}}},
        }
    )
    (call,) = ran(box, FORMATS["docker"].write(launch))
    assert call[0] == "docker" and values[3] in " ".join(call).replace(f"{box.env['HOME']}", "~")
    (call,) = ran(box, FORMATS["shell"].write(launch))
    assert call[:2] == ["vllm", "serve"]


@some
@given(repo=hostile, revision=hostile, folder=hostile)
def test_download_lines_run_hf_and_nothing_else(
    box: Box, repo: str, revision: str, folder: str
) -> None:
    # Past the recipe's own check, which refuses such names.
    step = {"do": "download", "why": "w", "repo": "org/m"}
    asked = recipe(prepare=[step | {"to": "x"}])
    asked.model.repo = asked.prepare[0].repo = repo
    asked.prepare[0].to = folder
    asked.model.revision = revision
    assert [one.repo for one in repositories(asked)] == [repo]
    (line,) = download_lines(asked)
    (call,) = ran(box, line)
    assert call[:2] == ["hf", "download"] and call[2] == repo
    assert call[3:5] == ["--revision", revision]


@some
@given(host=hostile)
@pytest.mark.parametrize("prefix", ["", "~/", "/"])
def test_what_to_do_about_a_volume_runs_nothing_else(box: Box, prefix: str, host: str) -> None:
    place = f"{prefix}{host}"
    path = box.env["HOME"] + place[1:] if place.startswith("~/") else place
    assert ran(box, Mount(place, "/m", False, None, None).todo or "") == [["mkdir", "-p", path]]
    assert ran(box, Mount(place, "/m", True, False, False).todo or "") == [
        ["sudo", "chown", "-R", "me", path]
    ]


# ---- the fixes of findings


def harmless(box: Box, findings: Iterator[Finding]) -> list[str]:
    """The fixes that name a hostile value, none of which runs it. An apostrophe in a sentence would
    hide what follows, and is taken out, as are the backticks around a command.
    """
    fixes = []
    for finding in findings:
        if finding.fix and "pwn" in finding.fix and finding.fix not in fixes:
            box.run(re.sub(r"(?<=[a-z])'(?=s\b)|(?<!\S)`(?=\w)|`(?=[\s.,;]|$)", "", finding.fix))
            assert not [call for call in box.calls() if call[0] == "pwn"], finding.fix
            fixes.append(finding.fix)
    return fixes


def test_fixes_of_the_linter(box: Box) -> None:
    def found() -> Iterator[Finding]:
        for rule in LINT_RULES.values():
            words = rule.example("fails").line.split(" ")
            for at in range(2, len(words)):
                line = " ".join(
                    word + quote("$(pwn)") if number == at else word
                    for number, word in enumerate(words)
                )
                try:
                    yield from lint(line).findings
                except SparkbookError:
                    continue

    assert len(harmless(box, found())) >= 3


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The places of all texts in a value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in pairs:
            yield from leaves(item, (*path, key))


def with_payload(value: Any, path: tuple, payload: str) -> Any:
    if not path:
        return value + payload
    items = dict(value) if isinstance(value, dict) else list(value)
    items[path[0]] = with_payload(items[path[0]], path[1:], payload)
    return items


def test_fixes_of_the_host_check(box: Box) -> None:
    def found() -> Iterator[Finding]:
        for code in (
            "HOST005",
            "HOST025",
            "HOST031",
            "HOST032",
            "HOST033",
            "HOST040",
            "HOST050",
            "HOST051",
            "HOST052",
            "HOST055",
            "HOST057",
            "HOST063",
            "HOST081",
            "HOST084",
        ):
            changed = recorded("healthy").changed(HOST[code].example("fails").change)
            machine = changed.model_dump(mode="json")
            for path in leaves(machine):
                for payload in ("$(pwn)", " '; pwn #"):
                    try:
                        changed = Machine.model_validate(with_payload(machine, path, payload))
                    except ValueError:
                        continue
                    yield from host_checks.judge(changed)

    assert len(harmless(box, found())) >= 16


@pytest.mark.parametrize("payload", ["$(pwn)", "'; pwn #", "`pwn`"])
def test_fixes_about_a_cluster(box: Box, payload: str) -> None:
    seen = sighting.example(
        b={"interface": f"eth{payload}", "pause": False},
        left=(("spark-2", f"name{payload}", "no answer"),),
    )
    assert harmless(box, iter(FAB.judge(seen)))


@pytest.mark.parametrize("payload", ["$(pwn)", "'; pwn #", "`pwn`"])
def test_fixes_about_docker(box: Box, payload: str) -> None:
    def found() -> Iterator[Finding]:
        names = ("port", "name", "platform", "registry", "path", "host", "status", "pin", "signal")
        for rule in faults.DOCK.rules.values():
            yield rule.finding(**{name: f"x{payload}" for name in names if name != "port"})
            text = str(rule.example("fails"))
            yield faults.explain(text, name=payload, path=payload, registry=payload)

    assert len(harmless(box, found())) >= 5


def test_fixes_about_logs(box: Box) -> None:
    log = "\n".join(
        f"ERROR vllm serve: error: argument --{name}: invalid choice: 'x$(pwn)' (choose from"
        " 'a$(pwn)', 'b')"
        for name in ("kv-cache-dtype", "x$(pwn)")
    )
    harmless(box, iter(diagnose(log).findings))


def test_fixes_about_weights(box: Box, tmp_path: Path) -> None:
    folder = tmp_path / "$(pwn); pwn #'"
    folder.mkdir()
    (folder / "model$(pwn).safetensors").write_bytes(b"torn")
    step = {"do": "download", "why": "w", "repo": "org/m", "to": str(folder)}
    (finding,) = verify(recipe(prepare=[step]), tmp_path, progress=False).findings
    assert ran(box, finding.fix or "") == [
        ["rm", str(folder / "model$(pwn).safetensors")],
        ["sparkbook", "weights", "fetch", "x"],
    ]
    refused = denied(PermissionError(13, "no", "x"), folder).finding
    assert ran(box, refused.fix or "") == [["sudo", "chown", "-R", "me", str(folder)]]


# ---- typed into a terminal


def typed(box: Box, text: str) -> list[list[str]]:
    """The calls of a text that goes into an interactive bash in the C locale, key by key."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(box.folder / "home")
        shell = ["bash", "--norc", "--noprofile", "-i"]
        os.execve("/bin/bash", shell, box.env)
    try:
        _until(terminal, b"$ ")
        os.write(terminal, text.encode() + b"\recho do''ne\r")
        _until(terminal, b"done\r\n")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(terminal)
    return box.calls()


def _until(terminal: int, mark: bytes) -> None:
    shown, end = b"", time.monotonic() + 60
    while mark not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 65536)
    assert mark in shown, shown


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_terminal_takes_no_value_for_a_key(box: Box, payload: str) -> None:
    launch = EXAMPLE.model_copy(
        update={
            "env": {"A": payload},
            "serve": EXAMPLE.serve.model_copy(update={"args": {"x": payload + "!"}}),
        }
    )
    for text in (FORMATS["docker"].write(launch).rstrip("\n"), f"docker {quote(payload)}"):
        (call,) = typed(box, text)
        assert call[0] == "docker"


def test_recipes_of_the_catalogue_run_docker(box: Box) -> None:
    contained = [one for one in catalogue.all() if one.image is not None]
    for one in contained:
        (call,) = ran(box, FORMATS["docker"].write(one))
        assert call[0] == "docker"
    assert len(contained) > 20
