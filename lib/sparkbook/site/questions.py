"""Questions that owners ask in public, and where this book answers them
(`book/data/questions.yaml`): a page, and what the search knows of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkbook.site import book_data


@dataclass(frozen=True)
class Question:
    """A question with its answer.

    Attributes:
        search: words that a reader may type instead.
        page: address of the page that answers it, below the site's root.
        says: words of that page.
        answer: in a sentence or two.
        asked: where it was asked, if one place can be named.
    """

    question: str
    search: tuple[str, ...]
    page: str
    says: str
    answer: str
    asked: str | None = None


def questions() -> list[Question]:
    """Return all of them, in the order of the page."""
    return book_data.load("questions", list[Question])


def page() -> str:
    """Return the list for the page of questions, as Markdown."""
    return "\n".join(
        f'<a href="../{one.page}">{one.question}</a>\n: {one.answer}'
        + f' (<a href="{one.asked}">asked here</a>)' * bool(one.asked)
        + "\n"
        for one in questions()
    )
