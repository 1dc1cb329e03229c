"""`sparkbook monitor`: Prometheus and Grafana for the servers of this machine."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, print_json, progress, say
from sparkbook.cli.servers import DryRun, run_server
from sparkbook.cli.verbs import group, verb

app = group("monitor", "Watch servers and the machine with Prometheus and Grafana.")

Servers = Annotated[
    list[str],
    typer.Option("--server", metavar="HOST:PORT", help="A server; repeatable."),
]
_HERE = ["127.0.0.1:8000"]
_PORT = {"min": 1, "max": 65535}


@verb(app, "up", done="It runs.", bad="Docker or a container failed.", interrupted="Interrupted.")
def up(
    server: Servers = _HERE,
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Key for /metrics, if a server asks for one."),
    ] = None,
    grafana_port: Annotated[int, typer.Option(**_PORT, help="Port of Grafana.")] = 3001,
    prometheus_port: Annotated[int, typer.Option(**_PORT, help="Port of Prometheus.")] = 9090,
    exporter_port: Annotated[int, typer.Option(**_PORT, help="Port of the exporter.")] = 9101,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Start Prometheus, Grafana and the machine's exporter.

    All three listen on 127.0.0.1 only and take at most 1.2 GiB of memory. If they already run, they
    start again with the new options; data stays.
    """
    from sparkbook import monitor

    ports = {"exporter": exporter_port, "prometheus": prometheus_port, "grafana": grafana_port}
    planned = monitor.plan(
        monitor.Wanted(
            servers=tuple(server),
            key_file=key_file,
            ports=ports,
            gpu=shutil.which("nvidia-smi") is not None,
        )
    )
    if dry_run:
        lines = [f"# {planned.folder / name}\n{text}" for name, text in planned.files.items()]
        requests = [
            f"# {name}\n{json.dumps(request, indent=2)}"
            for name, request in planned.requests.items()
        ]
        return answer(as_json, planned.to_dict(), [*lines, *requests])

    def act() -> None:
        from sparkbook.serve import docker_host

        with contextlib.closing(docker_host.reach()) as host:
            monitor.up(host, planned, progress)
        lines = [f"{name:<11} {url}" for name, url in planned.urls.items()]
        password = f"Grafana's admin password is in {planned.folder / 'grafana/admin-password'}"
        answer(as_json, {"urls": planned.urls}, [*lines, password])

    run_server(act)


@verb(app, "down")
def down(as_json: Json = False) -> None:
    """Remove the containers. The collected data stays."""
    from sparkbook import monitor
    from sparkbook.serve import docker_host

    with contextlib.closing(docker_host.reach()) as host:
        removed = monitor.down(host)
    lines = [f"{name} is removed" for name in removed] or ["The monitor does not run"]
    answer(as_json, {"removed": removed, "data": str(monitor.folder() / "data")}, lines)


@verb(app, "status", done="It runs; no alert fires.", bad="It does not run, or an alert fires.")
def status(as_json: Json = False) -> None:
    """List the containers and the alerts that fire."""
    from sparkbook import monitor
    from sparkbook.serve import docker_host

    with contextlib.closing(docker_host.reach()) as host:
        found = monitor.status(host)
    lines = [f"{one['name']:<21} {one['state']:<11} {one['url']}" for one in found["containers"]]
    for one in found["firing"] or []:
        lines.append(f"{one['alert']}: {one['summary']} What to do: {one['fix']}")
    if not found["containers"]:
        lines.append("The monitor does not run. Start it with: sparkbook monitor up")
    elif found["firing"] is None:
        lines.append("Alerts are unknown: Prometheus does not answer")
    answer(as_json, found, lines)
    running = [one for one in found["containers"] if one["state"] == "running"]
    if len(running) < len(monitor.IMAGES) or found["firing"] != []:
        raise typer.Exit(1)


@verb(app, "grafana")
def grafana() -> None:
    """Print a Grafana dashboard: the book's live view."""
    from sparkbook import dashboard

    print_json(dashboard.grafana())


@verb(app, "prometheus")
def prometheus(server: Servers = _HERE) -> None:
    """Print a Prometheus configuration that scrapes servers."""
    from sparkbook import dashboard

    say(dashboard.prometheus(server), nl=False)
