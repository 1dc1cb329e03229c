"""Prometheus and Grafana for one Spark: three containers that listen on 127.0.0.1 only.

They use the host's network: from a bridge, a container can't reach a server on the loopback
address. They run as the user, without capabilities, and read files that the user alone may read.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparkbook import dashboard
from sparkbook.errors import SparkbookError
from sparkbook.monitor.alerts import rules
from sparkbook.serve import containers, interrupts, paths
from sparkbook.serve.docker_host import DockerHost, image_present, mapped, pull
from sparkbook.serve.endpoint import Endpoint, key_in, write_private
from sparkbook.serve.engine import EngineError
from sparkbook.util.files import write_text

IMAGES = {
    "exporter": "python:3.13.15-slim-bookworm"
    "@sha256:ed86c82274b3c69b52fb5820f358f0bd7df0b603332063cb5c6e32bd220c3e6e",
    "prometheus": "prom/prometheus:v3.13.4"
    "@sha256:87861b8cf91579109319ebc300f3f1060e6da9c05d6ae8ad15a20c879e84e32e",
    "grafana": "grafana/grafana:13.2.3"
    "@sha256:b28bae15e219c998fb0e0424ed724930cc61b1f61fb404d47c862f9a23f9e572",
}
"""Digests of the indexes for all architectures. Several public repositories on GitHub pin each of
them to its tag, with the same digest (seen 2026-11-29).
"""
MEMORY = {"exporter": "128m", "prometheus": "512m", "grafana": "512m"}
"""Limits, since the model uses the same memory."""
LABEL = "sparkbook.monitor"
_OWNER = f"{LABEL}.folder"
SOURCE = "sparkbook"
LOOPBACK = "127.0.0.1"
_READY = {"exporter": "/metrics", "prometheus": "/-/ready", "grafana": "/api/health"}
_FOLDER = {"exporter": "/monitor", "prometheus": "/etc/prometheus", "grafana": "/etc/sparkbook"}
_DATA = {"prometheus": "/prometheus", "grafana": "/var/lib/grafana"}
_KEY, _PASSWORD = "/server-key", "admin-password"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to watch, and where.

    Attributes:
        servers: HOST:PORT of each server.
        key_file: the file with the key, for servers whose `/metrics` asks for one; vLLM's does not.
        ports: of exporter, prometheus and grafana, on the loopback address.
        gpu: whether the machine has an NVIDIA GPU.
    """

    servers: tuple[str, ...]
    key_file: str | None
    ports: Mapping[str, int]
    gpu: bool


@dataclass(frozen=True)
class Plan:
    """Files by their path in the folder, and a request to Docker for each container. Neither
    contains a secret.
    """

    folder: Path
    files: dict[str, str]
    requests: dict[str, dict[str, Any]]
    urls: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**vars(self), "folder": str(self.folder)}


def folder() -> Path:
    """Return where the monitor's files and data are."""
    return paths.state_dir() / "monitor"


def plan(wanted: Wanted) -> Plan:
    """Return what `up` writes and starts.

    Raises:
        SparkbookError: a server, a port or the key's file can't be used.
    """
    job = dashboard.scrape_job(wanted.servers)
    targets = job["static_configs"][0]["targets"]
    for target in targets:
        parts = urlsplit(Endpoint(f"http://{target}").url)
        if not parts.port:
            raise SparkbookError(f"'{target}' has no port: give HOST:PORT, such as 127.0.0.1:8000")
        if wanted.key_file and parts.hostname not in (LOOPBACK, "localhost", "::1"):
            raise SparkbookError(
                f"the key would cross the network to {target} unencrypted: --key-file is for"
                " servers on this machine"
            )
    if len(set(wanted.ports.values())) < len(wanted.ports):
        raise SparkbookError("exporter, prometheus and grafana need three different ports")
    if wanted.key_file:
        key_in(Path(wanted.key_file).expanduser(), wanted.key_file)
        if ":" in str(Path(wanted.key_file).expanduser().resolve()):
            raise SparkbookError(f"Docker mounts no file with a colon: rename {wanted.key_file}")
        job["authorization"] = {"credentials_file": _KEY}
    at = {name: f"{LOOPBACK}:{port}" for name, port in wanted.ports.items()}
    return Plan(
        folder(),
        _files(job, at),
        {name: _request(name, image, wanted) for name, image in IMAGES.items()},
        {name: f"http://{address}" for name, address in at.items()},
    )


