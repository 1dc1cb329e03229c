"""What a published page must keep to: its links lead somewhere, and it loads nothing from
elsewhere.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADING = dict.fromkeys(
    ("script", "img", "iframe", "source", "video", "audio", "embed"), "src"
) | {"object": "data"}
_LOADING_RELS = {
    "stylesheet",
    "preload",
    "modulepreload",
    "icon",
    "manifest",
    "prefetch",
    "preconnect",
    "dns-prefetch",
}
_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["'](?P<url>(?:https?:)?//[^"']+)""")
_CSS_LOAD = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?P<url>(?:https?:)?//[^"')\s]+)""")


class _Page(HTMLParser):
    """What one page links to, loads, and can be linked at."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.without_alt: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and _LOADING_RELS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        elif tag in _LOADING and given.get(_LOADING[tag]):
            self.loads.append(given[_LOADING[tag]])
        if tag == "img" and not given.get("alt") and "aria-hidden" not in given:
            self.without_alt.append(given.get("src", ""))


def check(site: Path) -> list[str]:
    """Return what is wrong with a built site, one sentence each: links, anchors, outside loads,
    pictures without a text.
    """
    texts = {
        path.resolve(): path.read_text("utf-8")
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    }
    if not texts:
        return [f"{site.name} contains no page"]
    pages = {}
    for path, text in texts.items():
        pages[path] = _Page()
        pages[path].feed(text)
    root = site.resolve()
    problems = []
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        problems += [
            f"{name}: {problem}"
            for link in page.links + page.loads
            if (problem := _broken(link, path, pages))
        ]
        outside = [load for load in page.loads if urlsplit(load).netloc] + [
            match["url"] for match in _IMPORT.finditer(texts[path])
        ]
        problems += [f"{name}: loads {url} from another site" for url in outside]
        problems += [
            f"{name}: the picture {Path(source).name[:60]} has no alternative text"
            for source in page.without_alt
        ]
    for path in sorted(site.rglob("*.css")):
        found = _CSS_LOAD.findall(path.read_text("utf-8", errors="replace"))
        problems += [
            f"{path.relative_to(site).as_posix()}: loads {url} from another site" for url in found
        ]
    return list(dict.fromkeys(problems))


def _broken(link: str, page: Path, pages: dict[Path, _Page]) -> str | None:
    """Return what is wrong with one link, if it stays inside the site."""
    url = urlsplit(link)
    if url.scheme or url.netloc or link in ("", "#"):
        return None
    target = (page.parent / unquote(url.path)).resolve() if url.path else page
    if not target.exists():
        return f"the link {link} leads nowhere"
    if url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
        return f"the link {link} leads to a page without that anchor"
    return None
