"""The laboratory of chapter 14: claims about NVFP4 out of `book/claims/nvfp4.yaml`, and what its cells find of them.

    lab = Laboratory()
    lab.check({"nvfp4-cores": (True, "OMMA for sm_121f")})

A cell says whether it found what is claimed; the verdict that follows has to be the file's, or the cell fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from IPython.display import Markdown

from sparkbook.errors import SparkbookError
from sparkbook.kernels import build
from sparkbook.tables import table

MIME = "application/vnd.sparkbook.claims+json"
"""What an executed notebook keeps of a check: a list of `{id, verdict}`."""


class Checked:
    """What a cell found, as a table, and as data that stays in the notebook."""

    def __init__(self, rows: list[tuple[str, str, str, str]]) -> None:
        """`rows`: id, statement, verdict, evidence."""
        self.rows = rows

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        shown = table(["claim", "verdict", "found"], [[statement, f"**{verdict}**", found] for _, statement, verdict, found in self.rows])
        return {
            "text/markdown": shown.data,
            "text/plain": "\n".join(f"{name}: {verdict}" for name, _, verdict, _ in self.rows),
            MIME: [{"id": name, "verdict": verdict} for name, _, verdict, _ in self.rows],
        }


class Laboratory:
    """The claims of one file, and which of them were checked."""

    def __init__(self, file: Path | None = None) -> None:
        """`file` is the register's; left out: the checkout's. Raises SparkbookError if it is not there."""
        file = file or build.sources().parent / "book" / "claims" / "nvfp4.yaml"
        try:
            said = yaml.safe_load(file.read_text("utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise SparkbookError(f"{file} can't be read: {str(error)[:120]}") from None
        self.claims: dict[str, dict[str, Any]] = {claim["id"]: {"source": said["source"], **claim} for claim in said["claims"]}
        self.checked: dict[str, str] = {}

    def _claim(self, name: str) -> dict[str, Any]:
        if name not in self.claims:
            raise SparkbookError(f"no claim is called '{name}'")
        return self.claims[name]

    def figure(self, name: str, which: str | None = None) -> float:
        """A claim's figure as a number. Raises SparkbookError where it is a range, or there is none."""
        ends = self.ends(name, which)
        if ends[0] != ends[1]:
            raise SparkbookError(f"the figure of {name} is a range: use its ends")
        return ends[0]

    def ends(self, name: str, which: str | None = None) -> tuple[float, float]:
        """Lower and upper end of a claim's figure."""
        claim = self._claim(name)
        text = claim.get("figures", {}).get(which) if which else claim.get("figure")
        if text is None:
            raise SparkbookError(f"claim {name} has no figure{f' {which}' if which else ''}")
        found = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", str(text).partition("/")[0])]
        return min(found), max(found)

    def check(self, found: Mapping[str, tuple[bool, str]]) -> Checked:
        """Takes what a cell found of some claims: whether it is as claimed, and the evidence in words.

        Raises:
            SparkbookError: the verdict that follows is not the file's.
        """
        rows = []
        for name, (held, evidence) in found.items():
            claim = self._claim(name)
            # What does not hold today may have held once: the file says so, with its source.
            verdict = "holds" if held else claim["verdict"] if claim["verdict"] in ("expired", "false") else "false"
            if verdict != claim["verdict"]:
                raise SparkbookError(f"claim {name}: the register says '{claim['verdict']}', the cell found '{verdict}' ({evidence})")
            self.checked[name] = verdict
            rows.append((name, claim["statement"], verdict, evidence))
        return Checked(rows)

    @property
    def unchecked(self) -> list[str]:
        """Executable claims that no cell has checked."""
        return [name for name, claim in self.claims.items() if claim.get("executable") and name not in self.checked]

    def verdicts(self, document: str) -> Markdown:
        """Every claim of a document, whose title begins so: verdict, how it was found, and whether a cell here decided it."""
        rows = [
            [
                claim["statement"],
                f"**{self.checked.get(name, claim['verdict'])}**",
                "cell" if name in self.checked else "read",
                claim["check"],
            ]
            for name, claim in self.claims.items()
            if claim["source"]["title"].startswith(document)
        ]
        return table(["claim", "verdict", "by", "how"], rows)
