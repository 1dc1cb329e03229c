"""What `monitor up` writes. Debian's promtool and Prometheus read their files for real. Debian, PyPI
and npm do not have Grafana: TypeScript checks the dashboard against Grafana's own types (npm's
@grafana/schema, of the image's release), the real Prometheus answers every query of its panels, and
the provisioning files are compared with Grafana's documentation.
"""

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import MagicMock

import httpx
import pytest
import yaml
from click.testing import CliRunner
from sparkbook import dashboard, monitor, releases
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.host import spark
from sparkbook.monitor import _exporter, alerts
from sparkbook.runner.project import here
from sparkbook.serve.process import free_port
from sparkbook.site import vendor
from typer.main import get_command

PAGE = (Path(__file__).parents[1] / "data/metrics/h100-0.24.0-ngram-after.txt").read_text()
PORTS = {"exporter": 9101, "prometheus": 9090, "grafana": 3001}
V, HOST = 'instance="a:1",job="vllm"', 'instance="h:1",job="host"'
LOW = f"{spark.STUCK_MHZ - 100:g}"
SERIES = {
    "Silent": ([(f"up{{{V}}}", "0x60")], [(f"up{{{V}}}", "1x60")]),
    "MemoryLow": (
        [
            (f"sparkbook_memory_total_bytes{{{HOST}}}", "100x60"),
            (f"sparkbook_memory_available_bytes{{{HOST}}}", "4x60"),
        ],
        [
            (f"sparkbook_memory_total_bytes{{{HOST}}}", "100x60"),
            (f"sparkbook_memory_available_bytes{{{HOST}}}", "6x60"),
        ],
    ),
    "NoProgress": (
        [
            (f"vllm:num_requests_running{{{V}}}", "2x60"),
            (f"vllm:generation_tokens_total{{{V}}}", "9x60"),
            (f"vllm:prompt_tokens_total{{{V}}}", "9x60"),
        ],
        [
            (f"vllm:num_requests_running{{{V}}}", "2x60"),
            (f"vllm:generation_tokens_total{{{V}}}", "0+5x60"),
            (f"vllm:prompt_tokens_total{{{V}}}", "9x60"),
        ],
    ),
    "ClockStuck": (
        [
            (f"sparkbook_gpu_clock_mhz{{{HOST}}}", f"{LOW}x60"),
            (f"sparkbook_gpu_busy_ratio{{{HOST}}}", "0.9x60"),
            (f"sparkbook_gpu_throttled{{{HOST}}}", "0x60"),
        ],
        [
            (f"sparkbook_gpu_clock_mhz{{{HOST}}}", f"{LOW}x60"),
            (f"sparkbook_gpu_busy_ratio{{{HOST}}}", "0.9x60"),
            (f"sparkbook_gpu_throttled{{{HOST}}}", "1x60"),
        ],
    ),
    "Queue": (
        [(f"vllm:num_requests_waiting{{{V}}}", "3x60")],
        [(f"vllm:num_requests_waiting{{{V}}}", "3x5 0 3x5 0 3x5 0 3x2")],
    ),
    "KvCacheFull": (
        [
            (f"vllm:kv_cache_usage_perc{{{V}}}", "0.99x60"),
            (f"vllm:num_requests_waiting{{{V}}}", "0x60"),
            (f"vllm:num_preemptions_total{{{V}}}", "0+1x60"),
        ],
        [
            (f"vllm:kv_cache_usage_perc{{{V}}}", "0.99x60"),
            (f"vllm:num_requests_waiting{{{V}}}", "0x60"),
            (f"vllm:num_preemptions_total{{{V}}}", "7x60"),
        ],
    ),
    "Restarted": (
        [(f"process_start_time_seconds{{{V}}}", "100x22 700x40")],
        [(f"process_start_time_seconds{{{V}}}", "100x60")],
    ),
}
"""For each alert: what makes it fire, and what comes close and does not. A value every 30 s."""


def wanted(**changes):
    return monitor.Wanted(
        **{
            "servers": ("127.0.0.1:8000",),
            "key_file": None,
            "ports": PORTS,
            "gpu": False,
            **changes,
        }
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))
    planned = monitor.plan(wanted())
    monitor._write(planned)
    return planned.folder


