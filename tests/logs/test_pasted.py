"""What people pasted into public reports: the right cause comes first, with the right remedy."""

from pathlib import Path

import pytest
import yaml
from sparkbook import logs

FILE = Path(__file__).parents[1] / "data" / "logs" / "pasted.yaml"
REPORTS = yaml.safe_load(FILE.read_text("utf-8"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: "-".join(r["source"].split("/")[-3:]))
def test_the_right_cause_comes_first(report):
    primary = logs.diagnose(report["log"].encode()).primary
    assert primary.kind == report["kind"]
    assert report["fix"] in primary.fix
    assert report.get("says", "") in primary.message
