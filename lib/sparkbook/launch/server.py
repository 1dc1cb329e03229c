"""The command that starts vLLM: `vllm serve`, `python -m`, a shell that runs one of them, or the
words after an image that runs it by itself.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from sparkbook.launch.commands import after, before, split
from sparkbook.launch.lexer import lex
from sparkbook.launch.line import Line, Word
from sparkbook.launch.variables import ASSIGNMENT, Variables
from sparkbook.recipes.names import entrypoint_of
from sparkbook.releases import images

SHELLS = {"bash", "sh", "dash", "zsh", "ash"}
PROGRAM = re.compile(r"vllm|python[\d.]*|bash|sh|dash|zsh|ash|exec|env")
"""Programs that are known to start a server, or to run one that does."""
MENTIONS = {"echo", "printf", "grep", "which", "alias", "#", "man"}
"""Commands that only mention what follows them."""
_PREFIXES = {
    "exec",
    "env",
    "sudo",
    "nohup",
    "time",
    "command",
    "if",
    "while",
    "then",
    "do",
    "!",
    "{",
}
_API_SERVER, _MAIN = "vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"


def program_of(path: str) -> str:
    """Return the name of a program without its folder."""
    return PurePosixPath(path).name


def container(line: Line, words: list[Word]) -> None:
    """Take the words after the image, by the line's entry point and by what the image runs."""
    assert line.image is not None
    # A list as the entry point begins with words of its own.
    words = line.words = [*line.words, *words]
    line.runs = entrypoint_of(line.image)
    name = program_of(line.entry) if line.entry else line.entry
    if name:
        _entry(line, name, words)
    elif line.entry is None and _vllms_words(line, words):
        line.runs, line.serve = "command", words[1:]
    elif line.runs == "wrapper" and name is None:
        return
    elif line.runs == "vllm-serve" and name is None:
        _arguments(line, words)
    elif _model_first(line, words):
        # No known image, but the words are a model and options: it runs vllm serve by itself.
        line.runs, line.serve = "vllm-serve", words
    elif not command(line, words):
        line.nothing_serves = " ".join(word.shown for word in words[:2]) or "nothing"


def _entry(line: Line, name: str, words: list[Word]) -> None:
    """Take the words given to an entry point of the line: an unknown script runs its arguments."""
    if not PROGRAM.fullmatch(name):
        command(line, words)
    elif not command(line, [Word(name), *words]):
        line.nothing_serves = f"{name} {' '.join(word.shown for word in words[:2])}".strip()


def _arguments(line: Line, words: list[Word]) -> None:
    """Take the words given to an image that runs `vllm serve`."""
    if [word.text for word in words[:2]] == ["vllm", "serve"]:
        line.doubled = (words[0], words[1])
        line.serve = words[2:]
    elif words and words[0].text == "vllm":
        line.doubled = (words[0], words[0])
    else:
        line.serve = words


def _vllms_words(line: Line, words: list[Word]) -> bool:
    """Return whether the words are a command of vllm, which is then the image's entry point: a
    script of its own takes no model on its line.
    """
    texts = [word.text for word in words]
    return texts[:1] == ["serve"] and (line.runs != "wrapper" or "--model" in texts)


def _model_first(line: Line, words: list[Word]) -> bool:
    first = words[0].text if words else ""
    return (
        line.entry is None
        and images.find(line.image or "") is None
        and (first.startswith("--") or "/" in first)
        and not first.startswith("/")
    )


def command(line: Line, words: list[Word]) -> bool:
    """Take a command that serves, and tell whether it is one; if it is none, the line stays as it
    was.
    """
    rest = list(words)
    assigned = []
    while rest and (rest[0].text in _PREFIXES or ASSIGNMENT.match(rest[0].text)):
        word = rest.pop(0)
        if ASSIGNMENT.match(word.text):
            assigned.append(word)
    if not rest or not _serves(line, rest):
        return False
    for word in assigned:
        line.set_env(word)
    return True


