"""Public reports about several Sparks: each is caught, by a check of the nodes, by a rank's log, or
by the linter.
"""

from pathlib import Path

import pytest
import yaml
from sparkbook import lint
from sparkbook.cluster import sighting
from sparkbook.cluster.fabric import Pair
from sparkbook.cluster.ranks import RankState
from sparkbook.cluster.rules import FAB
from sparkbook.serve.watchdog import Limits, Sample
from sparkbook.serve.watchdog import judge as watch
from sparkbook.units import GIB

REPORTS = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "cluster" / "reports.yaml").read_text("utf-8")
)
ALL = {
    "B090",
    "B091",
    "B177",
    "B178",
    "B181",
    "B182",
    "B186",
    "B189",
    "B190",
    "B227",
    "B234",
    "B235",
    "B237",
}
UP = b"(APIServer pid=1) INFO 11-28 09:00:00 [launcher.py:1] Application startup complete.\n"


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report['id']}: {report['what']}")
def test_it_is_caught(report):
    if line := report.get("line"):
        assert report["kind"] in [finding.kind for finding in lint.lint(line).findings]
    elif log := report.get("log"):
        ranks = [RankState(0, "spark-1", UP), RankState(1, "spark-2", log.encode(), False, 1)]
        found = FAB.judge(sighting.example(ranks=ranks))
        assert found[0].kind == report["kind"] and "spark-2" in found[0].message, found
    elif report.get("trace"):
        samples = [
            Sample(60.0 * n, None, 1000.0, 1.0, report["trace"]["power_w"]) for n in range(4)
        ]
        assert watch(samples, Limits.of_host(121 * GIB)).rule == "DOCK402"
    else:
        b = report.get("site", {})
        if links := report.get("site_links"):
            b = sighting.links(links)
        if rdma := report.get("site_rdma"):
            b = sighting.rdma(rdma)
        pairs = [Pair(a="spark-1", b="spark-2", **report["pair"])] if "pair" in report else []
        found = FAB.judge(sighting.example(b=b, node=report.get("node"), pairs=pairs))
        assert {finding.kind for finding in found if finding.rule == report["rule"]} == {
            report["kind"]
        }
        assert not FAB.judge(sighting.example())


def test_no_report_is_left_out():
    assert {report["id"] for report in REPORTS} == ALL
