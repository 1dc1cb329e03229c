"""The claims register: what the documents that this book starts from say, and whether it is so.

One file a document in `book/claims/`. A figure stands there once; chapters draw it:

    >>> from sparkbook.register import claims
    >>> print(claims.figure("guide-bandwidth"))
    273 GB/s

A claim that can be executed has tests, or a chapter's cell that reports it through `check`. The
report stays in the executed notebook, as data beside the cell's output: the notebooks are the
record of what was executed.
"""

from sparkbook.register.claim_model import RUNS, VERDICTS, Claim, Figure, Register, Test
from sparkbook.register.claim_tests import run
from sparkbook.register.execute import (
    MIME,
    Checks,
    Outcome,
    Outcomes,
    check,
    check_document,
    execute,
    reported,
    unreported,
)
from sparkbook.register.lookup import (
    FOLDER,
    PAGE,
    counts,
    document,
    every,
    figure,
    get,
    registers,
)
from sparkbook.register.prose import (
    exempt,
    strays,
    typed,
    unaccounted,
    used_by,
    write_figures,
    wrong_links,
)

__all__ = [
    "FOLDER",
    "MIME",
    "PAGE",
    "RUNS",
    "VERDICTS",
    "Checks",
    "Claim",
    "Figure",
    "Outcome",
    "Outcomes",
    "Register",
    "Test",
    "check",
    "check_document",
    "counts",
    "document",
    "every",
    "execute",
    "exempt",
    "figure",
    "get",
    "registers",
    "reported",
    "run",
    "strays",
    "typed",
    "unaccounted",
    "unreported",
    "used_by",
    "write_figures",
    "wrong_links",
]
