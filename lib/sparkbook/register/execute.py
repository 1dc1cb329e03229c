"""Claims executed: by their own tests, or by the cells of a chapter, and what a build reports of
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.register.claim_model import Claim, Verdict
from sparkbook.register.claim_tests import run
from sparkbook.register.lookup import every, get, registers
from sparkbook.util.markup import code, linked

MIME = "application/vnd.sparkbook.claims+json"
"""What `check` leaves in the executed notebook: a list of `{id, verdict}`."""


@dataclass(frozen=True)
class Outcome:
    """What executing a claim gave.

    Attributes:
        claim: the claim.
        verdict: what follows from the execution.
        evidence: what was found, then and now.
    """

    claim: Claim
    verdict: Verdict
    evidence: tuple[str, ...]


class Outcomes:
    """Outcomes as a table, and as data that stays in the executed notebook."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)

    def __repr__(self) -> str:
        return "\n".join(f"{one.claim.id}: {one.verdict}" for one in self.outcomes)

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes([*self.outcomes, *other.outcomes])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        rows = [
            (
                code(one.claim.statement),
                verdict_badge(one.verdict),
                "<br>".join(code(line) for line in one.evidence),
            )
            for one in self.outcomes
        ]
        return {
            "text/plain": repr(self),
            "text/html": _table(("claim", "verdict", "what was found"), rows),
            MIME: [{"id": one.claim.id, "verdict": one.verdict} for one in self.outcomes],
        }


def execute(claim: Claim) -> Outcome:
    """Execute a claim's tests under the release of its time, then under the newest one.

    `holds`: all of today's come out; `not-testable` if they could only have refuted the claim.
        `expired`: those of its time did, today's do
    not. `false`: neither.

    Raises:
        SparkbookError: the claim has no tests.
    """
    from sparkbook import releases

    if claim.test is None:
        raise SparkbookError(
            f"claim {claim.id} has no tests: {claim.executed_by or 'nothing'} executes it"
        )
    (register,) = [
        one for one in registers().values() if any(mine.id == claim.id for mine in one.claims)
    ]
    newest = releases.table()["releases"][-1]
    then = [run(test, register.release) for test in claim.test.then]
    now = [run(test, newest) for test in claim.test.now]
    if all(held for held, _ in now):
        verdict: Verdict = "not-testable" if claim.test.only_refutes else "holds"
    elif then and all(held for held, _ in then):
        verdict = "expired"
    else:
        verdict = "false"
    return Outcome(claim, verdict, tuple(dict.fromkeys(evidence for _, evidence in [*then, *now])))


def check(name: str, held: bool | None = None, evidence: str = "") -> Outcomes:
    """Execute a claim, or report that a cell of a chapter did, and compare the outcome with the
    register's verdict.

    Args:
        name: the claim's id.
        held: what the cell found: whether it is as the claim says. None: execute the claim's own
            tests.
        evidence: the cell's words for what it found.

    Raises:
        SparkbookError: the outcome is not the verdict that the register has.
    """
    claim = get(name)
    outcome = (
        execute(claim)
        if held is None
        else Outcome(claim, _of_cell(claim, held), (evidence,) if evidence else ())
    )
    if outcome.verdict != claim.verdict:
        outcome_text = "; ".join(outcome.evidence)
        raise SparkbookError(
            f"claim {name}: the register says '{claim.verdict}', the execution found"
            f" '{outcome.verdict}' ({outcome_text})"
        )
    return Outcomes([outcome])


def _of_cell(claim: Claim, held: bool) -> Verdict:
    """Return the verdict of a cell's result. A cell may find no more than that the claim is
    possible: then the claim stays not testable.
    """
    if held:
        return "not-testable" if claim.verdict == "not-testable" else "holds"
    return claim.verdict if claim.verdict in ("expired", "false") else "false"