@pytest.mark.monitor
def test_promtool_accepts_the_configuration_and_its_rules(files):
    asked = subprocess.run(
        ["promtool", "check", "config", files / "prometheus/prometheus.yml"],
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0, asked.stderr
    assert f"SUCCESS: {len(alerts.ALERTS)} rules found" in asked.stdout


@pytest.mark.monitor
@pytest.mark.parametrize("name", [alert.name for alert in alerts.ALERTS])
@pytest.mark.parametrize("fires", [True, False])
def test_an_alert_fires_when_it_should(files, tmp_path, name, fires):
    series = [{"series": key, "values": values} for key, values in SERIES[name][not fires]]
    test = {
        "interval": "30s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": "12m",
                "exp_samples": [{"labels": "{}", "value": int(fires)}],
            }
        ],
    }
    file = tmp_path / "test.yml"
    rules = str(files / "prometheus/alerts.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "tests": [test]}))
    asked = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_every_metric_of_an_alert_exists():
    text = " ".join(alert.expr for alert in alerts.ALERTS)
    known = releases.get("0.32.0").metrics
    names = {re.sub("_total$", "", name) for name in re.findall(r"vllm:(\w+)", text)}
    assert len(names) >= 6 and not names - set(known)
    own = {*_exporter.HOST.values(), *_exporter.GPU.values(), "sparkbook_gpu_throttled"}
    assert set(re.findall(r"sparkbook_\w+", text)) <= own
    assert "process_start_time_seconds" in PAGE


def test_what_is_unknown_is_left_out_of_the_page():
    page = _exporter.page("MemTotal: 100 kB\nMemAvailable: 7 kB\n", {"clock_mhz": None})
    assert "sparkbook_memory_available_bytes 7168" in page and "gpu" not in page
    seen = _exporter.page("", {"clock_mhz": 700.0, "gpu_busy": 0.9, "reasons": 0x4})
    assert "sparkbook_gpu_clock_mhz 700.0" in seen and "sparkbook_gpu_throttled 1" in seen
    assert "sparkbook_gpu_throttled 0" in _exporter.page("", {"reasons": 0x1})


def test_all_listen_on_the_loopback_address_and_no_secret_is_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))
    key = tmp_path / "key"
    key.write_text("secret-of-the-server")
    key.chmod(0o600)
    planned = monitor.plan(wanted(key_file=str(key), gpu=True))
    shown = json.dumps(planned.to_dict())
    assert "secret-of-the-server" not in shown and str(key) in shown
    config = yaml.safe_load(planned.files["prometheus/prometheus.yml"])
    assert config["scrape_configs"][0]["authorization"] == {"credentials_file": "/server-key"}
    assert "0.0.0.0" not in shown
    assert "--web.listen-address=127.0.0.1:9090" in planned.requests["prometheus"]["command"]
    assert planned.requests["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert planned.requests["exporter"]["device_requests"]
    key.chmod(0o644)
    with pytest.raises(SparkbookError, match="chmod 600"):
        monitor.plan(wanted(key_file=str(key)))


def test_a_key_file_that_docker_can_not_mount_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))
    key = tmp_path / "my:key"
    key.write_text("secret")
    key.chmod(0o600)
    with pytest.raises(SparkbookError, match="no file with a colon"):
        monitor.plan(wanted(key_file=str(key)))


def test_a_port_that_is_taken_leaves_the_monitor_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))
    removed = []
    monkeypatch.setattr(monitor, "down", removed.append)
    monkeypatch.setattr(monitor, "image_present", lambda *_: True)
    host = MagicMock(remote=False)
    host.client.info.return_value = {}
    host.client.api.containers.return_value = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = PORTS | {"grafana": taken.getsockname()[1]}
        with pytest.raises(SparkbookError, match="--grafana-port"):
            monitor.up(host, monitor.plan(wanted(ports=ports)), print)
    assert not removed


@pytest.mark.parametrize(
    "verb",
    [
        monitor.status,
        monitor.down,
        lambda host: monitor.up(host, monitor.plan(wanted()), print),
    ],
)
def test_the_monitor_of_another_user_is_left_alone(tmp_path, monkeypatch, verb):
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "ana"))
    labels = monitor.plan(wanted()).requests["grafana"]["labels"]
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "ben"))
    host = MagicMock(remote=False)
    host.client.info.return_value = {}
    entry = {"Id": "1", "Names": ["/sparkbook-grafana"], "State": "running", "Labels": labels}
    host.client.api.containers.return_value = [entry]
    removed = []
    monkeypatch.setattr(monitor.containers, "remove", lambda *_: removed.append(1))
    with pytest.raises(SparkbookError, match=rf"its files in {tmp_path}/ana/monitor"):
        verb(host)
    assert not removed and not host.client.images.method_calls
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "ana"))
    assert monitor.down(host) == ["sparkbook-grafana"] and removed


def test_a_dry_run_shows_requests_as_docker_gets_them():
    text = CliRunner().invoke(get_command(app), ["monitor", "up", "--dry-run"]).output
    shown = text.rpartition("# exporter\n")[2].partition("# prometheus\n")[0]
    assert json.loads(shown)["name"] == "sparkbook-exporter"


def compiled(folder: Path, board: dict) -> subprocess.CompletedProcess[str]:
    """TypeScript's verdict on a dashboard as a value of Grafana's type."""
    tools = here().vendor / "tests"
    file = folder / "board.ts"
    file.write_text(
        f'import type {{ Dashboard }} from "{tools}/grafana/index";\n'
        f"export const board: Dashboard = {json.dumps(board)};\n"
    )
    compiler = [vendor.node(), tools / "typescript/tsc.js"]
    options = ["--noEmit", "--strict", "--skipLibCheck", "--lib", "es2022"]
    return subprocess.run([*compiler, *options, file], capture_output=True, text=True, check=False)


