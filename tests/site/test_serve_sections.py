"""The book's page of the rules about containers: each rule's failing example is found, and its
passing one is not.
"""

from pathlib import Path

import pytest
import yaml
from sparkbook.site.serve_sections import DOCK

KINDS = set(
    yaml.safe_load((Path(__file__).parents[1] / "data" / "logs" / "kinds.yaml").read_text("utf-8"))
)


@pytest.mark.parametrize("check", DOCK.checks.values(), ids=DOCK.checks)
def test_examples(check):
    found = [finding for finding in DOCK.examined(check.bad()) if finding.rule == check.code]
    assert len(found) == 1 and found[0].why == check.address and found[0].fix
    good = DOCK.examined(check.good())
    assert check.code not in [finding.rule for finding in good] and "error" not in [
        finding.severity for finding in good
    ]
    assert DOCK.show(check.bad()) != DOCK.show(check.good())
    assert check.kind is None or check.kind in KINDS
    assert len(check.text) > 60 and "{" not in found[0].message
    assert DOCK.page(check).startswith(f"# {check.code}: {check.name}\n")
