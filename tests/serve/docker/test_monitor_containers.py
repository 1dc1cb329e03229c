"""`sparkbook monitor` with a real Docker engine: the real Prometheus and the exporter, out of this
host's /usr. Grafana is a stand-in that answers at its address: no registry has its image here.
"""

import dataclasses
import json
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook import monitor
from sparkbook.errors import SparkbookError
from sparkbook.serve import running
from sparkbook.serve.engine import EngineError

pytestmark = [pytest.mark.docker, pytest.mark.monitor]
_GRAFANA = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
at = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
open(os.environ["GF_SECURITY_ADMIN_PASSWORD__FILE"]).read()
http.server.HTTPServer(at, Handler).serve_forever()
"""
_PLAN = monitor.plan
_COMMAND = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import {Path(__file__).stem} as tests
from sparkbook import cli, monitor
monitor.plan = tests.stand_in
cli.main()
"""
"""The command line, with images that can be had here."""


def stand_in(wanted: monitor.Wanted) -> monitor.Plan:
    """The plan, with programs of this host in place of the images."""
    planned = _PLAN(dataclasses.replace(wanted, gpu=False))
    programs = {
        "exporter": ["/usr/bin/python3"],
        "prometheus": ["/usr/bin/prometheus"],
        "grafana": ["/usr/bin/python3", "-c", _GRAFANA],
    }
    for name, request in planned.requests.items():
        request["image"], request["entrypoint"] = "test/host:1", programs[name]
        request["volumes"].append("/usr:/usr:ro")
    del planned.requests["exporter"]["command"][0]
    return planned


@pytest.fixture
def planned(engine):
    ports = {"exporter": 9101, "prometheus": 9090, "grafana": 3001}
    wanted = monitor.Wanted(servers=("127.0.0.1:8000",), key_file=None, ports=ports, gpu=False)
    return stand_in(wanted)


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "monitor", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What started the tests may ignore a hang-up, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )


def answer(*words: str, status: int = 0) -> dict:
    process = started(*words, "--json")
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, err
    return json.loads(out)


def test_the_command_line(host, planned):
    assert answer("status", status=1) == {"containers": [], "firing": None}
    urls = answer("up")["urls"]
    assert urls == planned.urls
    found = answer("status")
    assert [one["state"] for one in found["containers"]] == ["running"] * 3
    assert {one["url"] for one in found["containers"]} == set(urls.values())
    assert found["firing"] == []  # Silent needs two minutes
    assert running.status(host) == []  # they are no servers
    password = planned.folder / "grafana" / "admin-password"
    kept = password.read_text()
    assert stat.S_IMODE(password.stat().st_mode) == 0o600 and len(kept) == 32
    for name in planned.requests:
        seen = host.client.containers.get(f"sparkbook-{name}").attrs
        assert kept not in str(seen) and seen["HostConfig"]["CapDrop"] == ["ALL"]
        assert seen["HostConfig"]["Memory"] in (128 << 20, 512 << 20)
    answer("up")  # in place of those that run
    assert password.read_text() == kept
    host.client.containers.get("sparkbook-prometheus").stop()
    found = answer("status", status=1)
    assert found["firing"] is None
    assert len(answer("down")["removed"]) == 3 and answer("down")["removed"] == []
    assert (planned.folder / "data" / "prometheus" / "wal").is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", ["exporter", "grafana"])
def test_each_end_of_a_start_leaves_no_container(engine, number, name):
    process = started("up")
    for line in process.stderr:
        if f"starting sparkbook-{name}" in line:
            process.send_signal(number)
            break
    _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number and "Interrupted" in err, err
    assert engine.client.containers.list(all=True, ignore_removed=True) == []


def test_a_start_that_fails_leaves_nothing(host, planned):
    taken = "9090 is taken: choose another with --prometheus-port"
    with socket.create_server(("127.0.0.1", 9090)), pytest.raises(SparkbookError, match=taken):
        monitor.up(host, planned, print)
    planned.requests["prometheus"]["command"].append("--no-such-option")
    with pytest.raises(EngineError, match="sparkbook-prometheus does not answer"):
        monitor.up(host, planned, print)
    elsewhere = dataclasses.replace(host, tunnel=object())
    with pytest.raises(SparkbookError, match="the network of this machine"):
        monitor.up(elsewhere, planned, print)
