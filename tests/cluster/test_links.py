"""The measurement of what a link is worth: what comes first, what a second call skips, and whether
the fit finds the numbers that rows were made of.
"""

import json
from itertools import pairwise
from pathlib import Path

import measure_links
import pytest
from measure_links import SHAPES, Link, Step

TABLE = [(8192, 100.0), (2**20, 1100.0), (2**28, 250000.0)]


def rows(shape, split=0.5, fixed=0.004, unhidden=0.8):
    """A recording in which a step takes what the model says."""
    made = []
    for place, link in enumerate((Link(), *shape.links)):
        table = [(size, us * (1 + place)) for size, us in TABLE]
        made.append(row("all-reduce", link, points=table))
        for requests in (1, 2, 4, 8, 16, 32):
            one = 0.010 + 0.0002 * requests
            if not place:
                made.append(row("one", link, requests, tok_s=requests / one))
            spent = measure_links.all_reduce_s(table, shape.hidden * 2 * requests)
            step = split * one + fixed + unhidden * (2 * shape.layers + 1) * spent
            made.append(row("tp", link, requests, tok_s=requests / step))
    return made


def row(way, link, requests=1, **more):
    step = Step(way, link, requests)
    return {"shape": "8b", "key": step.key, **measure_links.asdict(step), **more}


def test_the_most_valuable_comes_first():
    for shape in SHAPES.values():
        keys = [step.key for step in measure_links.steps(shape)]
        assert len(keys) == len(set(keys))
        ways = [step.way for step in measure_links.steps(shape)]
        first = [way for way, before in pairwise([*ways, ""]) if way != before]
        assert first[:4] == ["all-reduce", "tp", "one", "replicas"]
        asked = {(step.way, step.requests) for step in measure_links.steps(shape)}
        assert {("tp", n) for n in (*shape.few, *shape.rest)} <= asked


def test_the_fit_finds_what_the_rows_were_made_of():
    shape = SHAPES["8b"]
    found = measure_links.fit(rows(shape), shape)
    assert found["split"] == pytest.approx(0.5, abs=0.01)
    assert found["unhidden"] == pytest.approx(0.8, abs=0.01)
    assert found["fixed_s"] == pytest.approx(0.004, rel=0.02)
    assert {one["requests"] for one in found["checked"]} >= {1, 8, 32}
    count = len(found["checked"])
    assert found["held"] == f"{count} of {count}"


def test_a_row_that_does_not_follow_the_model_is_seen():
    shape, made = SHAPES["8b"], rows(SHAPES["8b"])
    for one in made:
        if one["way"] == "tp" and one["requests"] == 32:
            one["tok_s"] *= 1.5 if one["link"]["gbit"] is None else 0.6
    found = measure_links.fit(made, shape)
    right, of = found["held"].split(" of ")
    assert int(right) < int(of)


def test_too_few_rows_are_no_fit():
    assert "problem" in measure_links.fit(rows(SHAPES["8b"])[:4], SHAPES["8b"])


def test_a_recording_that_was_cut_off_goes_on(tmp_path):
    file = tmp_path / "links.jsonl"
    whole = json.dumps(row("tp", Link(10), 8, tok_s=1.0))
    file.write_text(whole + "\n" + whole[:40], "utf-8")
    assert [one["key"] for one in measure_links.read(file)] == [Step("tp", Link(10), 8).key]
    assert measure_links.read(tmp_path / "none") == []


def test_between_two_sizes_the_time_is_on_a_line():
    at = [measure_links.all_reduce_s(TABLE, size) for size in (64, 8192, 2**19, 2**28, 2**29)]
    assert at[0] == at[1] == pytest.approx(100e-6) and 550e-6 < at[2] < 650e-6
    assert at == sorted(at) and at[3] == pytest.approx(0.25) and at[4] > 0.49


def test_the_recording_of_the_cpu_is_whole_and_not_believed():
    # Two busy cores did the arithmetic and the network of both nodes: the gate says so of each row.
    made = measure_links.read(Path(__file__).parents[1] / "data" / "cluster" / "links-cpu.jsonl")
    ways = {one["way"] for one in made if one.get("tok_s")}
    assert ways == {"tp", "one", "replicas"}
    verdicts = {verdict for one in made for verdict in one.get("verdict", ())}
    assert verdicts == {"suspect"}
    assert all(one["problem"] == "pp is not ready" for one in made if one["way"] == "pp")
    found = measure_links.fit(made, SHAPES["tiny"])
    assert found["valid"] == f"0 of {found['fitted'] + len(found['checked'])}"
    right, of = found["held"].split(" of ")
    assert int(right) < int(of)
