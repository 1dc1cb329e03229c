"""Shell text: every word comes through bash as it was, and no other module builds a command."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkbook.errors import SparkbookError
from sparkbook.util import shell_text
from sparkbook.util.shell_text import (
    HOME,
    USER,
    ansi_text,
    assignment,
    command_line,
    export_line,
    mark_home,
    quote,
    script_line,
)

LIBRARY = Path(shell_text.__file__).parents[1]


def test_ordinary_words_stand_as_they_are() -> None:
    assert command_line("docker", "rm", "-f", "a.b_c-1") == "docker rm -f a.b_c-1"
    assert command_line("hf", "download", "org/m", "--local-dir", mark_home("~/vllm/m")) == (
        "hf download org/m --local-dir ~/vllm/m"
    )
    assert command_line("sudo", "chown", "-R", USER, mark_home("~")) == 'sudo chown -R "$USER" ~'
    assert command_line("chmod", 600, Path("/a b")) == "chmod 600 '/a b'"
    assert export_line("A", "b c") == "export A='b c'" and assignment("A", "~/b") == "A=~/b"
    assert assignment("A", "~/b", tilde=False) == 'A="$HOME"/b'
    assert script_line("tar", "-C", mark_home("~/a b")) == """tar -C "$HOME"'/a b'"""
    assert quote("") == "''"


def test_a_tilde_that_nobody_marked_is_a_letter() -> None:
    assert command_line("rm", "~/x") == "rm '~/x'"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a\tb", r"$'a\tb'"),
        ("a\nb", r"$'a\nb'"),
        ("é", r"$'\xc3\xa9'"),
        ("it's!\\\x1b", r"$'it\x27s\x21\\\x1b'"),
        (f"{HOME}/\x01", r"~/$'\x01'"),
    ],
)
def test_what_a_terminal_takes_for_a_key_is_escaped(word: str, text: str) -> None:
    assert quote(word) == text
    assert quote("a\nb", reader="lines") == "'a\nb'" and quote("é", reader="script") == "'é'"


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "\0$PATH\0"])
def test_what_no_line_can_hold_is_refused(word: str) -> None:
    for write in (quote, command_line, script_line):
        with pytest.raises(SparkbookError, match=r"NUL|UTF-16"):
            write(word)


@pytest.mark.parametrize("name", ["", "a b", "A;x", "1A", "A=", "é", "A\n"])
def test_a_variable_has_a_variables_name(name: str) -> None:
    with pytest.raises(SparkbookError, match="environment variable"):
        assignment(name, "x")


WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), min_size=1
)


@settings(deadline=None, derandomize=True, max_examples=60, database=None)
@given(words=WORDS)
def test_bash_reads_the_words_that_were_meant(words: list[str]) -> None:
    for write in (command_line, script_line):
        text = "printf '%s\\0' " + write(*words)
        if write is command_line:
            assert text.isascii() and text.isprintable()
        done = subprocess.run(
            ["bash", "-c", text], capture_output=True, check=True, timeout=60, env={}
        )
        assert done.stdout.decode().split("\0")[:-1] == words


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (r"a\tb\x41\101\u00e9\U0001F600\'\\\e", "a\tbAAé😀'\\\x1b"),
        (r"\xc3\xa9", "é"),
        (r"\cx", None),
        (r"\xff", None),
        (r"\0", None),
        (r"\UFFFFFFFF", None),
    ],
)
def test_reading_ansi_quotes(inside: str, text: str | None) -> None:
    assert ansi_text(inside) == text


# ---- nobody else puts commands together

PROGRAMS = (
    "apt|apt-get|bash|cat|chmod|chown|cp|curl|docker|echo|env|ethtool|exec|export|git|hf|ip|kill|"
    "kubectl|ln|make|mkdir|mv|nvidia-smi|pip|podman|python3?|ray|rm|rsync|scp|sh|sparkbook|ss|ssh|"
    "ssh-copy-id|sudo|sysctl|systemctl|tar|tee|touch|unset|uv|vllm|wget"
)
COMMAND = re.compile(rf"(?<![\w./-])(?:{PROGRAMS}) [^`\0\n)]*\0")
"""A program's name, a blank, and a value before what ends a command in a sentence."""

