"""The live view: looks at recorded scrapes, the dashboard's thread against a server, and what is
written for Grafana and Prometheus.
"""

import http.server
import itertools
import json
import threading
import time
from pathlib import Path

import pytest
import yaml
from sparkbook import dashboard, releases
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Metrics
from sparkbook.plots.dashboard import panels
from typer.testing import CliRunner

DATA = Path(__file__).parent / "data" / "metrics"
BEFORE, AFTER = (
    (DATA / f"h100-0.24.0-ngram-{when}.txt").read_text() for when in ("before", "after")
)


@pytest.mark.parametrize("version", ["0.24.0", "0.32.0"])
def test_every_name_is_one_that_the_release_has(version):
    known = releases.get(version).metrics
    names = {name for panel in dashboard.PANELS for name in panel.metrics}
    assert len(names) == 9 and not names - set(known), names - set(known)


def test_counters_are_asked_as_rates_and_gauges_are_not():
    kinds = releases.get("0.32.0").metrics
    for panel in dashboard.PANELS:
        wanted = {
            "gauge": "gauge",
            "rate": "counter",
            "quantiles": "histogram",
            "positions": "counter",
        }[panel.kind]
        assert {kinds[name] for name in panel.metrics} == {wanted}, panel.title


def test_the_verb_writes_what_grafana_and_prometheus_read():
    told = json.loads(CliRunner().invoke(app, ["monitor", "grafana"]).output)
    assert [panel["title"] for panel in told["panels"]] == [
        panel.title for panel in dashboard.PANELS
    ]
    assert all(target["expr"] for panel in told["panels"] for target in panel["targets"])
    text = (
        CliRunner()
        .invoke(app, ["monitor", "prometheus", "--server", "spark:8000", "--server", "other:8000"])
        .output
    )
    assert yaml.safe_load(text)["scrape_configs"][0]["static_configs"] == [
        {"targets": ["spark:8000", "other:8000"]}
    ]
    assert "No such command" in CliRunner().invoke(app, ["monitor", "nagios"]).output


def test_a_look_is_the_difference():
    before, after = Metrics.parse(BEFORE), Metrics.parse(AFTER)
    one = dashboard.look(before, after, 10.0, 10.0)
    grown = after.value("generation_tokens") - before.value("generation_tokens")
    assert one.generation_tok_s == pytest.approx(grown / 10, abs=0.06)
    assert (
        sum(one.ttft.values())
        == after.histogram("time_to_first_token_seconds").count
        - before.histogram("time_to_first_token_seconds").count
    )
    assert one.per_position and 0 < one.per_position[0] <= 1
    assert dashboard.look(after, after, 1.0, 1.0).ttft == {}


def test_looks_are_kept_and_read_back(tmp_path):
    one = dashboard.look(Metrics.parse(BEFORE), Metrics.parse(AFTER), 10.0, 10.0)
    dashboard.write([one, one], tmp_path / "looks.json", engine="vLLM 0.24.0")
    assert dashboard.read(tmp_path / "looks.json") == ({"engine": "vLLM 0.24.0"}, [one, one])
    (tmp_path / "looks.json").write_text("{}")
    with pytest.raises(SparkbookError):
        dashboard.read(tmp_path / "looks.json")


def test_the_recorded_minute_is_one():
    about, looks = dashboard.read()
    assert about["engine"].startswith("vLLM ") and 50 <= len(looks) <= 61 and looks[-1].t_s >= 60
    assert max(one.running for one in looks) >= 8 and min(one.running for one in looks) == 0
    assert f"over {len(looks)} looks" in panels(looks, "x").alt


def test_the_dashboard_starts_looks_and_stops():
    pages = itertools.chain([BEFORE], itertools.repeat(AFTER))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(next(pages).encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = dashboard.Dashboard(f"http://127.0.0.1:{server.server_port}/v1", interval_s=0.05)
        shown.start()
        for _ in range(1200):  # a minute
            if len(shown.looks) >= 2 and shown.image.value:
                break
            time.sleep(0.05)
        shown.stop()
        seen = len(shown.looks)
        server.shutdown()
    assert (
        seen >= 2
        and shown.looks[0].generation_tok_s > 0
        and bytes(shown.image.value).startswith(b"<svg ")
    )
    assert (
        not shown.button.value
        and "application/vnd.jupyter.widget-view+json" in shown._repr_mimebundle_()
    )


def test_a_dead_server_is_said_in_the_dashboard():
    shown = dashboard.Dashboard("http://127.0.0.1:9", interval_s=0.05)
    shown.start()
    for _ in range(1200):
        if "does not answer" in shown.said.value:
            break
        time.sleep(0.05)
    shown.stop()
    assert "does not answer" in shown.said.value


def test_prometheus_gets_host_and_port():
    assert dashboard.prometheus(["http://x:1/metrics"]) == dashboard.prometheus(["x:1"])
    with pytest.raises(SparkbookError, match="HOST:PORT"):
        dashboard.prometheus([""])
    with pytest.raises(SparkbookError, match="uses TLS"):
        dashboard.prometheus(["https://x:1"])