@pytest.fixture
def board(files):
    vendor.ensure(here())
    return json.loads((files / "grafana/dashboards/spark.json").read_text())


@pytest.mark.slow
def test_grafanas_own_types_accept_the_dashboards(board, tmp_path):
    to_import = dashboard.grafana()
    assert [one["name"] for one in to_import.pop("__inputs")] == ["DS_PROMETHEUS"]  # of an export
    for one in (board, to_import):
        done = compiled(tmp_path, one)
        assert done.returncode == 0, done.stdout
    release = json.loads((here().root / "package.json").read_text())["dependencies"]
    assert f":{release['@grafana/schema']}@" in monitor.IMAGES["grafana"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"refresh": 10}, "'number' is not assignable to type 'string'"),
        ({"tittle": "x"}, "'\"tittle\"' does not exist in type 'Dashboard'"),
        ({"panels": [{"type": "timeseries", "title": 1}]}, "'number' is not assignable"),
    ],
)
def test_they_refuse_another(board, tmp_path, change, refused):
    done = compiled(tmp_path, board | change)
    assert done.returncode and refused in done.stdout, done.stdout


def test_grafana_finds_what_it_provisions(files):
    """Keys and folders: https://grafana.com/docs/grafana/v13.3/administration/provisioning/, paths
    of the image: https://grafana.com/docs/grafana/v13.3/setup-grafana/configure-docker/ (both
    2026-11-29).
    """
    place = files / "grafana"
    source = yaml.safe_load((place / "datasources/prometheus.yml").read_text())
    provider = yaml.safe_load((place / "dashboards/provider.yml").read_text())
    assert source.keys() == {"apiVersion", "datasources"} and source["apiVersion"] == 1
    assert provider.keys() == {"apiVersion", "providers"} and provider["apiVersion"] == 1
    [one] = source["datasources"]
    known = "name type access orgId uid url user database basicAuth basicAuthUser version editable"
    assert one.keys() <= {*known.split(), "withCredentials", "isDefault", "jsonData"}
    assert {"name", "type", "access"} <= one.keys() and one["jsonData"].keys() == {"timeInterval"}
    [one] = provider["providers"]
    known = "name orgId folder folderUid type disableDeletion updateIntervalSeconds allowUiUpdates"
    assert one.keys() <= {*known.split(), "options"} and one["type"] == "file"
    asked = monitor.plan(wanted()).requests["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in asked["volumes"])
    inside = mounted[str(place)]
    assert asked["environment"]["GF_PATHS_PROVISIONING"] == inside
    assert one["options"] == {"path": f"{inside}/dashboards"}
    assert mounted[str(files / "data/grafana")] == "/var/lib/grafana"


@pytest.mark.monitor
@pytest.mark.slow
def test_prometheus_has_what_every_panel_asks_for(tmp_path, monkeypatch):
    """The real Prometheus scrapes the exporter, with a stand-in nvidia-smi, and a page of vLLM."""
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_):
            pass

    bin_ = tmp_path / "bin"
    bin_.mkdir()
    smi = bin_ / "nvidia-smi"
    smi.write_text('#!/bin/sh\nwhile sleep 1; do echo "0, 700, 3003, 25, 60, 95, 0x0"; done\n')
    smi.chmod(0o755)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ports = {name: free_port() for name in PORTS}
        target = f"127.0.0.1:{server.server_port}"
        planned = monitor.plan(wanted(servers=(target,), gpu=True, ports=ports))
        monitor._write(planned)
        place = planned.folder
        exporter = subprocess.Popen(
            [sys.executable, place / "exporter/_exporter.py", str(ports["exporter"]), "--gpu"],
            env={**os.environ, "PATH": f"{bin_}:/usr/bin:/bin"},
            start_new_session=True,
        )
        prometheus = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={place}/prometheus/prometheus.yml",
                f"--storage.tsdb.path={place}/data/prometheus",
                *planned.requests["prometheus"]["command"][2:],
            ],
            stderr=subprocess.DEVNULL,
        )

        def ask(query):
            query = query.replace("$__rate_interval", "1m")
            reply = httpx.get(f"{planned.urls['prometheus']}/api/v1/query", params={"query": query})
            return reply.json()["data"]["result"]

        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                time.sleep(0.5)
                try:
                    if len(ask("count_over_time(up[1m]) > 3")) == 2 and ask("sum(up) == 2"):
                        break
                except httpx.TransportError:
                    assert prometheus.poll() is None, "Prometheus ended"
            drawn = json.loads(planned.files["grafana/dashboards/spark.json"])
            for panel in drawn["panels"]:
                for target in panel["targets"]:
                    quiet = panel["title"] == "Firing alerts"
                    assert ask(target["expr"]) or quiet, (panel["title"], target["expr"])
            assert ask("sparkbook_gpu_clock_mhz")[0]["value"][1] == "700"
        finally:
            server.shutdown()
            for process in (exporter, prometheus):
                process.terminate()
            os.killpg(exporter.pid, 15)
            for process in (exporter, prometheus):
                process.wait(60)
