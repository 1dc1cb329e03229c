"""Two scrapes and what they say; the case of a healthy draft on a machine stuck at low power, and
its twins.
"""

from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Metrics
from sparkbook.metrics.deltas import deltas
from sparkbook.metrics.diagnose import Telemetry, diagnose_metrics

DATA = Path(__file__).parents[1] / "data" / "metrics"


def scrape(
    drafts, drafted, accepted, positions, tokens, running=1, preemptions=0, kv=0.41, waiting=0
):
    per = "\n".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {n}'
        for i, n in enumerate(positions)
    )
    counters = {
        "spec_decode_num_drafts": drafts,
        "spec_decode_num_draft_tokens": drafted,
        "spec_decode_num_accepted_tokens": accepted,
        "generation_tokens": tokens,
        "num_preemptions": preemptions,
    }
    text = "".join(
        f"# TYPE vllm:{name}_total counter\nvllm:{name}_total {value}\n"
        for name, value in counters.items()
    )
    text += f"# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter\n{per}\n"
    for name, value in (
        ("num_requests_running", running),
        ("num_requests_waiting", waiting),
        ("kv_cache_usage_perc", kv),
    ):
        text += f"# TYPE vllm:{name} gauge\nvllm:{name} {value}\n"
    return Metrics.parse(text)


BEFORE = scrape(10000, 30000, 17000, (8400, 5600, 3000), 50000)
AFTER = scrape(11200, 33600, 19124, (9420, 6308, 3396), 53324)
SLOW = Telemetry(
    power_w=20, clock_mhz=799, utilization=0.96, performance_state="P0", throttled=False
)


def said(findings):
    return "\n".join(f"{f.message} {f.evidence} {f.fix}" for f in findings)


def test_the_case():
    change, findings = diagnose_metrics(
        BEFORE, AFTER, 60, SLOW, queries=("vllm:gpu_cache_usage_perc",)
    )
    assert (change.drafts, change.drafted, change.accepted) == (1200, 3600, 2124)
    assert change.acceptance == pytest.approx(0.59) and change.mean_length == pytest.approx(2.77)
    assert change.per_position == pytest.approx((0.85, 0.59, 0.33))
    assert sum(change.per_position) * change.drafts == pytest.approx(change.accepted)
    text = said(findings)
    assert (
        findings[0].kind == "power-throttle"
        and "AC plug" in findings[0].fix
        and "invalid" in findings[0].fix
    )
    assert "acceptance 59.0%, 2.77 tokens a step, by position 0.85 / 0.59 / 0.33" in text
    assert "Measure 2 against 3" in text
    assert "41% full" in text
    assert any(f.kind == "metrics-renamed" and "kv_cache_usage_perc" in f.fix for f in findings)
    for never in ("deadlock", "leak", "63.8", "56.9"):
        assert never not in text


def test_twin_deadlock():
    still = scrape(11200, 33600, 19124, (9420, 6308, 3396), 53324)
    _, findings = diagnose_metrics(
        AFTER, still, 120, Telemetry(power_w=21, clock_mhz=2580, utilization=0.96, throttled=False)
    )
    assert (
        findings[0].rule == "MET101"
        and findings[0].kind == "hang-health-ok"
        and findings[0].confidence == "high"
    )
    assert "Restart the engine" in findings[0].fix and "AC plug" not in said(findings)


def test_twin_broken_pair():
    after = scrape(11200, 33600, 17012, (8412, 5600, 3000), 53324)
    _, findings = diagnose_metrics(BEFORE, after, 60)
    assert (
        findings[0].kind == "spec-decode-acceptance" and "not a matter of tuning" in findings[0].fix
    )


def test_healthy_is_an_answer():
    _, findings = diagnose_metrics(
        BEFORE, AFTER, 60, Telemetry(power_w=70, clock_mhz=2500, utilization=0.96, throttled=False)
    )
    assert findings.worst == "info"


def test_a_short_silence_is_not_a_deadlock():
    _, findings = diagnose_metrics(AFTER, AFTER, 10)
    assert findings[0].rule == "MET103" and findings.worst == "info"


def test_idle_is_not_a_deadlock():
    idle = scrape(11200, 33600, 19124, (9420, 6308, 3396), 53324, running=0)
    _, findings = diagnose_metrics(AFTER, idle, 600)
    assert findings.worst == "info"


def test_preemptions_and_a_queue():
    crowded = scrape(
        11200, 33600, 19124, (9420, 6308, 3396), 53324, running=4, waiting=9, preemptions=7, kv=0.99
    )
    _, findings = diagnose_metrics(BEFORE, crowded, 60)
    assert {"MET301", "MET303"} <= {f.rule for f in findings}


