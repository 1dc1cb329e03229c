"""Other tools' files, out and in; the tables; the pictures; the schema."""

import json
import re
from pathlib import Path

import pytest
from sparkbook import bench
from sparkbook.bench import exchange, result_tables, vllm_bench
from sparkbook.bench.results import Cell, Engine, Report, Request, WarmUp, figures
from sparkbook.errors import SparkbookError
from sparkbook.plots import measurements as plots

DATA = Path(__file__).parents[1] / "data" / "bench"


def request(n, step=0.02, ttft=0.1, chunks=(1, 2, 3, 2)):
    stamps = [ttft + step * i for i in range(len(chunks))]
    return Request(
        prompt=f"code-{n:03}",
        slot=0,
        start_s=float(n),
        ttfr_s=ttft,
        ttft_s=ttft,
        ttfo_s=ttft,
        latency_s=stamps[-1],
        stamps_s=stamps,
        chunk_tokens=list(chunks),
        prompt_tokens=50,
        output_tokens=sum(chunks),
        id_tokens=sum(chunks),
        count_from="usage",
        text="abc",
    )


def report(label=None, speed=1.0, verdict="valid"):
    cells = []
    drafts = Engine(drafts=24, drafted=96, accepted=32, acceptance=1 / 3, mean_length=7 / 3)
    for name, c in (("code", 1), ("code", 4), ("prose", 1), ("prose", 4)):
        requests = [request(n, step=(0.02 + 0.001 * n) / speed) for n in range(8)]
        cell = Cell(
            prompt_class=name,
            concurrency=c,
            max_tokens=8,
            figures=figures(requests, c),
            requests=requests,
            verdict=verdict,
            warm_up=WarmUp(ttfts_s=[1.0, 0.1, 0.1], settled=True),
            engine=drafts,
        )
        cells.append(cell)
    return Report(
        date="2026-11-28T01:02:03Z", tool="sparkbook", model="tiny", label=label, cells=cells
    )


def test_definitions_of_the_figures():
    """One request by hand: events at 0.10, 0.12, 0.14, 0.16 s with 1, 2, 3 and 2 tokens."""
    one = request(0)
    assert one.tpot_s == pytest.approx(0.06 / 7)
    assert one.step_gaps_s == pytest.approx([0.02] * 3)
    assert one.itl_tok_s == pytest.approx([0.01] * 2 + [0.02 / 3] * 3 + [0.01] * 2)
    assert one.tok_per_step == pytest.approx(7 / 3)
    assert one.req_tok_s == pytest.approx(8 / 0.16)
    bundled = one.model_copy(update={"chunk_tokens": [3, 2, 3], "stamps_s": [0.1, 0.12, 0.14]})
    assert bundled.tpot_s == pytest.approx(
        0.04 / 5
    )  # the first event's tokens came with the first token
    two = figures([one, one.model_copy(update={"slot": 1, "start_s": 0.05})], 2)
    assert two.out_tok_s == pytest.approx(16 / 0.21)
    # Both decode from 0.15 s on, and the first one is done at 0.16: one event of 2 tokens inside,
    # and one of the second's.
    assert two.steady_s == pytest.approx(0.01) and two.steady_tok_s == pytest.approx(2 / 0.01)


def test_p99_needs_a_hundred_and_intervals_count_prompts():
    few = figures([request(n) for n in range(99)]).ttft_s
    many = figures([request(n) for n in range(100)]).ttft_s
    assert few.p99 is None and many.p99 == pytest.approx(0.1)
    # The same two prompts ten times are two, not twenty.
    repeated = figures([request(n % 2, step=0.02 + 0.001 * (n % 2)) for n in range(20)]).tpot_s
    assert repeated.n == 20 and repeated.median_ci is None
    half = (repeated.mean_ci[1] - repeated.mean_ci[0]) / 2
    assert half == pytest.approx(12.7062 * (0.003 / 7 / 2))


def test_our_file_is_read_back_and_fits_its_schema(tmp_path):
    import jsonschema

    kept = report()
    kept.write(tmp_path / "r.json")
    assert Report.read(tmp_path / "r.json") == kept == exchange.read(tmp_path / "r.json")
    published = Path(bench.__file__).with_name("results.schema.json").read_text()
    assert published == bench.json_schema()
    jsonschema.validate(json.loads((tmp_path / "r.json").read_text()), json.loads(published))


