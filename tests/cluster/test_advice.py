"""One Spark or two: memory, the price of the network, break-evens, and how far the estimate is from
what others measured.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from sparkbook.checkpoint.values import Range
from sparkbook.cli import app
from sparkbook.cluster import advice, all_reduce
from sparkbook.cluster.advice import OVERLAP, WAYS, Model
from sparkbook.cluster.all_reduce import NOMINAL, Link
from sparkbook.errors import SparkbookError
from sparkbook.plan import request
from sparkbook.plan.decode import Machine, Reads
from typer.testing import CliRunner

# 40 GB of weights at 200 GB/s: 0.2 s a step; 100 layers at 0.1 ms: 10 ms beside.
ROUND = Model(
    Reads(every_step=40e9, layers=100, active_params=1),
    hidden=8192,
    machine=Machine(read_gb_s=200.0, overhead_s=1e-4),
)
QUICK = Link(Range.of(10e-6), Range.of(10.0), "round figures")


def llama(extra: str = "") -> advice.Advice:
    return advice.advise(
        request.read(f"vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --max-model-len 8192 {extra}")
    )


def test_tensor_parallel_halves_the_reading_and_pays_two_all_reduces_a_layer() -> None:
    cost = ROUND.cost(1, QUICK, 2)
    assert (cost.count, cost.size) == (201, 16384)
    # Beyond 8 KiB each byte costs: 8,192 bytes at 10 GB/s.
    assert cost.seconds.low == pytest.approx(201 * (10e-6 + 8192 / 10e9))
    assert ROUND.speed("tensor parallel", 1, 0, QUICK, 2).middle == pytest.approx(
        1 / (0.1 + 0.01 + cost.seconds.low)
    )


def test_four_nodes_pay_more_rounds() -> None:
    assert QUICK.all_reduce(8192, 4).low == pytest.approx(30e-6)
    assert QUICK.all_reduce(8192 + 10**6, 4).low == pytest.approx(30e-6 + 1.5e6 / 10e9)


TABLE = ((8192, 100e-6), (2**20, 1100e-6), (2**28, 0.25))


def test_between_two_sizes_the_time_is_on_a_line() -> None:
    at = [all_reduce.between(TABLE, size) for size in (64, 8192, 2**19, 2**28, 2**29)]
    assert at[0] == at[1] == 100e-6 and 550e-6 < at[2] < 650e-6
    assert at == sorted(at) and at[3] == 0.25 and at[4] > 0.49
    assert all_reduce.between(TABLE[:1], 2**30) == 100e-6


def test_what_was_measured_of_each_size_counts_before_latency_and_rate() -> None:
    pair = {"a": "1", "b": "2", "reduce_us": 100, "reduce_gbit": 8}
    plain = all_reduce.link_of(pair)
    table = [[size, spent * 1e6] for size, spent in TABLE]
    measured = all_reduce.link_of(pair | {"reduce_table": table})
    assert measured.all_reduce(2**20).low == pytest.approx(1100e-6)
    assert plain.all_reduce(2**20).high > 10 * measured.all_reduce(2**20).high
    # Four nodes: three rounds, each of half as many bytes as two nodes send.
    assert measured.all_reduce(2**21, 4).low == pytest.approx(3 * 1100e-6)
    assert measured.with_latency(0).all_reduce(8192).low == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reduce_us": "abc"}, "reduce_us"),
        ({"reduce_us": float("nan")}, "reduce_us"),
        ({"reduce_gbit": -4}, "reduce_gbit"),
        ({"reduce_table": "x"}, "reduce_table"),
        ({"reduce_table": [[1]]}, "reduce_table"),
        ({"reduce_table": [["a", 1]]}, "reduce_table"),
        ({"reduce_table": [[8192, None]]}, "reduce_table"),
        ({"reduce_table": [[8192, 100], [8192, 90]]}, "every size once"),
        ({"reduce_table": [[16384, 100], [8192, 90]]}, "the smallest first"),
        ({"a": 7}, "a"),
    ],
)
def test_a_measured_network_that_is_none_is_said(change: dict, says: str) -> None:
    pair = {"a": "1", "b": "2", "reduce_us": 100, "reduce_gbit": 8}
    with pytest.raises(SparkbookError, match="the measured network: .*" + says):
        all_reduce.link_of(pair | change)


def test_pipeline_parallel_does_nothing_for_one_request_and_at_best_as_replicas_for_many() -> None:
    one = ROUND.speed("one node", 1, 0, QUICK, 2).middle
    assert ROUND.speed("pipeline parallel", 1, 0, QUICK, 2).middle == pytest.approx(one, rel=1e-3)
    assert ROUND.speed("pipeline parallel", 1, 0, QUICK, 2).middle < one
    layered, replicas = (
        ROUND.speed(way, 16, 0, QUICK, 2) for way in ("pipeline parallel", "replicas")
    )
    assert layered.high == pytest.approx(replicas.middle, rel=1e-2)
    assert layered.high < replicas.middle
    assert layered.low == pytest.approx(OVERLAP * layered.high, rel=1e-2)


def test_at_the_break_even_latency_one_node_is_as_fast() -> None:
    found = llama()
    limit = found.break_even_latency_s()
    assert limit
    assert found.model
    for factor, faster in ((0.99, True), (1.01, False)):
        link = replace(
            NOMINAL, latency_s=Range.of(limit * factor), gb_s=Range.of(NOMINAL.gb_s.middle)
        )
        two = found.model.speed("tensor parallel", 1, found.context, link, 2).middle
        assert (two > found.model.speed("one node", 1, found.context, link, 2).middle) is faster


def test_the_break_even_in_requests_is_where_replicas_come_first() -> None:
    even = llama().break_even_requests
    assert even
    for requests, first in ((even // 2, "tensor parallel"), (even, "replicas")):
        speeds = {
            way: llama().speed(way, requests).middle for way in ("tensor parallel", "replicas")
        }  # type: ignore[union-attr]
        assert max(speeds, key=speeds.__getitem__) == first


def test_a_slow_link_turns_the_advice() -> None:
    setup = request.read("gpt-oss-120b")
    assert advice.advise(setup).best(1) == ("tensor parallel",)
    slow = all_reduce.link_of({"a": "x", "b": "y", "reduce_us": 800.0, "reduce_gbit": 8.0})
    found = advice.advise(setup, slow)
    assert found.best(1) == ("one node",)
    assert "replicas" in found.best(16)
    assert found.confidence == "medium"  # it was measured
    assert advice.advise(setup).confidence == "low"


def test_memory_of_a_node() -> None:
    found = llama("--gpu-memory-utilization 0.8")
    one, tensor, layers, replicas = (found.memory[way] for way in WAYS)
    assert tensor.weights.middle == layers.weights.middle == pytest.approx(one.weights.middle / 2)
    assert replicas.sequences.middle == pytest.approx(2 * one.sequences.middle)  # type: ignore[union-attr]
    # 40 GB less of weights on two nodes are room for more than twice the sequences.
    assert tensor.sequences.middle > replicas.sequences.middle  # type: ignore[union-attr]
    assert layers.sequences.middle == pytest.approx(tensor.sequences.middle, rel=0.02)  # type: ignore[union-attr]


def test_what_fits_in_two_only_has_no_speed_in_one() -> None:
    found = llama("--gpu-memory-utilization 0.3")
    assert found.needed
    assert found.speed("replicas", 1) is None
    assert found.speed("one node", 1) is None
    assert found.best(1) == ("tensor parallel",)
    assert next(found.reasons()).startswith("It does not fit in one Spark (39.8 GiB of weights)")
    assert "either" in " ".join(llama("--gpu-memory-utilization 0.05").reasons())


def test_a_latent_cache_is_kept_whole_by_every_node() -> None:
    found = advice.advise(request.read("mistral-small-4-119b-nvfp4"))
    tensor, layers = (
        found.memory["tensor parallel"].sequences,
        found.memory["pipeline parallel"].sequences,
    )
    assert layers.middle == pytest.approx(2 * tensor.middle, rel=0.02)  # type: ignore[union-attr]
    assert any(reason.startswith("Pipeline parallel holds") for reason in found.reasons())


@pytest.mark.parametrize("spread", ["--pipeline-parallel-size 4", "--tensor-parallel-size 4"])
def test_how_the_line_spreads_the_model_plays_no_part(spread: str) -> None:
    line = "vllm serve Qwen/Qwen3-235B-A22B-FP8"
    found = advice.advise(request.read(f"{line} {spread} --nnodes 4"))
    assert found.to_dict() == advice.advise(request.read(line)).to_dict()
    assert found.needed
    assert advice.advise(request.read("mimo-v2.6-flash-3x")).needed


def test_three_nodes_do_not_divide_eight_heads() -> None:
    found = advice.advise(request.read("gpt-oss-120b"), nodes=3)
    assert found.memory["tensor parallel"].fits == advice.SPLIT_NOT
    assert found.speed("tensor parallel", 1) is None
    about = [reason for reason in found.reasons() if "ensor parallel" in reason]
    assert len(about) == 2 and about[0].endswith("vLLM refuses to start.")
    assert about[1].startswith("How sure")
    told = found.to_dict()
    assert told["all_reduce"] is None
    assert told["break_even"] == {"requests": None, "latency_us": None}
    assert any("Tensor parallel sends" in reason for reason in llama().reasons())
    with pytest.raises(SparkbookError, match="give --nodes 2 or more"):
        advice.advise(request.read("gpt-oss-120b"), nodes=1)


def test_the_slowest_pair_of_a_fabric_counts() -> None:
    pairs = [
        {"a": "1", "b": "2", "reduce_us": 30, "reduce_gbit": 160},
        {"a": "1", "b": "3", "reduce_us": 300, "reduce_gbit": 80},
    ]
    link = all_reduce.link_of({"pairs": pairs})
    assert link.latency_s.low == pytest.approx(300e-6)
    assert link.gb_s.high == pytest.approx(10)
    assert "1 and 3" in link.source
    for broken in (
        [],
        {},
        [{**pairs[0], "reduce_us": None, "reduce_problem": "NCCL said no"}],
        [*pairs, {"a": "2", "b": "3"}],
    ):
        with pytest.raises(SparkbookError, match="no measured all-reduce"):
            all_reduce.link_of(broken)
    with pytest.raises(SparkbookError, match="NCCL said no"):
        all_reduce.link_of(
            [{"a": "1", "b": "2", "reduce_us": None, "reduce_problem": "NCCL said no"}]
        )


def test_how_far_the_estimate_is_from_what_others_measured() -> None:
    """Nothing was fitted to these figures: the bounds are what was found, so that a change of the
    model shows.
    """
    beside = advice.compared()
    assert len(beside) == 40
    single = [one for one in beside if one.way == "tensor parallel" and one.requests == 1]
    assert max(abs(one.error) for one in single) < 0.05
    tensor = [one for one in beside if one.way == "tensor parallel"]
    assert advice.typical_error(tensor) < 0.12
    assert max(abs(one.error) for one in tensor) < 0.31
    assert advice.typical_error(beside) <= advice.CLOSE - 1
    # Where the publisher's gain is clear, ours points the same way.
    assert all(one.estimate > 1.1 for one in beside if one.gain > 1.25)


def test_every_published_row_has_a_source_and_full_columns() -> None:
    for one in advice.published():
        assert one.url.startswith("https://")
        assert len(one.requests) == len(one.one) == len(one.tensor) == len(one.replicas)


def cli(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *words])
    if isinstance(done.exception, SparkbookError):
        return 2, str(done.exception)
    return done.exit_code, done.output


def test_the_command_prints_it_within_80_columns_and_as_json(tmp_path: Path) -> None:
    code, told = cli("gpt-oss-120b", "--nodes", "2", "--json")
    cluster = json.loads(told)["cluster"]
    assert (
        code,
        cluster["nodes"],
        cluster["all_reduce"]["count"],
        cluster["all_reduce"]["bytes"],
    ) == (0, 2, 73, 5760)
    assert cluster["decode"][0]["best"] == ["tensor parallel"]
    file = tmp_path / "fabric.json"
    file.write_text(json.dumps([{"a": "a", "b": "b", "reduce_us": 800, "reduce_gbit": 8}]))
    code, told = cli("gpt-oss-120b", "--nodes", "2", "--fabric", str(file), "--json")
    assert json.loads(told)["cluster"]["decode"][0]["best"] == ["one node"]
    code, told = cli("gpt-oss-120b", "--nodes", "2")
    assert code == 0
    assert "this link takes 30 to 40 µs" in told
    for name in ("gpt-oss-120b", "mistral-small-4-119b-nvfp4", "llama-3.3-70b-instruct-nvfp4"):
        tables = [
            line
            for line in advice.advise(request.read(name)).lines()
            if not line.plain.startswith("- ")
        ]
        assert max(len(line.plain) for line in tables) <= 80
    assert (
        cli(
            "vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --gpu-memory-utilization 0.05",
            "--nodes",
            "2",
        )[0]
        == 1
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fabric", "x.json"], "--fabric needs --nodes"),
        (
            ["--nodes", "2", "--explain"],
            "--nodes can't be used with --log, --calibration or --explain",
        ),
        (["--nodes", "2", "--fabric", "/nowhere/x.json"], "can't be read"),
    ],
)
def test_what_the_command_cannot_use_is_said(words: list[str], says: str) -> None:
    code, told = cli("gpt-oss-120b", *words)
    assert code == 2
    assert says in told
