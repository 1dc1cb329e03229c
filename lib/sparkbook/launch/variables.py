"""The variables that a script itself sets, filled in without running anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sparkbook.errors import SparkbookError
from sparkbook.launch.lexer import Token, lex, line_of, passed_on
from sparkbook.util.secret import is_secret
from sparkbook.util.shell_text import HOME

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*|\d)(:?[-=])(.*)\}", re.DOTALL | re.ASCII)
_IF_SET = re.compile(r"\$\{([A-Za-z_]\w*):?\+.*\}", re.DOTALL | re.ASCII)
_PLAIN = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})", re.ASCII)
_DECLARE = {"export", "readonly", "local", "declare", "typeset"}
_LONGEST = 100_000
"""Characters of a word with its variables filled in, above which a text is hostile."""


@dataclass
class Variables:
    """The values that a script gives its variables: written out as `NAME=value`, an array, or a
    default in `${NAME:-default}`. What `${NAME:+words}` adds is left out, for the script does not
    set NAME. An assignment inside a branch or a loop counts as made. What
    comes from a command or from the caller stays marked.

    Attributes:
        remark: called with code, message and evidence for each variable that is filled in.
        known: by name, the words that it stands for.
    """

    remark: Callable[[str, str, str | None], None]
    known: dict[str, list[str]] = field(default_factory=dict)

    def fill(self, tokens: list[Token], text: str) -> list[Token]:
        """Return a script's tokens with the variables filled in.

        Args:
            tokens: of the script, from `lex`.
            text: the script.

        Raises:
            SparkbookError: a word grows beyond all measure.
        """
        result: list[Token] = []
        at, fresh = 0, True
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if token.operator:
                fresh = token.text not in ("<", ">", ">>", "<<<")
                result.append(token)
                continue
            words = self._words(token, text)
            if fresh and len(words) == 1 and (match := ASSIGNMENT.match(words[0])):
                if words[0] == match[0] and _opens_array(token, tokens[at : at + 1]):
                    values, at = self._array(tokens, at + 1, text)
                    self.known[match[0][:-1]] = values
                    end = tokens[min(at, len(tokens)) - 1].end
                    result.append(Token(words[0], token.start, end))
                    continue
                self._assign(match[0][:-1], words[0][len(match[0]) :])
            elif fresh and token.text in ("source", "."):
                # What is empty so far is there for that file to fill.
                self.known = {name: value for name, value in self.known.items() if any(value)}
                fresh = False
            elif token.text not in _DECLARE:
                fresh = False
            filled = words != [token.text]
            result += [Token(word, token.start, token.end, filled=filled) for word in words]
        return result

    def _assign(self, name: str, value: str) -> None:
        if passed_on(value) != name:
            self.known[name] = [value]

    def _array(self, tokens: list[Token], at: int, text: str) -> tuple[list[str], int]:
        """Return the words of an array up to its closing parenthesis, and the index after it."""
        values: list[str] = []
        while at < len(tokens) and not (tokens[at].operator and tokens[at].text == ")"):
            if not tokens[at].operator:
                values += self._words(tokens[at], text)
            at += 1
        return values, at + 1

    def _words(self, token: Token, text: str) -> list[str]:
        """Return the words that a token becomes. Unquoted, a value is split at its blanks, as a
        shell splits it.
        """
        parts = token.text.split("\0")
        if len(parts) == 1:
            return [token.text]
        alone = len(parts) == 3 and not parts[0] and not parts[2]
        if_set = _IF_SET.fullmatch(parts[1]) if alone and text[token.start] != '"' else None
        if if_set and if_set[1] not in self.known:
            self.remark("CONV208", f"${if_set[1]} was taken as not set.", None)
            return []
        quoted = '"' in text[token.start : token.end]
        result = ""
        for index, part in enumerate(parts):
            if index % 2 == 0:
                result += part
                continue
            value = self._value(part)
            if value is None:
                result += f"\0{part}\0"
                continue
            array = "[" in part
            if not array:
                value = value[:1] or [""]
            if len(result) + sum(map(len, value)) > _LONGEST:
                raise SparkbookError(
                    f"line {line_of(text, token.start)} grows beyond 100 kB when its variables are"
                    " filled in"
                )
            if alone and array:
                return value
            if alone and not quoted and re.search(r"\s", value[0]):
                return value[0].split() or [""]
            result += " ".join(value)
        return [result]

    def _value(self, spelled: str) -> list[str] | None:
        """Return the words that an expansion stands for, or None where only a shell knows."""
        if spelled == "$HOME":
            return None
        if match := _PLAIN.fullmatch(spelled):
            name = match[1] or match[2]
            return self._before(name) if name in self.known else None
        if not (match := _DEFAULT.fullmatch(spelled)):
            return None
        name, kind, default = match.groups()
        if name in self.known and (self.known[name] != [""] or ":" not in kind):
            return self._before(name)
        value = None if is_secret(name) else _literal(default)
        if value is None:
            return None
        self.remark("CONV208", f"${name} was filled in with its default.", default)
        if "=" in kind:
            self.known[name] = [value]
        return [value]

    def _before(self, name: str) -> list[str]:
        self.remark("CONV208", f"${name} was filled in from a line before.", None)
        return self.known[name]


def _opens_array(token: Token, following: list[Token]) -> bool:
    return any(
        other.operator and other.text == "(" and other.start == token.end for other in following
    )


def _literal(default: str) -> str | None:
    """Return a default's text; None where it is empty or holds what only a shell fills in."""
    try:
        words = [token.text for token in lex(default) if not token.operator]
    except SparkbookError:
        return None
    value = " ".join(words)
    return None if not default or "\0" in value.replace(HOME, "") else value
