"""The measurement of what a link is worth: what comes first, what a second call skips, and whether
the fit finds the numbers that rows were made of.
"""

import json
from itertools import pairwise
from pathlib import Path

import measure_links
import pytest
from measure_links import SHAPES, Link, Step
from sparkbook.cluster.advice import between

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
            spent = between(table, shape.hidden * 2 * requests) * 1e-6
            step = split * one + fixed + unhidden * (2 * shape.layers + 1) * spent
            made.append(row("tp", link, requests, tok_s=requests / step))
    return made


def row(way, link, requests=1, **more):
    step = Step("8b" if way != "all-reduce" else "", way, link, (requests,))
    about = {"shape": step.shape, "way": way, "link": measure_links.asdict(link)}
    key = step.key(requests, "code")
    return about | {"key": key, "requests": requests, "prompts": "code"} | more


def test_the_most_valuable_comes_first():
    for name, shape in SHAPES.items():
        asked = list(measure_links.order([name]))
        keys = [key for step in asked for key in step.keys]
        assert len(keys) == len(set(keys))
        ways = [step.way for step in asked]
        first = [way for way, before in pairwise([*ways, ""]) if way != before]
        assert first[:4] == ["all-reduce", "tp", "one", "replicas"]
        loads = {(step.way, count) for step in asked for count in step.requests}
        assert {("tp", n) for n in (*shape.few, *shape.rest)} <= loads


def test_two_shapes_are_measured_by_turns_and_the_link_again_when_nothing_starts():
    asked = list(measure_links.order(["8b", "30b"]))
    shapes = [step.shape for step in asked if step.way == "tp"]
    assert shapes[:4] == ["8b", "30b"] * 2
    links = {step.link for step in asked if step.way == "all-reduce" and step.beside}
    assert links == {step.link for step in asked if step.way == "all-reduce" and not step.beside}
    assert {step.link for step in asked} == links


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
    made = row("tp", Link(10), 8, tok_s=1.0)
    whole = json.dumps(made)
    file.write_text(whole + "\n" + whole[:40], "utf-8")
    keys = [one["key"] for one in measure_links.read(file)]
    assert keys == [made["key"]] == Step("8b", "tp", Link(10), (8,)).keys
    assert measure_links.read(tmp_path / "none") == []


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
