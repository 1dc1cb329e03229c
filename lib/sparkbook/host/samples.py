"""The examples of the host check's rules: how a page shows one, and what the check finds in it."""

from __future__ import annotations

import yaml

from sparkbook.findings import Findings
from sparkbook.host.checks import check, check_nodes
from sparkbook.host.family import Example
from sparkbook.host.machine import recorded
from sparkbook.util.markup import fenced


def show(example: Example) -> str:
    """Return an example as Markdown: the change as YAML."""
    if not example.change:
        return "Nothing changed."
    return fenced(
        yaml.safe_dump(example.change, sort_keys=False, width=110, allow_unicode=True), "yaml"
    )


def examine(example: Example) -> Findings:
    """Return what the check finds in an example."""
    healthy = recorded("healthy")
    changed = healthy.changed(example.change)
    if example.nodes:
        return check_nodes([healthy, changed.changed({"name": "spark-2"})]).findings
    return check(changed).findings
