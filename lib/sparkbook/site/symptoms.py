"""The table of all log signatures by symptom, and the guide's eleven symptoms
(`book/data/guide_symptoms.yaml`).
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from sparkbook.logs.signatures import signatures
from sparkbook.site import book_data
from sparkbook.util.markup import without_fields


@dataclass(frozen=True)
class SymptomTable:
    """All signatures, by what the reader sees; shows itself as a table that a page can search."""

    rows: tuple[tuple[str, str, str, str, str], ...]

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th>{name}</th>"
            for name in ("what the log says", "what it is", "what to do", "kind", "code")
        )
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        return (
            '<div class="symptoms"><input type="search" placeholder="a word of your log"'
            ' aria-label="search the symptoms" oninput="const w=this.value.toLowerCase();for(const'
            " r of this.parentNode.querySelectorAll('tbody"
            " tr'))r.hidden=!r.textContent.toLowerCase().includes(w)\"><div"
            ' class="sb-scroll"><table class="table'
            f' sb-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>'
        )

    def __repr__(self) -> str:
        return "\n".join(
            f"{code}  {symptom[:70]:<70}  {kind}" for symptom, _, _, kind, code in self.rows
        )

    def search(self, word: str) -> SymptomTable:
        """Return the rows that hold a word, whatever its case."""
        return SymptomTable(
            tuple(row for row in self.rows if word.lower() in " ".join(row).lower())
        )


def symptoms() -> SymptomTable:
    """Return the table of all signatures, faults first."""
    order = {"cause": 0, "consequence": 1, "state": 2, "noise": 3}
    rows = []
    for signature in sorted(signatures(), key=lambda s: order[s.role]):
        line = signature.fails.replace("\r", "\n").splitlines()[-1]
        symptom = line if len(line) <= 160 else f"{line[:159]}…"
        rows.append(
            (
                symptom,
                without_fields(signature.title),
                without_fields(signature.fix),
                signature.kind or "",
                signature.code,
            )
        )
    return SymptomTable(tuple(rows))


@dataclass(frozen=True)
class _GuideSymptom:
    symptom: str
    advice: str
    now: str
    signatures: tuple[str, ...] = ()


GUIDE_ROWS = tuple(
    (one.symptom, one.advice, one.now, ", ".join(one.signatures))
    for one in book_data.load("guide_symptoms", list[_GuideSymptom])
)
"""The guide's symptoms: what it advises, what was found about that, and the signatures that tell
the causes apart.
"""
