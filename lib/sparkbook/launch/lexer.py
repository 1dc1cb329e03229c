"""Shell words: taking a command line apart as bash would, without running anything.
`sparkbook.util.shell_text` puts one together.

The caller's home folder is the one expansion that a launch knows: a string that begins with `~/`
means it. On a command line it is written so that the shell expands it (`~/vllm`, `"$HOME"/vllm`),
and read back from there. Whatever else a shell would fill in (`$PORT`, `$(pwd)`) is not known here,
so reading it is an error that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sparkbook.errors import SparkbookError
from sparkbook.util.shell_text import HOME, MARK, ansi_text

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = ("&&", "||", ";;", ">>", "<<<", "<<", "|&", ";", "&", "|", ">", "<", "(", ")", "\n")
_HEREDOC = re.compile(r"""<<(-?)[ \t]*(?:'([^'\n]*)'|"([^"\n]*)"|\\?([^\s;&|<>()'"`$\\]+))""")
_ANSI_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*+)'", re.DOTALL)
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True)
class Token:
    """A word or an operator of a command line.

    Attributes:
        text: the word without its quotes, expansions enclosed by NUL characters; an operator as it
            is.
        start, end: its position in the text.
        operator: whether it is an operator such as `&&` or the end of a line.
        body: the lines of a here-document, with its `<<` and its delimiter as one operator.
        filled: whether a variable of the script was filled in.
    """

    text: str
    start: int
    end: int
    operator: bool = False
    body: str | None = None
    filled: bool = False


def line_of(text: str, position: int) -> int:
    """Return line number of a position, from 1."""
    return text.count("\n", 0, position) + 1


def lex(text: str, outer: bool = True, expand: bool = True) -> list[Token]:
    """Return words and operators of a command line, comments and continued lines taken out.

    Args:
        text: the command line.
        outer: whether the caller's own shell reads it. In a script that a container's shell reads,
            `~` and `$HOME` mean another home.
        expand: whether a shell reads it at all; compose takes a string apart like one, and leaves
            `$` and `~` alone.

    Raises:
        SparkbookError: a quote or an expansion is not closed, or a backslash is followed by blanks
            where a line should continue.
    """
    return _Lexer(text, outer, expand).tokens()