def _files(job: dict[str, Any], at: Mapping[str, str]) -> dict[str, str]:
    import yaml

    hosts = {"job_name": "host", "static_configs": [{"targets": [at["exporter"]]}]}
    prometheus = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [job, hosts],
    }
    source = {
        "name": "Prometheus",
        "uid": SOURCE,
        "type": "prometheus",
        "access": "proxy",
        "url": f"http://{at['prometheus']}",
        "isDefault": True,
        "jsonData": {"timeInterval": "5s"},
    }
    place = f"{_FOLDER['grafana']}/dashboards"
    provider = {"name": "sparkbook", "type": "file", "options": {"path": place}}
    panels = (*dashboard.HOST_PANELS, *dashboard.PANELS)
    yamls = {
        "prometheus/prometheus.yml": prometheus,
        "prometheus/alerts.yml": rules(),
        "grafana/datasources/prometheus.yml": {"apiVersion": 1, "datasources": [source]},
        "grafana/dashboards/provider.yml": {"apiVersion": 1, "providers": [provider]},
    }
    return {
        **{name: yaml.safe_dump(value, sort_keys=False) for name, value in yamls.items()},
        "grafana/dashboards/spark.json": json.dumps(dashboard.grafana(panels, SOURCE), indent=2),
        "exporter/_exporter.py": Path(__file__).with_name("_exporter.py").read_text("utf-8"),
        "exporter/_sampler.py": (paths.PACKAGE / "bench" / "_sampler.py").read_text("utf-8"),
    }


def _request(name: str, image: str, wanted: Wanted) -> dict[str, Any]:
    port, here = wanted.ports[name], folder()
    commands = {
        "exporter": ["python", "/monitor/_exporter.py", str(port), *["--gpu"] * wanted.gpu],
        "prometheus": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            "--storage.tsdb.retention.time=15d",
            "--storage.tsdb.retention.size=2GB",
            f"--web.listen-address={LOOPBACK}:{port}",
        ],
        "grafana": [],
    }
    settings = {
        "GF_SERVER_HTTP_ADDR": LOOPBACK,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_PROVISIONING": _FOLDER["grafana"],
        "GF_SECURITY_ADMIN_PASSWORD__FILE": f"{_FOLDER['grafana']}/{_PASSWORD}",
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_NEWS_NEWS_FEED_ENABLED": "false",
        # Grafana 13 would unload the bundled Prometheus plugin to update it, fail as a user who may
        # not write there, and not load it again: https://github.com/grafana/grafana/issues/132528
        # (2026-09-14). /api/health stays green meanwhile.
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
        "GF_PLUGINS_PREINSTALL_AUTO_UPDATE": "false",
    }
    volumes = [f"{here / name}:{_FOLDER[name]}:ro"]
    if name == "prometheus" and wanted.key_file:
        key = Path(wanted.key_file).expanduser().resolve()
        volumes.append(f"{key}:{_KEY}:ro")
    if name in _DATA:
        volumes.append(f"{here / 'data' / name}:{_DATA[name]}")
    request: dict[str, Any] = {
        "name": f"sparkbook-{name}",
        "image": image,
        "command": commands[name],
        "environment": settings if name == "grafana" else {},
        "volumes": volumes,
        "network_mode": "host",
        "user": f"{os.getuid()}:{os.getgid()}",
        "init": True,  # Python as the first process ignores SIGTERM
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": MEMORY[name],
        "restart_policy": {"Name": "unless-stopped"},
        "labels": {
            LABEL: name,
            f"{LABEL}.url": f"http://{LOOPBACK}:{port}",
            _OWNER: str(here),
        },
    }
    if name == "exporter" and wanted.gpu:
        from docker.types import DeviceRequest

        request["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu", "utility"]])]
    return request


