"""`monitor up` in a real Docker engine: the real Prometheus and the exporter, out of this host's
/usr. Grafana is a stand-in that answers at its address: its image can't be had here.
"""

import dataclasses
import socket
import stat

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


@pytest.fixture
def planned(engine):
    wanted = monitor.Wanted(
        servers=("127.0.0.1:8000",),
        key_file=None,
        ports={"exporter": 9101, "prometheus": 9090, "grafana": 3001},
        gpu=False,
    )
    found = monitor.plan(wanted, dict.fromkeys(monitor.IMAGES, "test/host:1"))
    requests = found.requests
    programs = {
        "exporter": ["/usr/bin/python3"],
        "prometheus": ["/usr/bin/prometheus"],
        "grafana": ["/usr/bin/python3", "-c", _GRAFANA],
    }
    for name, request in requests.items():
        request["entrypoint"] = programs[name]
        request["volumes"].append("/usr:/usr:ro")
    requests["exporter"]["command"] = requests["exporter"]["command"][1:]
    return found


def test_up_status_and_down(host, planned):
    said = []
    monitor.up(host, planned, said.append)
    assert sum(line.startswith("starting sparkbook-") for line in said) == 3
    found = monitor.status(host)
    assert [one["state"] for one in found["containers"]] == ["running"] * 3
    assert found["firing"] == []  # Silent needs two minutes
    assert running.status(host) == []  # they are no servers
    password = planned.folder / "grafana" / "admin-password"
    kept = password.read_text()
    assert stat.S_IMODE(password.stat().st_mode) == 0o600 and len(kept) == 32
    for name in planned.requests:
        seen = host.client.containers.get(f"sparkbook-{name}").attrs
        assert kept not in str(seen) and seen["HostConfig"]["CapDrop"] == ["ALL"]
        assert seen["HostConfig"]["Memory"] in (64 << 20, 512 << 20)
    monitor.up(host, planned, said.append)  # in place of those that run
    assert password.read_text() == kept
    assert len(monitor.down(host)) == 3 and monitor.down(host) == []
    assert monitor.status(host) == {"containers": [], "firing": None}
    assert (planned.folder / "data" / "prometheus" / "wal").is_dir()


def test_a_start_that_fails_leaves_nothing(host, planned):
    taken = "9090 is taken: choose another with --prometheus"
    with socket.create_server(("127.0.0.1", 9090)), pytest.raises(SparkbookError, match=taken):
        monitor.up(host, planned, print)
    planned.requests["prometheus"]["command"].append("--no-such-option")
    with pytest.raises(EngineError, match="sparkbook-prometheus does not answer"):
        monitor.up(host, planned, print)
    elsewhere = dataclasses.replace(host, tunnel=object())
    with pytest.raises(SparkbookError, match="the network of this machine"):
        monitor.up(elsewhere, planned, print)
