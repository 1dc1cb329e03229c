"""The report of a conversion, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.text import Text

from sparkbook.findings import Findings
from sparkbook.formats import FORMATS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.formats import Conversion, Written


def losses(read: Conversion, written: Written) -> Iterator[RenderableType]:
    """Yield what was lost in reading, and what in writing."""
    if read.findings:
        yield Text(f"Read as {FORMATS[read.format].title}:", "bold")
        yield read.findings
    if written.findings:
        yield Text(f"Written as {FORMATS[written.format].title}:", "bold")
        yield written.findings


def to_dict(read: Conversion, written: Written) -> dict[str, Any]:
    """Return the answer of `convert --json`: the written text, and both reports as one."""
    findings = Findings([*read.findings, *written.findings])
    return {
        "text": written.text,
        **findings.to_dict(
            **{"from": read.format, "to": written.format},
            read=len(read.findings),
            written=len(written.findings),
        ),
    }
