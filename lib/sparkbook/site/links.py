"""Links that nobody writes: wherever a page names a flag, a rule, a log signature or a recipe, the
name leads to its page.

Notebooks, prose and generated pages name them as code (`--max-model-len`) or by their codes
(FLAG101); a flag that has a page is recognized without the marks of code as well, and gets them.
The links are put in when the site is assembled, so that a notebook reads the same with and without
a site around it. Blocks of code, headings and what is a link already are left alone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from sparkbook.rules import every

_FENCE = re.compile(r"^\s*(?P<mark>`{3,}|~{3,})")
_CODE = r"`(?P<code>[^`\n]+)`"
_LINK = r"!?\[[^\]]*\]\([^)]*\)|\{[\w:-]+\}`[^`]*`|<a\b.*?</a>|<[^>\n]+>|\([\w-]+\)="
_NAME = r"(?<![\w./#-])(?P<rule>[A-Z]{2,6}\d{3})(?![\w-])"
_BARE = r"(?<![\w`-])(?P<flag>--[a-z][a-z0-9-]*[a-z0-9])(?![\w-])"
_PIECE = re.compile(f"{_LINK}|{_CODE}|{_NAME}|{_BARE}")
_NAMED = re.compile(f"{_NAME}|{_BARE}")
_FINDING = re.compile(r'<div class="finding .*?</div>', re.DOTALL)
_WORD = re.compile(r"(?P<url>https?://[^\s<]+[^\s<.,;:)])|(?<![\w-])--[a-z][a-z0-9-]*(?![\w])")
_CLOSED = {"a", "pre", "script", "style", "button", "summary", "option", "svg", "title"}


class Linker:
    """Knows the address of every name.

    `addresses`: name, as a page writes it (`--max-model-len`, `FLAG101`, a recipe's id), to its
        address below the site's root.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses

    def address(self, code: str) -> str | None:
        """Return where a piece of code leads: itself a name, or a flag with its value."""
        flag = re.match(r"--(no-)?(?P<name>[a-z][a-z0-9-]*)", code)
        return self._addresses.get(code) or (
            self._addresses.get(f"--{flag['name']}") if flag else None
        )

    def markdown(self, text: str, page: str) -> str:
        """Return a page's Markdown with its links; `page` is the page's own address, to which no
        name is linked.
        """
        up = "../" * page.count("/")
        lines, fence = [], ""
        for line in text.split("\n"):
            mark = _FENCE.match(line)
            if fence:
                fence = (
                    ""
                    if mark and mark["mark"].startswith(fence) and line.strip() == mark["mark"]
                    else fence
                )
            elif mark:
                fence = mark["mark"]
            elif not line.startswith(("#", "    ", "\t")):
                line = _PIECE.sub(lambda piece: self._piece(piece, up, page), line)
            lines.append(line)
        return "\n".join(lines)

    def _piece(self, piece: re.Match[str], up: str, page: str) -> str:
        code, rule = piece["code"] or piece["flag"], piece["rule"]
        address = self.address(code) if code else self._addresses.get(rule) if rule else None
        if address is None or (address.partition("#")[0] == page and "#" not in address):
            return piece[0]
        shown = f"<code>{_escaped(code)}</code>" if code else rule
        return f'<a href="{up}{address}">{shown}</a>'

    def html(self, text: str, page: str) -> str:
        """Return a piece of HTML with its links."""
        text = _FINDING.sub(lambda found: _finding(found[0], "../" * page.count("/")), text)
        up = "../" * page.count("/")
        inside: list[str] = []
        parts: list[str] = []
        for part in re.split(r"(<[^>]+>)", text):
            if tag := re.match(r"<(/?)([a-zA-Z][\w-]*)", part):
                name = tag[2].lower()
                if name in _CLOSED:
                    if not tag[1]:
                        inside.append(name)
                    elif inside:
                        inside.pop()
            elif part and not inside:
                part = self._text(part, up, page, parts[-1:] == ["<code>"])
            parts.append(part)
        return "".join(parts)

    def _text(self, text: str, up: str, page: str, code: bool) -> str:
        def linked(name: str, address: str | None) -> str:
            if address is None or (address.partition("#")[0] == page and "#" not in address):
                return name
            return f'<a href="{up}{address}">{name}</a>'

        def named(name: str) -> str:
            if not name.startswith("--") or code:
                return linked(name, self._addresses.get(name))
            return (
                f"<code>{linked(name, self.address(name))}</code>" if self.address(name) else name
            )

        if code and (address := self.address(text)):
            return linked(text, address)
        return _NAMED.sub(lambda match: named(match[0]), text)

    def notebook(self, notebook: dict[str, Any], page: str) -> None:
        """Put the links into a notebook's text and into the tables that its cells wrote."""
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = self.markdown(cell["source"], page)
                continue
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                # A notebook's file may hold a text as the list of its lines.
                data.update(
                    {
                        kind: "".join(data[kind])
                        for kind in ("text/markdown", "text/html")
                        if isinstance(data.get(kind), list)
                    }
                )
                if isinstance(data.get("text/markdown"), str):
                    data["text/markdown"] = self.markdown(data["text/markdown"], page)
                if isinstance(data.get("text/html"), str):
                    data["text/html"] = self.html(data["text/html"], page)


def _finding(text: str, up: str) -> str:
    """Return a finding as the library writes it, with its addresses as links and its options as
    code; a notebook by itself shows them as text.
    """
    text = re.sub(
        r"<dt>why</dt><dd>(rules/[\w-]+\.html#(\w+))</dd>",
        lambda why: _why(why[1], why[2], up),
        text,
    )
    parts = re.split(r"(<[^>]+>)", text)
    inside = ""
    for i, part in enumerate(parts):
        if i % 2:
            inside = part if part in ("<code>", "<strong>") or part.startswith("<a ") else ""
        elif not inside:
            part = re.sub(r"`([^`]+)`", r"<code>\1</code>", part)
            pieces = re.split(r"(<code>.*?</code>)", part)
            pieces[::2] = [_WORD.sub(_marked, piece) for piece in pieces[::2]]
            parts[i] = "".join(pieces)
    return "".join(parts)


def _why(address: str, code: str, up: str) -> str:
    return (
        f'<dt>why</dt><dd><a href="{up}{address}">{code.upper()}: what it catches, with'
        " examples</a></dd>"
    )


def _marked(word: re.Match[str]) -> str:
    return f'<a href="{word[0]}">{word[0]}</a>' if word["url"] else f"<code>{word[0]}</code>"


def _escaped(text: str) -> str:
    return html.escape(text).replace("|", "&#124;")


def addresses(flags: Mapping[str, Any], recipes: Mapping[str, str]) -> dict[str, str]:
    """Return the address of every flag, rule, signature and recipe that has a page. `recipes`: id
    to the name of its page.
    """
    found = {f"--{name}": f"flags/{name}.html" for name in flags}
    found |= {one.code: one.address for one in every()}
    return found | {name: f"models/{page}.html" for name, page in recipes.items()}
