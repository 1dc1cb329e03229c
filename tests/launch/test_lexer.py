"""The lexer against bash itself: how a line without expansions splits into words."""

import os
import subprocess

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sparkbook.errors import SparkbookError
from sparkbook.launch.lexer import lex

# Without $ and
# ` (expansions), * ? [ (file names), { } (braces), ~ and ! (home, history), and the operators,
# which end a command.
plain = st.sampled_from(
    [
        "a",
        "b",
        "-",
        "=",
        ":",
        ",",
        ".",
        "/",
        "%",
        "@",
        "+",
        "^",
        "_",
        "0",
        "]",
        "é",
        "日",
        " ",
        "  ",
        "\t",
        "\\\n",
    ]
)
quoting = st.sampled_from(
    [
        "'",
        '"',
        "\\",
        "#",
        "''",
        '""',
        "\\'",
        '\\"',
        "\\ ",
        "\\\\",
        " #",
        '"a b"',
        "'a \"b'",
        "'\\'",
        '"\\a"',
        '"\\\\"',
        '"a\\\nb"',
    ]
)
lines = st.lists(st.one_of(plain, quoting), min_size=1, max_size=14).map("".join)


def bash_words(batch: list[str]) -> list[list[str] | None]:
    """The words of each line as bash splits it, None where bash calls it a syntax error: one
    process for the batch.
    """
    script = (
        'while IFS= read -r -d "" line; do\n  if (eval "set -- $line") 2>/dev/null; then eval "set'
        ' -- $line"; printf "%s\\0" "$#" "$@"; else printf "%s\\0" error; fi\ndone\n'
    )
    result = subprocess.run(
        ["bash", "--norc", "-c", script],
        input="".join(f"{line}\0" for line in batch).encode(),
        capture_output=True,
        check=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
    fields = result.stdout.decode().split("\0")
    found: list[list[str] | None] = []
    at = 0
    for _ in batch:
        if fields[at] == "error":
            found.append(None)
            at += 1
        else:
            count = int(fields[at])
            found.append(fields[at + 1 : at + 1 + count])
            at += 1 + count
    return found


@settings(deadline=None, derandomize=True, max_examples=20, database=None, phases=[Phase.generate])
@given(batch=st.lists(lines, min_size=50, max_size=50))
def test_words_are_bashs_words(batch: list[str]) -> None:
    for line, words in zip(batch, bash_words(batch), strict=True):
        try:
            tokens = lex(line)
        except SparkbookError as error:
            # What bash takes and the lexer refuses on purpose: a backslash at the very end, or
            # before blanks that end a line.
            assert words is None or "backslash" in str(error), line
            continue
        if any(token.operator for token in tokens):
            assert "\n" in line, line  # a new line ended the command
        else:
            assert [token.text for token in tokens] == words, line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a'b c'\"d e\"f\\ g", ["ab cd ef g"]),
        ("a#b #c", ["a#b"]),
        ("'' \"\"", ["", ""]),
        ("a\\\nb", ["ab"]),
        ('"\\a\\""', ['\\a"']),
    ],
)
def test_bash_itself_agrees_with_these(line: str, words: list[str]) -> None:
    assert bash_words([line]) == [words] and [token.text for token in lex(line)] == words
