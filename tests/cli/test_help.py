"""The help of every verb: short imperative summaries, plain words, a table of exit codes."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sparkbook.cli
import typer.core
import typer.main
from command_line import run
from sparkbook.cli.verbs import VERBS

MODULES = sorted(Path(sparkbook.cli.__file__).parent.glob("*.py"))
ARCHAIC = re.compile(
    r"\b(anew|for ever|in vain|of late|beside|whereof|whose|where|stands?|tells?|told|speaks?|"
    r"spoken|gone on|is none|begun|look(?:ed)? at|comes? to)\b",
    re.IGNORECASE,
)
"""Words that STYLE.md bans."""


def commands(group: typer.core.TyperGroup, *words: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every verb with its words, groups included."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield (*words, name), command
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, *words, name)


EVERY = dict(commands(typer.main.get_command(sparkbook.cli.app)))


def texts(words: tuple[str, ...]) -> Iterator[str]:
    """What the help of a verb says: its description, and each visible parameter."""
    command = EVERY[words]
    yield command.help
    yield from (command.epilog or "").splitlines()
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            yield parameter.help or ""


def test_every_verb_of_the_table_is_there_and_listed_whole() -> None:
    shown = run("--help").stdout
    assert [words[0] for words in EVERY if len(words) == 1] == list(VERBS)
    assert "..." not in shown.partition("Commands:")[2], "a summary is too long for the list"
    assert {path.stem for path in MODULES} - {
        "__init__",
        "verbs",
        "options",
        "output",
        "servers",
    } == set(VERBS.values())


def test_a_group_lists_its_verbs_whole() -> None:
    groups = [words for words, command in EVERY.items() if hasattr(command, "list_commands")]
    assert len(groups) > 5
    for words in groups:
        assert "..." not in run(*words, "--help").stdout.partition("Commands:")[2], words


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_summary_is_one_imperative_line_and_the_exit_codes_end_the_help(
    words: tuple[str, ...],
) -> None:
    summary = inspect.cleandoc(EVERY[words].help).partition("\n\n")[0]
    assert len(summary) <= 80 and "\n" not in summary
    assert summary[0].isupper() and summary.endswith(".") and not summary.split()[0].endswith("s")
    if not isinstance(EVERY[words], typer.core.TyperGroup):
        shown = run(*words, "--help").stdout
        table = shown.rpartition("Exit codes:\n")[2].splitlines()
        assert [row.split()[0] for row in table[:1]] == ["0"] and any(
            row.split()[0] == "2" for row in table
        )


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_help_is_plain_english(words: tuple[str, ...]) -> None:
    for text in texts(words):
        assert not ARCHAIC.search(text), text
        assert (
            not text
            or text[0].isupper()
            or not text[0].isalpha()
            or text.startswith(("auto", "native", "sm_90", "vLLM", ".env"))
        ), text


def test_no_message_of_the_command_uses_a_banned_word() -> None:
    for module in MODULES:
        for text in re.findall(r'SparkbookError\(\s*f?"([^"]*)"', module.read_text("utf-8")):
            assert not ARCHAIC.search(text), (module.name, text)


def test_modules_are_small() -> None:
    assert max(len(module.read_text("utf-8").splitlines()) for module in MODULES) < 500
