"""Reading `/metrics`, against what real engines printed."""

import math
from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Histogram, Metrics

DATA = Path(__file__).parents[1] / "data" / "metrics"


@pytest.fixture(scope="module")
def before():
    return Metrics.parse((DATA / "h100-0.24.0-ngram-before.txt").read_text("utf-8"))


@pytest.fixture(scope="module")
def after():
    return Metrics.parse((DATA / "h100-0.24.0-ngram-after.txt").read_text("utf-8"))


def test_real_counters(before, after):
    drafts, drafted, accepted = (
        after.value(f"vllm:spec_decode_num_{name}_total") - before.value(f"spec_decode_num_{name}")
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert (drafts, drafted, accepted) == (19, 76, 45)
    assert list(after.by_label("spec_decode_num_accepted_tokens_per_pos", "position").values()) == [
        15,
        13,
        9,
        8,
    ]


def test_an_info_metric_says_everything_in_its_labels(after):
    assert after.labels("cache_config_info")["block_size"] == "16"


def test_a_scrape_without_type_lines_keeps_every_series(after):
    bare = Metrics.parse(
        "".join(
            f"{line}\n"
            for line in (DATA / "h100-0.24.0-ngram-after.txt").read_text("utf-8").splitlines()
            if line[0] != "#"
        )
        + 'vllm:num_requests_running{engine="1"} 5\n'
    )
    assert bare.value("num_requests_running") == after.value("num_requests_running") + 5
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    assert bare.by_label(name, "position") == after.by_label(name, "position")
    assert len(bare.by_label(name, "position")) == 4


def test_real_histogram(before, after):
    ttft = after.histogram("time_to_first_token_seconds").minus(
        before.histogram("time_to_first_token_seconds")
    )
    assert ttft.count == 3
    assert sum(ttft.per_bucket) == 3
    assert math.isinf(ttft.bounds[-1])
    assert 0 < ttft.quantile(0.5) <= ttft.quantile(0.9)


def test_names_and_help(after):
    assert "kv_cache_usage_perc" in after.names()
    assert [name for name in after.names() if name.endswith(("_created", "_total"))] == [
        "iteration_tokens_total"
    ]  # a histogram, in spite of its name
    assert "KV" in after.help("kv_cache_usage_perc")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda m: m.value("gpu_cache_usage_perc"),
            "no metric 'gpu_cache_usage_perc': close to it are kv_cache_usage_perc",
        ),
        (
            lambda m: m.value("time_to_first_token_seconds"),
            r"is a histogram: ask histogram\('time_to_first_token_seconds'\)",
        ),
        (lambda m: m.histogram("kv_cache_usage_perc"), "is a gauge, not a histogram"),
        (lambda m: m.value("request_success", finished_reason="nonsense"), "no series with"),
        (lambda m: m.value("zzz"), "lists what it has"),
    ],
)
def test_what_is_not_there_is_an_error(after, ask, message):
    with pytest.raises(SparkbookError, match=message):
        ask(after)


def test_not_a_metrics_page():
    with pytest.raises(SparkbookError, match="not a /metrics page"):
        Metrics.parse("<html>{")


@pytest.mark.parametrize(
    ("q", "value"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (1.0, 2.0)]
)
def test_quantiles_interpolate_inside_the_bucket(q, value):
    assert Histogram((1.0, 2.0, math.inf), (2.0, 4.0, 4.0), 4.0).quantile(q) == pytest.approx(value)


def test_quantiles_at_the_edges():
    assert Histogram((1.0, math.inf), (0.0, 0.0), 0.0).quantile(0.5) is None
    assert Histogram((1.0, math.inf), (0.0, 0.0), 0.0).mean is None
    assert (
        Histogram((1.0, math.inf), (0.0, 3.0), 30.0).quantile(0.5) == 1.0
    )  # beyond the last finite bound
    with pytest.raises(SparkbookError, match="between 0 and 1"):
        Histogram((1.0,), (1.0,), 1.0).quantile(1.5)
    with pytest.raises(SparkbookError, match="different buckets"):
        Histogram((1.0,), (1.0,), 1.0).minus(Histogram((2.0,), (1.0,), 1.0))


def test_a_page_without_an_end_is_refused_before_it_is_parsed():
    with pytest.raises(SparkbookError, match="more than 50,000 lines"):
        Metrics.parse("a 1\n" * 50_001)