def test_a_recorded_engine():
    before, after = (
        Metrics.parse((DATA / f"h100-0.24.0-ngram-{when}.txt").read_text())
        for when in ("before", "after")
    )
    change, findings = diagnose_metrics(before, after, 9)
    assert (change.drafts, change.drafted, change.accepted) == (19, 76, 45)
    assert [round(p * 19) for p in change.per_position] == [15, 13, 9, 8]
    assert findings.worst == "info" and "drafts are few" in said(findings)


def test_what_cannot_be_judged():
    with pytest.raises(SparkbookError, match="restarted"):
        deltas(AFTER, BEFORE, 60)
    with pytest.raises(SparkbookError, match="more than 0"):
        deltas(BEFORE, AFTER, 0)


def test_the_verb():
    import json

    from sparkbook.cli import app
    from typer.testing import CliRunner

    files = [str(DATA / f"h100-0.24.0-ngram-{when}.txt") for when in ("before", "after")]
    result = CliRunner().invoke(
        app, ["metrics", *files, "--seconds", "9", "--json", "--query", "vllm:gpu_cache_usage_perc"]
    )
    answer = json.loads(result.output)
    assert result.exit_code == 0 and answer["summary"]["acceptance"] == pytest.approx(45 / 76)
    assert answer["findings"][0]["rule"] == "MET401"
    alone = CliRunner().invoke(app, ["metrics", files[0]])
    assert isinstance(alone.exception, SparkbookError)


def test_the_verb_on_a_server():
    import http.server
    import json
    import threading

    from sparkbook.cli import app
    from typer.testing import CliRunner

    pages = iter(
        [(DATA / f"h100-0.24.0-ngram-{when}.txt").read_bytes() for when in ("before", "after")]
    )

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = next(pages, None) if self.path == "/metrics" else None
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        answer = json.loads(
            CliRunner().invoke(app, ["metrics", address, "--seconds", "0.2", "--json"]).output
        )
        assert answer["summary"]["deltas"]["drafts"] == 19
        gone = CliRunner().invoke(app, ["metrics", address, "--seconds", "0.2"])
        assert isinstance(gone.exception, SparkbookError) and "404" in str(gone.exception)
        server.shutdown()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("vllm:gpu_cache_usage_perc", "0.11.0 to 0.11.2"),
        ("rate(vllm:time_per_output_token_seconds_bucket[1m])", "0.11.0 to 0.14.1"),
        ("vllm:num_requests_swapped", "in no release from 0.11.0 on"),
        ("vllm:num_preemtions_total", "in no release"),
        ("vllm:external_prefix_cache_hits_total", "since 0.11.1"),
    ],
)
def test_the_life_of_a_name_comes_from_the_releases_table(query, said):
    finding = next(
        f for f in diagnose_metrics(BEFORE, AFTER, 60, queries=(query,))[1] if f.rule == "MET401"
    )
    assert said in finding.message and finding.fix
    if "preemtions" in query:
        assert "num_preemptions" in finding.fix


def test_successors_are_names_of_the_newest_release():
    import re

    from sparkbook import releases
    from sparkbook.metrics.diagnose import SUCCESSORS

    now = set(releases.get(releases.newest()).metrics)
    for name, instead in SUCCESSORS.items():
        assert name not in now
        if not instead.startswith("nothing"):
            assert {
                word.removesuffix("_total") for word in re.findall(r"[a-z_]{8,}", instead)
            } <= now


def test_a_name_that_is_served_is_not_complained_of():
    query = "rate(vllm:generation_tokens_total[1m]) / vllm:num_requests_running"
    assert "MET401" not in [
        f.rule for f in diagnose_metrics(BEFORE, AFTER, 60, queries=(query,))[1]
    ]


def test_a_running_server_says_which_release_it_is():
    import http.server
    import json
    import threading

    from sparkbook import releases
    from sparkbook.cli import app
    from typer.testing import CliRunner

    spans = {name: releases.presence("metrics", name) for name in releases.get("0.32.0").metrics}
    young = next(
        name for name, lives in spans.items() if lives[0][0] > "0.20" and lives[-1][1] is None
    )

    class Old(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = (
                json.dumps({"version": "0.13.0"})
                if self.path == "/version"
                else 'vllm:num_requests_running{model_name="m"} 0.0\n'
            )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = [f"http://127.0.0.1:{server.server_port}", "--seconds", "0.1", "--query", young]
        own = CliRunner().invoke(app, ["metrics", *words]).output
        newer = CliRunner().invoke(app, ["metrics", *words, "--release", "0.32.0"]).output
        server.shutdown()
    assert "while that is in use" in newer
    assert "while that is in use" not in own, "0.13.0 does not have it at all"


def test_scrapes_without_vllm_are_not_called_healthy(tmp_path):
    from sparkbook.cli import app
    from typer.testing import CliRunner

    empty = tmp_path / "empty.txt"
    empty.write_text("")
    result = CliRunner().invoke(app, ["metrics", str(empty), str(empty)])
    assert "empty.txt has no metrics of vLLM" in str(result.exception)
