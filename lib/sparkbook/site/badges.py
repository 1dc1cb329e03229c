"""The badges under a page's heading: where its numbers come from, when it ran, and with what."""

from __future__ import annotations

import datetime
import html
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sparkbook.runner import fingerprint, notebooks

if TYPE_CHECKING:
    from pathlib import Path

    from sparkbook.runner.pages import Page

MADE = "@made@"
"""In a generated page's badges: the day on which it came out as it is."""

_FINDING = re.compile(r'class="finding finding-(error|warning|info)"')


def of_page(page: Page, notebook: dict[str, Any]) -> str:
    """Return what a page's numbers were taken on, when, with which vLLM, and how many findings it
    shows, as a line of HTML.
    """
    made = page.made()
    facts: list[tuple[str, str]] = [("figures", ", ".join(_taken_on(page, notebook)))]
    if date := made.get("date"):
        facts.append(("run", date))
    else:
        facts.append(("run", "failed"))
    if version := _vllm(page, notebook):
        facts.append(("vLLM", version))
    facts.append(("findings", _findings(page, notebook)))
    return line(facts)


def line(facts: Iterable[tuple[str, str]]) -> str:
    """Return badges as HTML, each a name and its value."""
    items = "".join(f"<li><span>{name}</span> {html.escape(text)}</li>" for name, text in facts)
    return f'<ul class="sb-badges" aria-label="About this page">{items}</ul>'


def counted(severities: Iterable[str]) -> str:
    """`2 errors, 1 warning`, or `none`."""
    found = list(severities)
    parts = []
    for severity in ("error", "warning", "info"):
        if count := found.count(severity):
            parts.append(f"{count} {severity}{'s' if count > 1 and severity != 'info' else ''}")
    return ", ".join(parts) or "none"


class Made:
    """The day on which this checkout first built each generated page as it is now; a page that
    comes out the same again keeps its day.

    So a build that changes nothing leaves the site as it is, also on the next day. A fresh checkout
    knows no earlier day. Where a page holds `MADE`, its day is put in.
    """

    def __init__(self, file: Path) -> None:
        """`file`: where the days are kept from one build to the next."""
        self._file = file
        try:
            kept = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            kept = None
        known = kept.items() if isinstance(kept, dict) else ()
        self._before: dict[str, dict[str, str]] = {
            name: entry for name, entry in known if isinstance(entry, dict)
        }
        self._now: dict[str, dict[str, str]] = {}

    def put(self, name: str, text: str) -> str:
        """Return the page with its day."""
        digest, known = fingerprint.text(text), self._before.get(name, {})
        date = known.get("date") if known.get("fingerprint") == digest else None
        self._now[name] = {"fingerprint": digest, "date": date or datetime.date.today().isoformat()}
        return text.replace(MADE, self._now[name]["date"])

    def save(self) -> None:
        """Keep the days of the pages that there are now."""
        self._file.write_text(json.dumps(self._now, indent=1, sort_keys=True) + "\n", "utf-8")


def not_run(notebook: dict[str, Any]) -> bool:
    return any(notebooks.NOT_RUN in cell["source"] for cell in notebook["cells"])


def _taken_on(page: Page, notebook: dict[str, Any]) -> list[str]:
    """Return what its metadata says (`{"sparkbook": {"taken_on": ["H100"]}}`), else what follows
    from the engine that it needs.
    """
    if stated := notebook["metadata"].get("sparkbook", {}).get("taken_on"):
        return list(stated)
    if page.engine == "none":
        return ["published"]
    return ["a plan, no engine started"] if not_run(notebook) else ["this build's CPU engine"]


def _vllm(page: Page, notebook: dict[str, Any]) -> str | None:
    if page.title is not None:
        from sparkbook import recipes

        image = recipes.load(page.values["recipe_id"]).image
        return (image.vllm or "not stated").removeprefix("==") if image else None
    if page.engine != "none" and not not_run(notebook):
        return _pinned_engine()
    from sparkbook import releases

    return f"up to {releases.table()['releases'][-1]}"


def _pinned_engine() -> str | None:
    from sparkbook.runner.project import here

    pins = here().root / "requirements-engine.txt"
    found = (
        re.search(r"^vllm(?:-cpu)?==(\S+)", pins.read_text("utf-8"), re.MULTILINE)
        if pins.is_file()
        else None
    )
    return found[1] if found else None


def _findings(page: Page, notebook: dict[str, Any]) -> str:
    if page.title is not None:
        from sparkbook import lint, recipes

        found = [
            finding.severity
            for finding in lint.lint(recipes.load(page.values["recipe_id"])).findings
        ]
    else:
        shown = [
            output.get("data", {}).get("text/html", "")
            for cell in notebook["cells"]
            for output in cell.get("outputs", [])
        ]
        found = [severity for text in shown for severity in _FINDING.findall("".join(text))]
    return counted(found)