class _Lexer:
    def __init__(self, text: str, outer: bool, expand: bool) -> None:
        self.text = text
        self.outer = outer
        self.expand = expand
        self.at = 0

    def tokens(self) -> list[Token]:
        result: list[Token] = []
        pending: list[tuple[int, bool, str]] = []
        while self._at_token():
            start = self.at
            if (
                self.text.startswith("<<", start)
                and not self.text.startswith("<<<", start)
                and (match := _HEREDOC.match(self.text, start))
            ):
                self.at = match.end()
                pending.append(
                    (len(result), bool(match[1]), match[2] or match[3] or match[4] or "")
                )
                result.append(Token(match[0], start, self.at, operator=True, body=""))
            elif self.text[start] == "\n" and pending:
                result.append(Token("\n", start, start + 1, operator=True))
                self.at += 1
                for index, indented, delimiter in pending:
                    result[index] = replace(result[index], body=self._heredoc(indented, delimiter))
                pending = []
            elif operator := next(
                (op for op in _OPERATORS if self.text.startswith(op, start)), None
            ):
                self.at += len(operator)
                result.append(Token(operator, start, self.at, operator=True))
            else:
                result.append(Token(self._word(), start, self.at))
        return result

    def _heredoc(self, indented: bool, delimiter: str) -> str:
        """Return the lines up to the one that is the delimiter; as in bash, the end of the text
        ends it as well.
        """
        lines: list[str] = []
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            line = self.text[self.at : end]
            self.at = min(end + 1, len(self.text))
            if (line.lstrip("\t") if indented else line) == delimiter:
                break
            lines.append(line.lstrip("\t") if indented else line)
        return "\n".join(lines)

    def _at_token(self) -> bool:
        """Skip blanks and comments. Return whether a token follows."""
        while self.at < len(self.text):
            rest = self.text[self.at : self.at + 2]
            if rest[0] in " \t\r":
                self.at += 1
            elif rest == "\\\n":
                self.at += 2
            elif rest[0] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _word(self) -> str:
        start, parts = self.at, []
        assigns = _ASSIGNED.match(self.text, start)
        if tilde := self._tilde():
            parts.append(tilde)
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;&|<>()":
            char = self.text[self.at]
            if char == "'":
                parts.append(self._until("'"))
            elif char == '"':
                parts.append(self._double_quoted())
            elif char == "\\":
                parts.append(self._escaped())
            elif char in "$`" and self.expand:
                parts.append(self._expansion())
            elif char == MARK:
                end = self.text.find(MARK, self.at + 1)
                if end < 0:
                    raise SparkbookError(
                        f"line {line_of(self.text, self.at)} holds a NUL character: take it out"
                    )
                parts.append(self.text[self.at : end + 1])
                self.at = end + 1
            else:
                parts.append(char)
                self.at += 1
                # In a word that looks like an assignment bash expands a tilde after the first = and
                # after every colon.
                if (
                    char in "=:"
                    and assigns
                    and self.at >= assigns.end()
                    and (tilde := self._tilde("/:"))
                ):
                    parts.append(tilde)
        return "".join(parts)

    def _tilde(self, ends: str = "/") -> str | None:
        """Return a tilde that bash expands: up to the next slash, blank or operator there is
        nothing quoted.
        """
        if self.text[self.at : self.at + 1] != "~":
            return None
        match = re.compile(rf"~([^\s/:'\"\\$`;&|<>()]*)(?=[{ends}\s;&|<>()]|$)").match(
            self.text, self.at
        )
        if not match or not self.expand:
            return None
        self.at = match.end()
        return HOME if self.outer and not match[1] else f"{MARK}{match[0]}{MARK}"

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        while self.text.count(MARK, self.at, max(end, 0)) % 2:  # inside what a shell fills in
            end = self.text.find(quote, end + 1)
        if end < 0:
            raise SparkbookError(
                f"the quote {quote} in line {line_of(self.text, self.at)} is not closed:"
                f" {self._near()}"
            )
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def _near(self) -> str:
        return repr(self.text[self.at : self.at + 30].split("\n")[0])

    def _escaped(self) -> str:
        following = self.text[self.at + 1 : self.at + 2]
        if following in (" ", "\t") and re.compile(r"[ \t\r]*(\n|$)").match(self.text, self.at + 1):
            raise SparkbookError(
                f"line {line_of(self.text, self.at)} ends in a backslash and blanks, so it does not"
                " continue: delete the blanks"
            )
        if following == "\r" and self.text[self.at + 2 : self.at + 3] == "\n":
            raise SparkbookError(
                f"line {line_of(self.text, self.at)} ends as on Windows (CR LF): convert the text"
                " to plain line feeds"
            )
        if not following:
            raise SparkbookError(
                f"line {line_of(self.text, self.at)} ends in a backslash and nothing follows: the"
                " rest is missing"
            )
        self.at += 2
        return "" if following == "\n" else following

    def _double_quoted(self) -> str:
        start = self.at
        parts: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(parts)
            if (
                char == "\\"
                and (following := self.text[self.at + 1 : self.at + 2])
                and following in '$`"\\\n'
            ):
                parts.append("" if following == "\n" else following)
                self.at += 2
            elif char in "$`" and self.expand:
                parts.append(self._expansion(quoted=True))
            elif char == MARK:
                end = max(self.text.find(MARK, self.at + 1), self.at)
                parts.append(self.text[self.at : end + 1])
                self.at = end + 1
            else:
                parts.append(char)
                self.at += 1
        self.at = start
        raise SparkbookError(
            f'the quote " in line {line_of(self.text, start)} is not closed: {self._near()}'
        )

    def _expansion(self, quoted: bool = False) -> str:
        """Return what begins with a dollar or a backtick: its spelling between marks; a lone dollar
        is itself.
        """
        text, start = self.text, self.at
        if text[start] == "`":
            spelled = f"`{self._until('`')}`"
        elif match := re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])").match(text, start):
            self.at, spelled = match.end(), match[0]
        elif text.startswith("${", start):
            self.at, spelled = self._closing("{", "}")
        elif text.startswith("$(", start):
            self.at, spelled = self._closing("(", ")")
        elif text.startswith("$'", start) and not quoted:
            return self._ansi_quoted()
        else:
            self.at += 1
            return "" if text.startswith('$"', start) and not quoted else "$"
        if spelled in ("$HOME", "${HOME}"):
            return HOME if self.outer else f"{MARK}${{HOME}}{MARK}"
        return f"{MARK}{spelled}{MARK}"

    def _ansi_quoted(self) -> str:
        """Take `$'…'`, in which a backslash escapes; its text, or its spelling between marks."""
        match = _ANSI_QUOTED.match(self.text, self.at)
        if match is None:
            raise SparkbookError(
                f"the quote $' in line {line_of(self.text, self.at)} is not closed: {self._near()}"
            )
        self.at = match.end()
        text = ansi_text(match[1])
        return f"{MARK}{match[0]}{MARK}" if text is None else text

    def _closing(self, opening: str, closing: str) -> tuple[int, str]:
        depth = 0
        for at in range(self.at + 1, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                return at + 1, self.text[self.at : at + 1]
        raise SparkbookError(
            f"the {self.text[self.at : self.at + 2]} in line {line_of(self.text, self.at)} is not"
            f" closed: {self._near()}"
        )


def show(text: str) -> str:
    """Return a word as it was written, for messages."""
    return text.replace(MARK, "")


def passed_on(text: str) -> str | None:
    """Return the variable's name, where a word is nothing but `$NAME` or `${NAME}`, a check or an
    empty default included.
    """
    match = re.fullmatch(
        rf"{MARK}\$({_NAME.pattern}|\{{({_NAME.pattern})(:?\?[^}}]*|:?-)?\}}){MARK}", text
    )
    return (match[2] or match[1]) if match else None


def literal(text: str) -> str:
    """Return a word's value as a launch holds it: the home folder as `~`.

    Raises:
        SparkbookError: the shell would fill in something else, or a `~` is quoted and so would not
            be expanded.
    """
    if text.startswith("~") and text[1:2] in ("", "/"):
        raise SparkbookError(
            f"the ~ of '{show(text)}' is not expanded here (quoted, or after --option=):"
            f" write $HOME{text[1:]}"
        )
    if text == HOME or text.startswith(f"{HOME}/"):
        text = "~" + text.removeprefix(HOME)
    if MARK in text:
        what = text.split(MARK)[1]
        raise SparkbookError(
            f"'{show(text)}' holds {what}, which only your shell can fill in: write its value out"
        )
    return text
