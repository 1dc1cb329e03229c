"""The signatures: what they have beyond what every rule has."""

import re
from pathlib import Path

import pytest
import yaml
from sparkbook import logs
from sparkbook.errors import SparkbookError
from sparkbook.logs.figures import FIGURES
from sparkbook.logs.signatures import FILE, load
from sparkbook.rules import kinds
from sparkbook.site.symptoms import symptoms

DATA = Path(__file__).parents[1] / "data" / "logs"
ALL = logs.signatures()


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.name)
def test_a_cause_is_the_primary_fault_of_its_example(signature):
    if signature.severity == "error" and signature.role == "cause":
        assert logs.diagnose(signature.fails).primary.rule == signature.code
    assert logs.diagnose(signature.passes).primary is None


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.name)
def test_what_is_said_is_whole(signature):
    finding = next(f for f in logs.diagnose(signature.fails).findings if f.rule == signature.code)
    for text in (finding.message, finding.fix):
        assert "?:" not in text and not re.search(r"\{[a-z_]+\}", text), text
        assert " ? " not in text, text
    assert finding.evidence.startswith("line ") and finding.source and finding.fix


@pytest.mark.parametrize("signature", ALL, ids=lambda s: s.name)
def test_fields(signature):
    assert signature.kind or signature.role == "consequence"
    assert signature.figures is None or signature.figures in FIGURES
    assert signature.source.startswith("https://")
    # A pattern holds on to a mechanism: it is never a whole example.
    for pattern in signature.pattern:
        assert pattern.lower() != re.escape(signature.fails).lower()


def test_figures_are_all_used():
    assert {s.figures for s in ALL if s.figures} == set(FIGURES)


def test_most_kinds_have_a_signature():
    """Kinds that no log line can tell are for the linter, the planner, the host check and the
    metrics.
    """
    given_by_figures = {"multi-tenant", "oom-runtime", "spec-decode-oom", "hang-health-ok"}
    assert kinds() - {s.kind for s in ALL} - given_by_figures == {
        "client-error",
        "config-drift",
        "download-stalled",
        "metrics-interpretation",
        "restart-policy",
        "silent-config",
    }


def test_the_words_never_hide_a_match():
    """A line that a signature's pattern fits has one of its words, for every line of every example
    and report.
    """
    lines = [s.fails for s in ALL] + [
        r["signature"] for r in yaml.safe_load((DATA / "reports.yaml").read_text())
    ]
    for line in lines:
        words = set(re.findall("[a-z]+", line.lower()))
        for signature in ALL:
            if signature.match(line):
                assert words & set(signature.words), (signature.name, line)


def test_a_wrong_file_is_refused(tmp_path):
    file = tmp_path / "signatures.yaml"
    file.write_text("- code: LOG1\n")
    with pytest.raises(SparkbookError, match=r"signatures\.yaml"):
        load(file)
    entry = yaml.safe_load(FILE.read_text("utf-8"))[0]
    file.write_text(yaml.safe_dump([entry, entry]))
    with pytest.raises(SparkbookError, match="is given twice"):
        load(file)
    file.write_text(yaml.safe_dump([{**entry, "pattern": "("}]))
    with pytest.raises(SparkbookError):
        load(file)


def test_asking_for_one():
    assert ALL["port-taken"] is ALL["LOG404"]
    with pytest.raises(SparkbookError, match="There is no signature"):
        ALL["nothing"]


def test_the_table_of_symptoms():
    table = symptoms()
    assert len(table.rows) == len(ALL)
    assert {row[4] for row in table.search("ADDRESS ALREADY").rows} == {"LOG404"}
    assert table._repr_html_().count("<tr>") == len(ALL) + 1


def test_a_semaphore_gone_after_a_fault_is_an_echo_of_it():
    gone = "FileNotFoundError: [Errno 2] No such file or directory: '/psm_0a1b2c3d'\n"
    taken = "OSError: [Errno 98] Address already in use\n"
    first = "INFO 11-27 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
    alone, after = (
        logs.diagnose((first + gone).encode()),
        logs.diagnose((first + taken + first + gone).encode()),
    )
    assert alone.primary.rule == "LOG405"
    assert after.primary.kind == "port-in-use"
    assert [f.rule for f in after.findings if f.severity == "error"] == [after.primary.rule]
    assert "LOG405" in [f.rule for f in after.consequences]


WORDS = r"\[\\w[^\]]* [^\]]*\][+*]"
"""Words and blanks without a bound: a long line of one word costs the cube of its length."""


def test_no_pattern_takes_words_without_a_bound():
    assert re.search(WORDS, r"using '?([\w -]+?)'? moe backend")
    sources = (Path(logs.__file__).parent).glob("*.py")
    found = {file.name: re.findall(WORDS, file.read_text("utf-8")) for file in sources}
    found |= {one.code: re.findall(WORDS, " ".join([*one.pattern, *one.also])) for one in ALL}
    assert {name: patterns for name, patterns in found.items() if patterns} == {}
