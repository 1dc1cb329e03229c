"""The measurement of what a link is worth: what comes first, what a second call skips, and whether
the fit finds the numbers that rows were made of.
"""

import json
from itertools import pairwise
from pathlib import Path

import measure_links
import pytest
from measure_links import SHAPES, Link, Step
from sparkbook import checkpoint
from sparkbook.cluster import advice
from sparkbook.cluster import measured_links as links
from sparkbook.cluster.all_reduce import between

TABLE = [(8192, 100.0), (2**20, 1100.0), (2**28, 250000.0)]


def lines(split=0.5, fixed=0.004, unhidden=0.8):
    """A recording in which a step takes what the model says."""
    made = []
    layers, hidden = links.shapes()["8b"]
    for place, link in enumerate((Link(), *SHAPES["8b"].links)):
        table = [(size, us * (1 + place)) for size, us in TABLE]
        made.append(line("all-reduce", link, points=table))
        for requests in (1, 2, 4, 8, 16, 32):
            one = 0.010 + 0.0002 * requests
            if not place:
                made.append(line("one", link, requests, tpot_s=one))
            spent = between(table, hidden * 2 * requests) * 1e-6
            step = split * one + fixed + unhidden * (2 * layers + 1) * spent
            made.append(line("tp", link, requests, tpot_s=step))
    return made


def line(way, link, requests=1, **more):
    step = Step("8b" if way != "all-reduce" else "", way, link, (requests,))
    about = {"shape": step.shape, "way": way, "link": measure_links.asdict(link)}
    about |= {"key": step.key(requests, "code"), "requests": requests, "prompts": "code"}
    return about | {"tok_s": 1.0, "ttft_s": 0.1, "rules": ["BENCH311"]} | more


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


def test_two_shapes_are_measured_by_turns_and_every_link_that_they_use():
    asked = list(measure_links.order(["8b", "30b"]))
    shapes = [step.shape for step in asked if step.way == "tp"]
    assert shapes[:4] == ["8b", "30b"] * 2
    links = [step.link for step in asked if step.way == "all-reduce"]
    assert len(links) == len(set(links)) and {step.link for step in asked} == set(links)


def test_the_fit_finds_what_the_rows_were_made_of():
    numbers, others = links.read(lines()).fitted()
    assert numbers == pytest.approx((0.5, 0.004, 0.8), rel=0.02)
    assert {one.row.requests for one in others} >= {1, 8, 32}
    assert all(one.holds for one in others)


def test_without_a_fit_the_estimate_is_half_a_step_and_the_network():
    checked = links.read(lines(fixed=0.0, unhidden=1.0)).checked()
    assert checked and links.typical_error(checked) < 1e-9


def test_a_row_that_does_not_follow_the_model_is_seen():
    made = lines()
    for one in made:
        if one["way"] == "tp" and one["requests"] == 32:
            one["tpot_s"] *= 0.6 if one["link"]["gbit"] is None else 1.5
    _, others = links.read(made).fitted()
    assert not all(one.holds for one in others)


def test_what_was_disturbed_does_not_count():
    made = [one | {"rules": ["BENCH111"]} if one["way"] == "tp" else one for one in lines()]
    assert links.read(made).checked() == []
    assert links.read(made).fitted() == ((), [])
    made = [one | {"beside": True} if one["way"] == "tp" else one for one in lines()]
    assert links.read(made).checked() == []


def test_too_few_rows_are_no_fit():
    assert links.read(lines()[:4]).fitted() == ((), [])


def test_a_recording_that_was_cut_off_goes_on(tmp_path):
    file = tmp_path / "links.jsonl"
    made = line("tp", Link(10), 8)
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
    assert links.read(made).checked() == []


def test_the_shapes_are_those_of_the_models_that_they_are_named_after():
    assert links.shapes() == {"8b": (36, 4096), "30b": (48, 2048), "tiny": (3, 128)}
    assert links.TITLES == {"8b": "Qwen3-8B", "30b": "Qwen3-30B-A3B", "tiny": "tiny-dense"}
    config = json.loads((checkpoint.MODELS / "tiny-dense" / "config.json").read_text("utf-8"))
    assert links.shapes()["tiny"] == (config["num_hidden_layers"], config["hidden_size"])


def test_between_two_gpus_the_model_holds():
    made = links.recorded()
    assert {row.shape for row in made.rows} == {"8b", "30b"}
    assert len(made.tables) == len(made.busy) == 5
    checked = made.checked()
    assert len(checked) == 26 and sum(one.holds for one in checked) >= 22
    assert links.typical_error(checked) < 0.1
    _, others = made.fitted()
    assert len(others) == 13 and all(one.holds for one in others)
    # Over sockets, one GPU is faster than two: the network is most of a step.
    for row in made.rows:
        if row.way == "tp":
            assert row.step_s > 2 * made.alone_s(row)


def test_all_reduces_next_to_idle_servers_say_too_much_for_one_request():
    made = links.recorded()
    for one in made.checked(tables=made.busy):
        assert (one.error > 0.25) if one.row.requests == 1 else (abs(one.error) < 0.3)


def test_a_cables_latency_counts_twice_in_an_all_reduce():
    made = links.recorded()
    assert [one.delay_us for one in made.delayed] == [20, 50, 100]
    for one in made.delayed:
        assert one.rtt_us == pytest.approx(2 * one.delay_us + 30, abs=25)
        more = one.table[0][1] - made.busy[10][0][1]
        assert more == pytest.approx(2 * one.delay_us, abs=35)


def test_pipeline_parallelism_stays_behind_its_estimate_and_behind_one_gpu():
    made = links.recorded()
    pipelined = made.pipelined()
    assert {one.row.requests for one in pipelined} == {1, 8, 32} and len(pipelined) == 11
    for one in pipelined:
        share = one.estimate_s / one.row.step_s
        assert share == pytest.approx(0.91, abs=0.02) if one.row.requests == 1 else share < 0.8
        assert share > advice.OVERLAP - 0.01
        alone = made.find(one.row.shape, "one", one.row.requests)
        assert alone is not None and one.row.tok_s < alone.tok_s


def test_a_long_prompt_is_read_faster_by_one_gpu_than_by_two():
    made = links.recorded()
    times = {(row.shape, row.prompts, row.way): row.ttft_s for row in made.long}
    for shape in ("8b", "30b"):
        for prompts in ("long-512", "long-8k"):
            assert times[shape, prompts, "tp"] > 1.5 * times[shape, prompts, "one"]