def check_document(name: str) -> Outcomes:
    """Execute every claim of a document whose tests are in the register.

    Raises:
        SparkbookError: there is no such document, or an outcome is not the register's verdict.
    """
    if name not in registers():
        raise SparkbookError(f"no document is called '{name}'; there are {', '.join(registers())}")
    return Outcomes(
        [
            one
            for claim in registers()[name].claims
            if claim.test
            for one in check(claim.id).outcomes
        ]
    )


class Checks:
    """The claims of a document that the cells of one chapter check, and what they found.

    >>> checks = Checks("nvfp4")
    >>> checks({"nvfp4-cores": (True, "OMMA for sm_121f")})
    nvfp4-cores: holds
    """

    def __init__(self, document: str) -> None:
        """Raises SparkbookError if there is no such document."""
        if document not in registers():
            raise SparkbookError(
                f"no document is called '{document}'; there are {', '.join(registers())}"
            )
        self.claims = {claim.id: claim for claim in registers()[document].claims}
        self.verdicts: dict[str, Verdict] = {}

    def __call__(self, found: Mapping[str, tuple[bool, str]]) -> Outcomes:
        """Take what a cell found about some claims: whether each holds, and the cell's words for
        it; see `check`.

        Raises:
            SparkbookError: a claim is not the document's, or the verdict that follows is not the
                register's.
        """
        if foreign := [name for name in found if name not in self.claims]:
            raise SparkbookError(f"the document has no claim {', '.join(foreign)}")
        outcomes = Outcomes(
            [
                one
                for name, (held, evidence) in found.items()
                for one in check(name, held, evidence).outcomes
            ]
        )
        self.verdicts |= {one.claim.id: one.verdict for one in outcomes.outcomes}
        return outcomes

    @property
    def unchecked(self) -> list[str]:
        """Executable claims without tests of their own that no cell has checked."""
        return [
            name
            for name, claim in self.claims.items()
            if claim.executable and not claim.test and name not in self.verdicts
        ]

    def summary(self, title: str) -> Any:
        """Return every claim that the chapter uses and whose source's title begins so: its verdict,
        whether a cell or a source gave it, how.
        """
        from IPython.display import HTML

        chapters = {self.claims[name].executed_by for name in self.verdicts}
        rows = [
            (
                code(claim.statement),
                verdict_badge(claim.verdict),
                "cell" if name in self.verdicts else "read",
                linked(claim.check),
            )
            for name, claim in self.claims.items()
            if claim.source.title.startswith(title) and chapters.intersection(claim.where)
        ]
        return HTML(_table(("claim", "verdict", "by", "how"), rows))


def reported(notebook: dict[str, Any]) -> dict[str, str]:
    """Return the claims that an executed notebook reports: id to verdict."""
    found: dict[str, str] = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for entry in output.get("data", {}).get(MIME, []):
                found[entry["id"]] = entry["verdict"]
    return found


def unreported(
    notebooks: dict[str, dict[str, Any]], claims: Iterable[Claim] | None = None
) -> list[str]:
    """Return what is wrong with the record: executable claims that the chapter named does not
    report, or with another verdict.

    Args:
        notebooks: executed notebooks by name (`18_claims`).
        claims: those to look for; all.
    """
    problems = []
    for claim in every() if claims is None else claims:
        if claim.executable:
            outcome_text = (
                reported(notebooks[claim.executed_by or ""])
                if claim.executed_by in notebooks
                else {}
            )
            if claim.id not in outcome_text:
                problems.append(
                    f"claim {claim.id} is executable, and {claim.executed_by} did not report it in"
                    " this build"
                )
            elif outcome_text[claim.id] != claim.verdict:
                problems.append(
                    f"claim {claim.id}: the register says {claim.verdict}, {claim.executed_by}"
                    f" reported {outcome_text[claim.id]}"
                )
    return problems


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table for a cell's output; head and rows are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        '<div class="sb-scroll"><table'
        f' class="table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def verdict_badge(verdict: str) -> str:
    """Return the verdict as a coloured word."""
    return f'<span class="sb-verdict sb-verdict-{verdict}">{verdict.replace("-", " ")}</span>'