def test_vllms_file_goes_out_and_comes_back():
    out = exchange.to_vllm(report(), report().cells[0])
    assert out["mean_tpot_ms"] == pytest.approx(
        1000 * sum((0.02 + 0.001 * n) * 3 / 7 for n in range(8)) / 8
    )
    assert out["spec_decode_acceptance_length"] == pytest.approx(7 / 3)
    (cell,) = exchange.from_vllm(json.loads(json.dumps(out))).cells
    first = report().cells[0].figures
    assert cell.figures.out_tok_s == pytest.approx(first.out_tok_s)
    assert cell.figures.ttft_s.median == pytest.approx(first.ttft_s.median)
    assert cell.figures.latency_s.median == pytest.approx(first.latency_s.median)
    assert cell.engine.mean_length == pytest.approx(7 / 3)
    assert cell.verdict == "invalid" or "BENCH301" in {
        f.rule for f in cell.findings
    }  # its warm-up is unknown


@pytest.mark.parametrize("name", ["cpu-0.32.0-vllm-bench.json", "cpu-0.32.0-vllm-bench-mtp.json"])
def test_real_files_of_vllm_bench_are_read(name):
    value = json.loads((DATA / name).read_text())
    (cell,) = exchange.read(DATA / name).cells
    f = cell.figures
    assert (f.completed, f.output_tokens, f.duration_s, f.out_tok_s) == (
        16,
        1024,
        value["duration"],
        value["output_throughput"],
    )
    assert f.ttft_s.mean == pytest.approx(value["mean_ttft_ms"] / 1000, rel=1e-6)
    assert f.tpot_s.mean == pytest.approx(value["mean_tpot_ms"] / 1000, rel=0.02)
    assert cell.verdict != "valid"


def test_llama_benchys_file_goes_out_and_comes_back():
    out = exchange.to_llama_benchy(report())
    assert {
        "version",
        "timestamp",
        "latency_mode",
        "latency_ms",
        "model",
        "prefix_caching_enabled",
        "max_concurrency",
        "benchmarks",
    } == set(out)
    back = exchange.from_llama_benchy(json.loads(json.dumps(out)))
    for mine, theirs in zip(report().cells, back.cells, strict=True):
        assert theirs.figures.decode_tok_s.median == pytest.approx(mine.figures.decode_tok_s.median)
        assert theirs.figures.ttft_s.median == pytest.approx(mine.figures.ttft_s.median)
        assert theirs.figures.out_tok_s is None  # it has no such quantity


def test_a_real_llama_benchy_file_is_read():
    value = json.loads((DATA / "llama-benchy-0.4.json").read_text())
    cells = exchange.read(DATA / "llama-benchy-0.4.json").cells
    assert [c.concurrency for c in cells] == [run["concurrency"] for run in value["benchmarks"]]
    for cell, run in zip(cells, value["benchmarks"], strict=True):
        assert cell.figures.steady_tok_s == pytest.approx(run["tg_throughput"]["mean"])
        assert cell.figures.ttft_s.mean == pytest.approx(run["e2e_ttft"]["mean"] / 1000)


def test_real_files_of_guidellm_and_aiperf_are_read_by_what_their_words_mean():
    """32 replies of 65 tokens, 16 at a time, from the server whose timing is known: first token
    after 200 ms, 20 steps of 50 ms.

    (The files as the tools wrote them; of GuideLLM's requests only the timings were kept, and
    folders' names were taken out.)
    """
    for name, tool, step in (
        ("guidellm-0.8-spec-c16.json", "GuideLLM 0.8.1", None),
        ("aiperf-0.13-spec-c16.json", "aiperf 0.13.0", 0.05),
    ):
        report = exchange.read(DATA / name)
        (cell,) = report.cells
        f = cell.figures
        assert (report.tool, report.model, report.date[:10], cell.load) == (
            tool,
            "truth",
            "2026-11-28",
            "c=16",
        )
        assert (f.failed, f.output_tokens / f.completed, f.tok_per_step) == (
            0,
            65,
            pytest.approx(3.2),
        )
        assert f.ttft_s.mean == pytest.approx(0.2, abs=0.03) and f.tpot_s.mean == pytest.approx(
            20 * 0.05 / 64, rel=0.02
        )
        assert f.latency_s.median == pytest.approx(
            1.2, abs=0.05
        ) and f.decode_tok_s.median == pytest.approx(64, rel=0.02)
        assert f.out_tok_s == pytest.approx(f.output_tokens / f.duration_s, rel=0.01)
        assert (
            f.step_gap_s and round(f.step_gap_s.mean, 2)
        ) == step  # GuideLLM counts events and does not time them
        assert (
            f.ttft_s.p99 is None
            and cell.verdict != "valid"
            and "BENCH301" in {finding.rule for finding in cell.findings}
        )


