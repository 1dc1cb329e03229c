"""`sparkbook cluster`, and `--cluster FILE` of five verbs, which does the same and names it."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from command_line import run
from sparkbook.cluster import commands
from sparkbook.findings import Finding, Findings


@dataclass
class Report:
    verdict: str = "ready"
    exit_code: int = 0
    findings: Findings = field(default_factory=Findings)
    lines: list[str] = field(default_factory=lambda: ["spark-1  200 Gbit/s"])

    def to_dict(self) -> dict[str, Any]:
        return self.findings.to_dict(verdict=self.verdict)


ROWS = [
    {
        "name": "two-spark-1",
        "host": "spark-1",
        "state": "ready",
        "url": "http://127.0.0.1:8000",
        "end": None,
    },
    {
        "name": None,
        "host": "spark-2",
        "state": "unreachable",
        "url": None,
        "end": "ssh: no route",
    },
]
FAULT = Findings([Finding(rule="FAB402", severity="error", message="spark-2 failed first.")])


@pytest.fixture(autouse=True)
def _two_sparks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "check", lambda file, recipe: Report())
    monkeypatch.setattr(commands, "status", lambda file: ROWS)
    monkeypatch.setattr(commands, "stop", lambda file, name: ([f"{name}-spark-1"], Findings()))
    monkeypatch.setattr(commands, "diagnose", lambda file, name: (FAULT, {"spark-2": ["killed"]}))
    monkeypatch.setattr(
        commands, "serve", lambda wish, say, show: show({"file": wish.file, "layout": wish.layout})
    )


@pytest.mark.parametrize(
    ("new", "old", "code"),
    [
        ("check two.yaml gpt-oss-120b", "check gpt-oss-120b --cluster two.yaml", 0),
        ("serve two.yaml x --layout pp=2", "serve x --cluster two.yaml --layout pp=2", 0),
        ("status two.yaml", "status --cluster two.yaml", 1),
        ("logs two.yaml two --diagnose", "logs two --cluster two.yaml --diagnose", 1),
        ("stop two.yaml two", "stop two --cluster two.yaml", 0),
    ],
)
def test_the_old_form_does_the_same_and_names_the_new_one(new: str, old: str, code: int) -> None:
    for more in ([], ["--json"]):
        now = run("cluster", *new.split(), *more, check=code)
        before = run(*old.split(), *more, check=code)
        assert now.stdout == before.stdout != "" and now.stderr == ""
        (line,) = before.stderr.splitlines()
        verb, file = new.split()[:2]
        assert line.startswith(
            f"sparkbook: --cluster is deprecated. Write: sparkbook cluster {verb} {file}"
        )


def test_what_they_print() -> None:
    assert run("cluster", "check", "two.yaml").stdout == (
        "spark-1  200 Gbit/s\nNothing found.\nready\n"
    )
    assert run("cluster", "status", "two.yaml", check=1).stdout == (
        "ready        spark-1      two-spark-1  http://127.0.0.1:8000\n"
        "unreachable  spark-2      ssh: no route\n"
    )
    assert json.loads(run("cluster", "status", "two.yaml", "--json", check=1).stdout) == {
        "ranks": ROWS
    }
    shown = run("cluster", "logs", "two.yaml", "two", "--diagnose", check=1).stdout
    assert shown == f"{FAULT}\n==> spark-2 <==\nkilled\n"


def test_options_that_have_no_meaning_on_a_cluster_are_refused() -> None:
    assert (
        "--cluster needs an INPUT, and accepts"
        in run("serve", "x", "--cluster", "two.yaml", "--watch", check=2).stderr
    )
    assert (
        "can't be used with --follow"
        in run("logs", "two", "--cluster", "two.yaml", "--follow", check=2).stderr
    )
    assert (
        "can't be used with --run" in run("check", "--cluster", "two.yaml", "--run", check=2).stderr
    )
