"""`sparkbook lint --fix`: mechanical repairs, made in the file itself."""

from __future__ import annotations

from collections.abc import Iterable

from sparkbook import formats
from sparkbook.errors import SparkbookError
from sparkbook.lint import Report, difference, repair
from sparkbook.util.files import write_text


def mend(
    source: str, report: Report, release: str | None = None, ignore: Iterable[str] = ()
) -> tuple[Report, str]:
    """Repair what a report says can be repaired. A file is written; standard input, and a text on
    the command line, are not.

    Args:
        source: what the user named.
        report: the linter's report on it.
        release, ignore: as `lint` took them.

    Returns:
        The report on the repaired text, and the changes as a unified diff.

    Raises:
        SparkbookError: there is no text to repair, or the file can't be written.
    """
    if not report.text:
        raise SparkbookError("--fix repairs the text of a launch line: change a recipe by hand")
    repaired, again = repair(report, release, ignore)
    path = formats.file_of(source) if source != "-" else None
    if repaired != report.text and path is not None and path.is_file():
        write_text(path, repaired)
    name = "standard input" if source == "-" else source
    return again, difference(report.text, repaired, name)
