"""The findings of a plan as a page of the book: what each says, and two examples that are planned
when the page is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparkbook.findings import Findings
from sparkbook.plan.memory import CODES, address
from sparkbook.rules import section_page

INTRO = (
    "What `sparkbook plan` reports. Each example was planned when this page was built; its findings"
    " are shown."
)
_OPTION = re.compile(r" --(cotenant|release|meminfo|log) ")


@dataclass(frozen=True)
class Section:
    """One finding's section."""

    code: str

    @property
    def address(self) -> str:
        """Where it stands in the site."""
        return address(self.code)

    @property
    def name(self) -> str:
        """In words with dashes."""
        return CODES[self.code].name

    @property
    def source(self) -> str:
        """Where what it says comes from."""
        return CODES[self.code].source


SECTIONS = {code: Section(code) for code in CODES}
"""Every finding of a plan, by code."""


def page(section: Section) -> str:
    """A finding's section, in Markdown."""
    code = CODES[section.code]
    examples = [
        (title, _shown(example), planned(example))
        for title, example in (("Fails", code.example), ("Passes", code.passing))
    ]
    return section_page(
        section.code,
        code.name,
        ("Plan", code.severity),
        code.text,
        examples,
        code.source,
        code.kind,
    )


def planned(example: str) -> Findings:
    """The findings of an example: of its plan and, where it has lines of a log, of the comparison
    with them.
    """
    from sparkbook import logs
    from sparkbook.plan import memory, reconcile, request

    line, told = _parts(example)
    host = request.host(
        cotenants=tuple(filter(None, [told.get("cotenant")])), meminfo=told.get("meminfo")
    )
    made = memory.plan(request.read(line, request.Override(release=told.get("release"))), host)
    return (
        reconcile.reconcile(made, logs.diagnose(f"{told['log']}\n").story).findings
        if "log" in told
        else made.findings
    )


def _parts(example: str) -> tuple[str, dict[str, str]]:
    line, *told = _OPTION.split(example)
    return line, dict(zip(told[::2], told[1::2], strict=True))


def _shown(example: str) -> str:
    """The example as a command; lines of a file stand below it, under the name that the command
    gives the file.
    """
    line, told = _parts(example)
    files = {name: text for name, text in told.items() if name in ("log", "meminfo")}
    options = "".join(
        f" --{name} {f'{name}.txt' if name in files else value}" for name, value in told.items()
    )
    contents = "".join(f"\n\n`{name}.txt`:\n\n```text\n{text}\n```" for name, text in files.items())
    return f'```bash\nsparkbook plan "{line}"{options}\n```{contents}'