def _serves(line: Line, words: list[Word]) -> bool:
    texts = [word.text for word in words]
    program = program_of(texts[0])
    if program in SHELLS:
        return _shell(line, words)
    if program == "vllm" and texts[1:2] == ["serve"]:
        line.serve = words[2:]
        return True
    if program.startswith("python") and PROGRAM.fullmatch(program) and _module(line, words):
        return True
    return _behind(line, words)


def _module(line: Line, words: list[Word]) -> bool:
    """Take `python -m MODULE`, python's own options skipped."""
    texts = [word.text for word in words]
    at = 1
    while texts[at : at + 1] and re.fullmatch(r"-[A-Zbdiqsuv]+", texts[at]):
        at += 2 if texts[at] in ("-X", "-W") else 1
    if texts[at : at + 1] != ["-m"] or texts[at + 1 : at + 2] not in ([_API_SERVER], [_MAIN]):
        return False
    after = at + 2
    if texts[at + 1] == _MAIN:
        if texts[after : after + 1] != ["serve"]:
            return False
        after += 1
    line.serve, line.api_server = words[after:], True
    return True


def _behind(line: Line, words: list[Word]) -> bool:
    """Take a server behind a program that starts it, such as srun, docker exec or a script."""
    texts = [word.text for word in words]
    if texts[0] in MENTIONS:
        return False
    for at in range(1, len(texts) - 1):
        if program_of(texts[at]) == "vllm" and texts[at + 1] == "serve":
            line.serve = words[at + 2 :]
        elif not (program_of(texts[at]) in SHELLS and _shell(line, words[at:])):
            continue
        line.remark(
            "CONV209",
            "The words before vllm serve are left out.",
            " ".join(word.shown for word in words[:at])[:60],
        )
        return True
    return False


def _shell(line: Line, words: list[Word]) -> bool:
    """Take a shell with a script, as `bash -lc SCRIPT`."""
    rest, has_script = words[1:], False
    while rest and re.fullmatch(r"[-+][a-z]+|--(login|norc|noprofile)", rest[0].text):
        flags = rest.pop(0).text
        has_script |= "c" in flags and not flags.startswith("--")
        if flags.endswith("o") and rest:
            rest.pop(0)
    if not rest or not has_script:
        return False
    if not inner(line, rest[0].text):
        return False
    if len(rest) > 1:
        line.breaks(
            f"A shell takes one script after -c, and '{rest[1].shown}' follows it.",
            "Put the whole script in quotes.",
        )
    return True


def inner(line: Line, text: str, outer: bool = False) -> bool:
    """Take a script that ends in a server, and tell whether it does.

    Args:
        line: the line that the script belongs to; it stays as it was if the script serves nothing.
        text: the script.
        outer: whether the caller's own shell runs it, and not a container's.

    Raises:
        SparkbookError: a quote or an expansion is not closed.
    """
    shared = Line()
    tokens = Variables(shared.remark).fill(lex(text, outer), text)
    script = split(tokens, text, False, shared)
    for at, each in enumerate(script):
        if command(line, each.words):
            line.remarks += shared.remarks
            line.mistakes += shared.mistakes
            each.remark_on(line)
            before(line, script[:at])
            after(line, script[at + 1 :])
            return True
    return False


def run_in(image: str | None, text: str) -> Line:
    """Read the command that a tool runs in an image.

    Args:
        image: the image; None for none.
        text: the command, a shell script.

    Raises:
        SparkbookError: a quote or an expansion is not closed.
    """
    line = Line(form="docker" if image is not None else "shell", text=text)
    if image is not None:
        line.set_image(Word(image, place="container"))
        line.runs = entrypoint_of(image)
        if line.runs == "wrapper":
            line.words = [Word(token.text) for token in lex(text) if not token.operator]
            return line
    if not inner(line, text, outer=True):
        line.nothing_serves = line.nothing_serves or (" ".join(line.before)[:60] or "nothing")
    return line
