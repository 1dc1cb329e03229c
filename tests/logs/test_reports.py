"""Lines of public problem reports: each is recognized for what it is, alone and in the middle of a
long healthy log.
"""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml
from sparkbook import logs

DATA = Path(__file__).parents[1] / "data" / "logs"
REPORTS = yaml.safe_load((DATA / "reports.yaml").read_text())
PLACES = (0.02, 0.4, 0.97)


def kind_of(diagnosis, expected):
    """The kind of the primary fault; for what is no fault, the expected kind where it is among the
    findings.
    """
    if diagnosis.primary is not None:
        return diagnosis.primary.kind
    return next((f.kind for f in diagnosis.findings if f.kind == expected), "healthy")


@cache
def alone(line):
    return logs.diagnose(line)


@cache
def buried(lines, line, place):
    where = int(len(lines) * place)
    return logs.diagnose("\n".join([*lines[:where], line, *lines[where:]]))


@pytest.fixture(scope="module")
def haystack(healthy_lines):
    return tuple(healthy_lines)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_alone(report):
    assert kind_of(alone(report["signature"]), report["kind"]) == report["kind"]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_buried(report, haystack):
    place = PLACES[int(report["id"][1:]) % 3]
    assert kind_of(buried(haystack, report["signature"], place), report["kind"]) == report["kind"]


def test_confusion_table(haystack, capsys):
    """What is found for what was put in; the diagonal is all there is."""
    table = Counter()
    for report in REPORTS:
        table["alone", report["kind"], kind_of(alone(report["signature"]), report["kind"])] += 1
        place = PLACES[int(report["id"][1:]) % 3]
        table[
            "buried",
            report["kind"],
            kind_of(buried(haystack, report["signature"], place), report["kind"]),
        ] += 1
    right = sum(count for (_, kind, found), count in table.items() if kind == found)
    with capsys.disabled():
        print(
            f"\n{len(REPORTS)} reports, alone and in a 5,000-line healthy log: {right} of"
            f" {sum(table.values())} right"
        )
        for kind in sorted({report["kind"] for report in REPORTS}):
            cells = {
                how: {f: n for (h, k, f), n in table.items() if h == how and k == kind}
                for how in ("alone", "buried")
            }
            print(f"  {kind:<24} alone {cells['alone']}  buried {cells['buried']}")
    assert right == sum(table.values())


def test_the_healthy_log_is_healthy(healthy_lines):
    diagnosis = logs.diagnose("\n".join(healthy_lines))
    assert diagnosis.healthy
    assert not [finding for finding in diagnosis.findings if finding.severity == "error"]


UNSEEN = yaml.safe_load((DATA / "unseen.yaml").read_text())
"""The same kinds in other words."""


@pytest.mark.parametrize(
    "report", UNSEEN, ids=lambda report: f"{report['kind']}: {report['line'][:40]}"
)
def test_other_words(report, haystack):
    assert kind_of(alone(report["line"]), report["kind"]) == report["kind"]
    assert kind_of(buried(haystack, report["line"], 0.4), report["kind"]) == report["kind"]