def test_a_high_percentile_of_the_speed_is_the_low_one_of_the_time(tmp_path):
    for name, p10_ms in (
        ("guidellm-0.8-spec-c16.json", 15.609048306941986),
        ("aiperf-0.13-spec-c16.json", 15.568804960937499),
    ):
        speed = exchange.read(DATA / name).cells[0].figures.decode_tok_s
        assert speed.p90 == pytest.approx(1000 / p10_ms) and speed.median < speed.p90 < speed.high
    value = json.loads((DATA / "aiperf-0.13-spec-c16.json").read_text())
    del value["inter_token_latency"]["p10"]
    (tmp_path / "x.json").write_text(json.dumps(value))
    assert exchange.read(tmp_path / "x.json").cells[0].figures.decode_tok_s.p90 is None


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ("request_count.avg", "1e400"),
        ("output_sequence_length.max", "Infinity"),
        ("total_osl.avg", "-Infinity"),
        ("inter_token_latency.p50", "0"),
        ("inter_token_latency.avg", "0"),
    ],
)
def test_numbers_of_aiperf_that_are_none_are_refused(tmp_path, where, wrong):
    value = json.loads((DATA / "aiperf-0.13-spec-c16.json").read_text())
    name, place = where.split(".")
    value[name][place] = "HERE"
    (tmp_path / "x.json").write_text(json.dumps(value).replace('"HERE"', wrong))
    with pytest.raises(SparkbookError, match="not a result of aiperf"):
        exchange.read(tmp_path / "x.json")


def test_what_guidellm_calls_time_per_output_token_is_not_taken_for_it():
    told = json.loads((DATA / "guidellm-0.8-spec-c16.json").read_text())["benchmarks"][0][
        "metrics"
    ]["time_per_output_token_ms"]
    assert told["successful"]["mean"] / 1000 == pytest.approx(
        1.2 / 65, rel=0.02
    )  # the first token's wait is in it


def test_tools_that_measure_beside_the_truth(tmp_path):
    about, (header, rows) = result_tables.clients()
    assert {row[0] for row in rows} == set(about["versions"]) and all(
        len(row) == len(header) for row in rows
    )
    mine = [row for row in rows if row[0] == "sparkbook"]
    assert all(
        abs(float(row[3])) < 6 and abs(float(row[4])) <= 0.1 and abs(float(row[6])) <= 0.2
        for row in mine
    )
    for content in ("{}", "[]", '{"rows": [{"tool": 1}]}', "x", "[" * 100_000 + "]" * 100_000):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(SparkbookError, match=r"not a comparison|is not JSON|nested too deeply"):
            result_tables.clients(tmp_path / "c.json")


