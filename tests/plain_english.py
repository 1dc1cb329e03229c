"""Words that a fast reader, or one whose first language is not English, has to read twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

BRITISH = (
    "licence|favour|honour|neighbour|harbour|behaviour|centre\\b|defence|(?<!benchmark-)artefact"
    "|(?:quant|util|memor|local|initial|material|normal|optim|organ|recogn|real|serial|general)is"
    "(?:e[drs]?|ing|ations?)\\b|practise"
)
"""Of words that American English spells otherwise, the letters that show it."""

BANNED = {
    r"\b[Aa]new\b": "again",
    r"\bfor ever\b": "forever, or: it never ends",
    r"\bin vain\b": "without effect",
    r"\bof late\b": "recently",
    r"\bbeside\b": "next to, with, in addition to",
    r"\b(?:where|there)(?:of|in|upon)\b": "of it, in it",
    r"\bthat which\b": "what",
    r"\bspeaks? (?:of|against|for)\b": "mentions, argues against",
    r"\bspoken? (?:of|against)\b": "mentioned",
    r"\b(?:stands?|stood) (?:in|on|at|there|below|above|before|behind|under|alone)\b": "is, appears",
    r"\b(?:lies|lay) (?:in|on|at|there|below|above|behind|under|with)\b": "is",
    r"\b(?:tells|told)\b": "shows, reports, configured",
    r"\b(?:was|were|is|are|been|be) begun\b": "started",
    r"\bgo(?:es|ne)? on with\b": "resumes",
    r"\bha(?:s|ve) it that\b": "says",
    r"\bnobody here\b": "unknown",
    r"\breckon": "compute",
    r"\bgrave(?:st|r)?\b": "serious",
    r"\bwhat is (?:judged|asked|given|shown|meant|sent|said)\b": "name the thing",
    r"\bbe silent about\b": "ignore",
    r"\bnot surely\b": "may not",
    rf"\b(?i:\w*(?:{BRITISH}))\w*": "the American spelling",
}
"""What no text for users contains, and what to write instead."""

PATTERN = re.compile("|".join(BANNED))


def stiff_words(text: str) -> Iterator[str]:
    """Yield each banned word of a text with its neighbors, and what to write instead."""
    for match in PATTERN.finditer(text):
        around = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
        instead = next(word for word in BANNED if re.search(word, match[0]))
        yield f"…{around}… ({BANNED[instead]})"