EXCEPTIONS = {
    ("bench/exchange.py", "sparkbook \0"): "a version, no command",
    ("cli/__init__.py", "sparkbook \0"): "a version, no command",
    ("formats/__init__.py", "expected docker run"): "a message about what was read",
    ("host/rules/image.py", "docker image inspect: \0"): "evidence: what the command printed",
    ("lint/rules/run.py", "The server listens on"): "a sentence about docker",
    ("lint/rules/img.py", "docker run --gpus all"): "an example, of constants",
    ("logs/memory_figures.py", "Stop the container (docker"): "a sentence; its values are numbers",
    ("plan/samples.py", "sparkbook plan"): "an example, of constants",
    ("runner/batch_workers.py", "no node of the cluster has"): "its value is a constant",
    ("runner/batch_workers.py", "\0 is not used: its sparkbook"): "a version, no command",
    ("serve/remote.py", "ssh ended with status"): "a message, no command",
}
"""Where a program's name stands before a value and no command is made for anybody to paste."""


def skeleton(node: ast.AST | None, constants: dict[str, str]) -> str:
    """The text that an expression builds, with NUL for each value."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.JoinedStr(values=values):
            return "".join(skeleton(value, {}) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return skeleton(left, {}) + skeleton(right, {})
        case ast.BinOp(left=left, op=ast.Mod()):
            return skeleton(left, constants) + "\0"
        case ast.Call(func=ast.Attribute(value=text, attr="format")):
            return re.sub(r"\{[^{}]*\}", "\0", skeleton(text, constants))
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
            args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
        ):
            return between.join(skeleton(part, {}) for part in parts)
    return "\0"


def built(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text that is built of constants and values: line and skeleton."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Call):
            text = skeleton(node, constants)
            if text.strip("\0"):
                yield node.lineno, text


def commands(tree: ast.Module) -> list[tuple[int, str]]:
    return [(line, text) for line, text in built(tree) if COMMAND.search(text)]


@pytest.mark.parametrize(
    "code",
    [
        'f"rm {x}"',
        'f"{a}; rm -r {x}"',
        'f"Try: (docker rm -f {x})"',
        '"sudo kill " + x',
        '"hf download %s" % x',
        '"ssh {} true".format(x)',
        '" ".join(["docker", "rm", x])',
        'T = "export A={a}"\nT.format(a=x)',
        'f"a" f" `rm {x}`"',
    ],
)
def test_the_test_sees_commands(code: str) -> None:
    assert commands(ast.parse(code))


@pytest.mark.parametrize(
    "code", ['f"{rm} {x}"', 'f"`docker ps` shows {x}"', 'command_line("rm", x)', 'f"form {x}"']
)
def test_the_test_sees_nothing_else(code: str) -> None:
    assert not commands(ast.parse(code))


def test_no_command_is_put_together_elsewhere() -> None:
    unused, wrong = set(EXCEPTIONS), []
    for file in sorted(set(LIBRARY.rglob("*.py")) - {Path(shell_text.__file__)}):
        name = file.relative_to(LIBRARY).as_posix()
        text = file.read_text("utf-8")
        for line, command in commands(ast.parse(text)):
            known = [key for key in EXCEPTIONS if key[0] == name and key[1] in command]
            unused -= set(known)
            if not known:
                wrong.append(f"{name}:{line}: {command!r}")
        if re.search(r"shlex\.(quote|join)|from shlex import", text):
            wrong.append(f"{name}: shlex")
    assert not wrong, "use sparkbook.util.shell_text:\n" + "\n".join(wrong)
    assert not unused, f"exceptions that nothing needs: {sorted(unused)}"
