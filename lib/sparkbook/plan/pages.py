"""The findings of a plan as a page of the book: what each says, and an example that is planned when the page is built."""

from __future__ import annotations

from dataclasses import dataclass

from sparkbook.findings import Findings
from sparkbook.plan.memory import CODES, address

INTRO = "What `sparkbook plan` says. An example that is a launch line was planned when this page was built; what is shown is what it said."


@dataclass(frozen=True)
class Section:
    """One finding's section."""

    code: str

    @property
    def address(self) -> str:
        """Where it stands in the site."""
        return address(self.code)


SECTIONS = {code: Section(code) for code in CODES}
"""Every finding of a plan, by code."""


def page(section: Section) -> str:
    """A finding's section, in Markdown."""
    code = CODES[section.code]
    parts = [f"# {section.code}: {code.name}", f"*Plan · {code.severity}*", code.text, "**Example:**"]
    if code.example.startswith("LOG: "):
        parts.append(f"```text\n{code.example.removeprefix('LOG: ')}\n```")
    else:
        parts.append(f"```bash\nsparkbook plan {_quoted(code.example)}\n```")
        parts += [f"- **{f.severity}**: {f.message.rstrip('.')}." for f in planned(code.example) if f.rule == section.code]
    if code.kind:
        parts.append(f"Kind: `{code.kind}`.")
    return "\n\n".join(parts) + "\n"


def planned(example: str) -> Findings:
    """The findings of an example: a launch line, and behind `--cotenant` what else runs."""
    from sparkbook.plan import memory, request

    line, _, tenant = example.partition(" --cotenant ")
    return memory.plan(request.read(line), request.host(cotenants=(tenant,) if tenant else ())).findings


def _quoted(example: str) -> str:
    line, tenant, other = example.partition(" --cotenant ")
    return f'"{line}"{tenant}{other}'
