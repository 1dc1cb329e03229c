"""The commands of a shell script, and what of them has to run before the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from sparkbook.launch.lexer import Token, line_of, show
from sparkbook.launch.line import Line, Remark, Word
from sparkbook.launch.variables import ASSIGNMENT

_SEPARATORS = ("&&", ";", ";;", "\n")
_OPENING = {"(", "&", "|", ")"}
_KEYWORDS = {"set", ":", "then", "fi", "do", "done", "else", "{", "}", "export"}


_CUT = re.compile(r"[ \t]+#[^\n]*\\[ \t]*(?=\n|$)")
"""A comment that ends in a backslash, behind a command."""


@dataclass(frozen=True)
class Command:
    """One command of a script.

    Attributes:
        tokens: its words and operators, redirections and pipes included.
        separator: what separates it from the next command: `&&`, `;` or a new line.
        script: the text that the tokens' positions refer to.
        outer: whether positions in the script are positions in the user's text.
    """

    tokens: list[Token]
    separator: str
    script: str
    outer: bool

    @property
    def text(self) -> str:
        """The command as it was written."""
        return self.script[self.tokens[0].start : self.tokens[-1].end]

    @property
    def first_line(self) -> int:
        """Number of its first line, from 1."""
        return line_of(self.script, self.tokens[0].start)

    @property
    def cut(self) -> Remark | None:
        """What is wrong where a comment ends the command, together with the backslash that was
        meant to continue it; None without one.
        """
        end = self.tokens[-1].end
        if not _CUT.match(self.script, end):
            return None
        return Remark(
            None,
            f"The comment in line {line_of(self.script, end)} ends the command: the backslash"
            " after it is part of the comment.",
            fix="Remove the comment, or put it in a line above the command.",
        )

    @cached_property
    def parts(self) -> tuple[list[Word], list[Token], str | None]:
        """Return its words without redirections, what follows an operator that ends it, and a
        placeholder in angle brackets where it holds one.
        """
        words: list[Token] = []
        placeholder = None
        at = 0
        while at < len(self.tokens) and self.tokens[at].text in _OPENING:
            at += 1
        while at < len(self.tokens):
            token = self.tokens[at]
            at += 1
            if not token.operator:
                words.append(token)
            elif token.text == "<" and (inside := self._placeholder(at)):
                placeholder = placeholder or f"<{inside.text}>"
                words.append(inside)
                at += 2
            elif token.text in (">", ">>", "<", "<<<"):
                if words and words[-1].text.isdigit() and words[-1].end == token.start:
                    words.pop()
                at += 1 + (self.tokens[at : at + 1] != [] and self.tokens[at].text == "&")
            elif token.body is None:
                return self._placed(words), self.tokens[at - 1 :], placeholder
        return self._placed(words), [], placeholder

    def _placeholder(self, at: int) -> Token | None:
        """Return the word of a placeholder such as <MODEL>, whose `<` is before the index."""
        if at + 1 >= len(self.tokens):
            return None
        inside, closing = self.tokens[at], self.tokens[at + 1]
        adjacent = inside.start == self.tokens[at - 1].end and closing.start == inside.end
        return inside if not inside.operator and closing.text == ">" and adjacent else None

    def _placed(self, tokens: list[Token]) -> list[Word]:
        """Return words with those positions that can be changed in the user's text."""
        starts = [token.start for token in tokens]
        words = []
        for token in tokens:
            movable = self.outer and not (
                token.filled and (token.text.startswith("-") or starts.count(token.start) > 1)
            )
            words.append(Word(token.text, token.start, token.end) if movable else Word(token.text))
        return words

    @property
    def words(self) -> list[Word]:
        """Its words without redirections."""
        return self.parts[0]

    def remark_on(self, line: Line) -> None:
        """Note on the line of this command what is joined to it, and a placeholder in it."""
        _, rest, placeholder = self.parts
        if self.cut:
            line.mistakes.append(self.cut)
        if placeholder:
            line.breaks(
                f"{placeholder} in line {self.first_line} is a placeholder, which a shell takes for"
                " a file.",
                "Write its value.",
            )
        joined = " ".join(token.text for token in rest if not token.operator)
        if any(not token.operator for token in rest):
            line.remark("CONV209", "What is joined to the start is left out.", show(joined)[:60])


def split(tokens: list[Token], text: str, outer: bool, line: Line) -> list[Command]:
    """Return the commands of a script. A separator without a command before it breaks the line."""
    commands: list[Command] = []
    current: list[Token] = []
    for token in tokens:
        if not token.operator or token.text not in _SEPARATORS:
            current.append(token)
        elif current and not (token.text == "\n" and current[-1].operator and _joins(current[-1])):
            commands.append(Command(current, token.text, text, outer))
            current = []
        elif token.text not in ("\n", ";;") and not current:
            line.breaks(
                f"A command is missing before {token.text} in line {line_of(text, token.start)}.",
                f"Write it, or remove {token.text}.",
            )
    return [*commands, Command(current, "", text, outer)] if current else commands


def _joins(token: Token) -> bool:
    """Return whether an operator lets the command go on in the next line."""
    return token.text in ("|", "||", "|&")


def before(line: Line, commands: list[Command]) -> None:
    """Take the commands that run before the server: variables into the environment, the others in
    a chain of `&&`.
    """
    chained: list[str] = []
    assigned: list[str] = []
    joined = True
    for command in commands:
        words = [token.text for token in command.tokens]
        if words[0] == "export" and all(ASSIGNMENT.match(word) for word in words[1:]):
            for token in command.tokens[1:]:
                line.set_env(Word(token.text))
        elif all(ASSIGNMENT.match(word) for word in words):
            assigned.append(command.text)
        elif any(token.body is not None for token in command.tokens):
            line.remark(
                "CONV209",
                "A file written from a here-document is left out.",
                show(command.text)[:60],
            )
        else:
            if joined:
                chained.append(command.text)
            else:
                chained[-1] = f"{chained[-1]}; {command.text}"
            joined = command.separator == "&&"
    if chained and not joined:
        # After ; or a new line the server starts whether or not that command worked; `true` keeps
        # this meaning in a chain of &&.
        chained[-1] += "; true"
    line.setup = [Word(text) for text in [*_used(assigned, chained), *chained]] + line.setup


def _used(assigned: list[str], chained: list[str]) -> list[str]:
    """Return the assignments that a command before the server reads."""
    used = []
    for command in assigned:
        name = re.escape(command.partition("=")[0])
        read = any(re.search(rf"\$\{{?{name}\b", other) for other in chained)
        if read and not re.search(r"[\n&|;<>()]", command):
            used.append(command)
    return used


def after(line: Line, commands: list[Command]) -> None:
    """Note what follows the server. A word with a dash as the first one means a lost backslash."""
    lost = commands and commands[0].tokens[0].text.startswith("-")
    if lost and line.broken is None:
        line.breaks(
            f"Line {commands[0].first_line - 1} ends the command, and more follows.",
            "End the line with a backslash.",
        )
    left_out(line, commands)


def left_out(line: Line, commands: list[Command]) -> None:
    """Note each command of the script that is no part of the start."""
    for command in commands:
        words = [token.text for token in command.tokens if not token.operator]
        plain = all("=" in word for word in words) or words[0] in _KEYWORDS
        if words and not plain and not words[0].startswith("-"):
            line.remark(
                "CONV209",
                "The script does something else, which is left out.",
                show(" ".join(words))[:60],
            )