def up(host: DockerHost, planned: Plan, say: Callable[[str], None], within_s: float = 120) -> None:
    """Write the files, start the containers in place of those that run, and wait until they answer.
    A port that is taken changes nothing; a start that fails leaves no container behind.

    Raises:
        SparkbookError: Docker is elsewhere or rootless, a port is taken, or another user has a
            monitor.
        ServeFault, EngineError: a container can't be started, or does not answer.
    """
    with mapped():
        rootless = any("rootless" in one for one in host.client.info().get("SecurityOptions") or ())
    if host.remote or rootless:
        raise SparkbookError(
            "the monitor uses the network of this machine, which a Docker engine elsewhere, or a"
            " rootless one, does not have: use this machine's own engine"
        )
    running = {one["url"] for one in status(host)["containers"] if one["state"] == "running"}
    for image in (request["image"] for request in planned.requests.values()):
        if not image_present(host.client, image):
            pull(host.client, image, say)
    for name, url in planned.urls.items():
        if url not in running:
            _assert_free(name, url)
    down(host)
    _write(planned)
    try:
        for request in planned.requests.values():
            say(f"starting {request['name']} from {request['image']}")
            with interrupts.held_back(), mapped(name=request["name"]):
                host.client.containers.run(**request, detach=True)
        for name, url in planned.urls.items():
            _wait(host, f"sparkbook-{name}", f"{url}{_READY[name]}", within_s)
    except BaseException:
        down(host)
        raise


def _assert_free(name: str, url: str) -> None:
    port = urlsplit(url).port or 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            raise SparkbookError(
                f"port {port} is taken: choose another with --{name}-port"
            ) from None


def _write(planned: Plan) -> None:
    try:
        for name in planned.files:
            (planned.folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in _DATA:
            (planned.folder / "data" / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SparkbookError(f"{error.filename} can't be made: {error.strerror}") from None
    for name, text in planned.files.items():
        write_text(planned.folder / name, text)
    password = planned.folder / "grafana" / _PASSWORD
    if not password.exists():
        write_private(password, secrets.token_hex(16))


def _wait(host: DockerHost, name: str, address: str, within_s: float) -> None:
    parts, deadline = urlsplit(address), time.monotonic() + within_s
    while True:
        with contextlib.suppress(SparkbookError):
            endpoint = Endpoint(f"http://{parts.netloc}")
            if endpoint.get(parts.path, timeout_s=3).status_code == 200:
                return
        with mapped(name=name):
            container = host.client.containers.get(name)
            ended = container.status != "running" or container.attrs["RestartCount"]
            if ended or time.monotonic() > deadline:
                log = container.logs(tail=10).decode("utf-8", "replace").splitlines()
                raise EngineError(f"{name} does not answer at {address}", log)
        time.sleep(0.3)


def _found(host: DockerHost) -> list[dict[str, Any]]:
    """Return Docker's entries of the containers.

    Raises:
        SparkbookError: they are another user's.
    """
    with mapped():
        found: list[dict[str, Any]] = host.client.api.containers(all=True, filters={"label": LABEL})
    own = str(folder())
    for owner in (entry["Labels"].get(_OWNER, own) for entry in found):
        if owner != own:
            raise SparkbookError(
                f"another user of this Docker has a monitor, with its files in {owner}: a machine"
                " has one. That user ends it with: sparkbook monitor down"
            )
    return found


def down(host: DockerHost) -> list[str]:
    """Remove the containers, and return their names. Files and data stay.

    Raises:
        SparkbookError: they are another user's.
    """
    found = _found(host)
    for entry in found:
        containers.remove(host, entry["Id"])
    return sorted(entry["Names"][0].lstrip("/") for entry in found)


def status(host: DockerHost) -> dict[str, Any]:
    """Return each container's state and the firing alerts; None if Prometheus does not answer.

    Raises:
        SparkbookError: they are another user's.
    """
    found = _found(host)
    listed = [
        {
            "name": entry["Names"][0].lstrip("/"),
            "state": entry["State"],
            "url": entry["Labels"].get(f"{LABEL}.url", ""),
        }
        for entry in found
    ]
    firing = None
    for entry in found:
        if entry["Labels"][LABEL] == "prometheus" and entry["State"] == "running":
            with contextlib.suppress(SparkbookError, ValueError, KeyError):
                endpoint = Endpoint(entry["Labels"][f"{LABEL}.url"])
                answer = endpoint.get("/api/v1/alerts").json()["data"]["alerts"]
                firing = [
                    {"alert": one["labels"]["alertname"], **one["annotations"]}
                    for one in answer
                    if one["state"] == "firing"
                ]
    return {"containers": sorted(listed, key=lambda one: one["name"]), "firing": firing}