@pytest.mark.parametrize(
    "content",
    [
        '{"benchmarks": [{"config": {}}], "metadata": {}}',
        '{"aiperf_version": "1"}',
        "{}",
        "[]",
        "no json",
        '{"output_throughput": 1}',
        '{"benchmarks": [{}]}',
        '{"schema": "sparkbench/1"}',
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(SparkbookError) as error:
        exchange.read(tmp_path / "x.json")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
@pytest.mark.parametrize("times", ["ttfts", "itls"])
def test_a_time_that_is_no_number_is_invalid_and_written_again(tmp_path, times, number):
    text = (DATA / "cpu-0.32.0-vllm-bench.json").read_text()
    changed, count = re.subn(rf'("{times}": \[+)[\d.e-]+', rf"\g<1>{number}", text)
    assert count == 1
    (tmp_path / "x.json").write_text(changed)
    result = exchange.read(tmp_path / "x.json")
    assert result.verdict == "invalid"
    assert exchange.to_vllm(result, result.cells[0])["completed"]
    assert exchange.to_llama_benchy(result)["benchmarks"]


def test_performance_yaml_takes_valid_rows_alone():
    value = exchange.to_performance(
        report(),
        report().cells[0],
        {"recipe_sha256": "f0" * 32, "system": {"label": "NVIDIA DGX Spark"}},
    )
    (profile,) = value["profiles"]
    assert profile["workload"] == {
        "input_tokens": 50,
        "dataset": "sparkbook code",
        "input_tokens_min": 50,
        "input_tokens_max": 50,
        "input_tokens_total": 400,
        "output_tokens": 8,
        "concurrency": 1,
        "requests": 8,
        "warmup_requests": 3,
    }
    assert set(profile["results"]) == {
        "prefill_tokens_per_second_mean",
        "decode_tokens_per_second_mean",
        "e2e_latency_ms_mean",
    }
    assert value["measured_at"] == "2026-11-28"
    bad = report(verdict="suspect")
    with pytest.raises(SparkbookError, match="suspect"):
        exchange.to_performance(bad, bad.cells[0], {})


def test_forms_of_other_tools(tmp_path):
    """One row goes out as each; NVIDIA's file takes a row that passed alone."""
    import yaml
    from sparkbook.cli import app
    from typer.testing import CliRunner

    def run(*arguments):
        return CliRunner().invoke(app, ["bench", *arguments])

    one = report()
    one.cells = one.cells[:1]
    one.write(tmp_path / "r.json")
    for form in ("vllm", "llama-benchy"):
        assert (
            run(str(tmp_path / "r.json"), "--out", str(tmp_path / form), "--as", form).exit_code
            == 0
        )
        assert json.loads((tmp_path / form).read_text())
    assert (
        run(
            str(tmp_path / "r.json"), "--out", str(tmp_path / "p.yaml"), "--as", "performance"
        ).exit_code
        == 0
    )
    assert (
        yaml.safe_load((tmp_path / "p.yaml").read_text())["profiles"][0]["workload"]["concurrency"]
        == 1
    )
    one.cells[0].verdict = "suspect"
    one.write(tmp_path / "r.json")
    assert "suspect" in str(
        run(
            str(tmp_path / "r.json"), "--out", str(tmp_path / "p.yaml"), "--as", "performance"
        ).exception
    )


def test_vllm_bench_is_run_and_its_result_imported(tmp_path):
    """A stand-in for the command writes a real result where it is told to."""
    from sparkbook.serve.endpoint import Endpoint

    script = tmp_path / "vllm"
    script.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in --result-dir) dir=$2;; --tokenizer)"
        " name=$2;; esac; shift; done\n[ $name = bad ] && { echo no tokenizer >&2; exit 1; }\ncp"
        f" {DATA / 'cpu-0.32.0-vllm-bench.json'} $dir/result.json\n"
    )
    script.chmod(0o755)
    endpoint = Endpoint("http://127.0.0.1:1", "tiny", "key")
    assert (
        vllm_bench.run_vllm_bench(endpoint, command=[str(script)], tokenizer="ok")
        .cells[0]
        .figures.completed
        == 16
    )
    with pytest.raises(SparkbookError, match="no tokenizer"):
        vllm_bench.run_vllm_bench(endpoint, command=[str(script)], tokenizer="bad")


def test_tables_have_the_published_form():
    header, rows = result_tables.by_class(report())
    assert [row[0] for row in rows] == ["code", "prose"] and len(rows[0]) == len(header)
    header, rows = result_tables.by_concurrency(report(), "code")
    assert [row[1] for row in rows] == ["c=1", "c=4"] and all(
        len(row) == len(header) for row in rows
    )
    header, rows = result_tables.modes(
        [report("off"), report("capture_only", 0.98), report("hybrid", 0.97)]
    )
    assert header[2:5] == ["off, tok/s", "capture_only, tok/s", "hybrid, tok/s"]
    assert rows[0][-2] == pytest.approx(-3.0) and rows[0][-1] == "valid"
    long = report()
    long.cells[0].context = 4000
    header, rows = result_tables.by_context(long)
    assert len(rows) == 1 and rows[0][0] == 50 and len(rows[0]) == len(header)


@pytest.mark.parametrize("draw", [plots.by_class, plots.by_concurrency])
def test_what_did_not_pass_is_hatched(draw):
    mixed = report()
    mixed.cells[0].verdict, mixed.cells[2].verdict = "suspect", "invalid"
    chart = draw(mixed)
    hatches = [patch.get_hatch() for patch in chart.figure.axes[0].patches]
    expected = {plots.by_class: ["//", "xx"], plots.by_concurrency: ["//", "", "xx", ""]}[draw]
    assert [hatch or "" for hatch in hatches] == expected
    assert "(suspect)" in chart.alt and chart.svg.startswith("<svg ")
