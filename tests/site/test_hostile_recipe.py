"""A recipe with a payload in every field: its site holds the payload as text, and runs none of it."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import sparkbook
import yaml
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats import FORMATS
from sparkbook.recipes.schema import Recipe
from sparkbook.runner.project import here
from sparkbook.site import present, vendor

if TYPE_CHECKING:
    from chromium import Tab

SCRIPT = "</script><script>window.PWN=1</script><img src=x onerror=window.PWN=1>"
PAYLOADS = (
    f"x\n```\n::::\n:::::\n\n{SCRIPT}\n\n```{{raw}} html\n{SCRIPT}\n```\n",
    f"x` | ``{SCRIPT} {{raw}}`x` [x](javascript:window.PWN=1) **",
    f'x"><{SCRIPT[1:]}',
    "x'onmouseover='window.PWN=1",
    "javascript:window.PWN=1",
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all texts in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        if isinstance(item, str):
            yield (*path, key)
        elif isinstance(item, dict | list):
            yield from leaves(item, (*path, key))


def spoilt(data: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The recipe with a payload wherever schema and writers let one through, and in how many
    places.
    """
    count = 0
    for path in list(leaves(data)):
        for payload in PAYLOADS:
            trial = copy.deepcopy(data)
            at = trial
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = payload
            try:
                recipe = Recipe.model_validate(trial)
                for form in present.forms(recipe):
                    FORMATS[form].write(recipe)
            except (ValueError, SparkbookError):
                continue
            data, count = trial, count + 1
            break
    return data, count


class Scan(HTMLParser):
    """Collects what would run: scripts with the payload, handlers, addresses that are scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self._script: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = dict(attrs) if tag == "script" else None
        for name, value in attrs:
            runs = name.startswith("on") or (value or "").strip().lower().startswith("javascript:")
            if runs and "PWN" in (value or ""):
                self.bad.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        # JSON in a script element is data; the browser runs only the other kinds.
        runs = self._script is not None and "json" not in (self._script.get("type") or "")
        if runs and "PWN" in data:
            self.bad.append(data[:200])


@pytest.fixture(scope="module")
def hostile_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    source = recipes.load("gemma-4-31b-it-nvfp4").model_dump(mode="json", exclude_none=True)
    source["id"] = "hostile"
    del source["variants"]  # checked when one is asked for
    data, count = spoilt(source)
    assert count > 40, count
    assert data["id"] == "hostile"
    # A catalogue is part of the library: a checkout with a copy of it has one recipe more.
    vendor.ensure(here())
    checkout = root / "checkout"
    library = shutil.copytree(
        Path(sparkbook.__file__).parent,
        checkout / "lib/sparkbook",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for entry in here().root.iterdir():
        if entry.name != "lib":
            (checkout / entry.name).symlink_to(entry)
    (library / "recipes/catalogue/hostile.yaml").write_text(yaml.safe_dump(data), "utf-8")
    (root / "book").mkdir()
    tests = Path(__file__).parent
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib, sys; from small_books import make_book;"
            " make_book(pathlib.Path(sys.argv[1]), ('hostile',), problems=True, naming='hostile')",
            str(root / "book"),
        ],
        env={**os.environ, "PYTHONPATH": f"{checkout / 'lib'}:{tests}:{tests.parent}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return root / "book/_build/html"


@pytest.mark.site
def test_no_page_holds_a_payload_as_markup(hostile_site: Path) -> None:
    shown = 0
    for page in hostile_site.rglob("*.html"):
        text = page.read_text("utf-8")
        shown += text.count("window.PWN")
        scan = Scan()
        scan.feed(text)
        assert not scan.bad, (page.name, scan.bad)
    assert shown > 20, "the payloads are shown as text"


@pytest.mark.browser
def test_no_script_of_it_runs(hostile_site: Path, tab: Tab) -> None:
    folders = ("book", "notebooks", "models", "", "rules", "flags")
    pages = [page for name in folders for page in sorted((hostile_site / name).glob("*.html"))]
    assert len(pages) >= 20 and hostile_site / "models/hostile.html" in pages
    # A page's images have failed, and its scripts have run, when it has loaded. A search goes on.
    addresses = [(page.as_uri(), 100) for page in pages]
    search = (hostile_site / "search.html").as_uri()
    addresses += [(f"{search}?q={quote(words)}", 700) for words in ("hostile", *PAYLOADS)]
    for address, rest_ms in addresses:
        tab.open(address, 1280, "light", rest_ms)
        assert json.loads(tab.evaluate("JSON.stringify(window.PWN ?? null)")) is None, address
