"""`sparkbook serve`, `status`, `logs` and `stop`: the life of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from sparkbook.cli.options import WAIT, ClusterFile, DockerHost, Json, ServerName
from sparkbook.cli.output import answer, progress
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()

Name = Annotated[str | None, typer.Option(help="Name of the container.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port on the host.")]
Deadline = Annotated[
    float, typer.Option(callback=WAIT, help="Seconds to wait until the server answers.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent or run; start nothing.")
]


@verb(app, "serve", done="It answers.", bad="The server failed.", interrupted="Interrupted.")
def serve(
    source: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="A recipe ID, or a launch line.")
    ] = None,
    target: Annotated[str, typer.Option(help="auto, docker or process.")] = "auto",
    dry_run: DryRun = False,
    locked: Annotated[
        str | None, typer.Option(metavar="FILE", help="Serve what a stack lock pins.")
    ] = None,
    name: Name = None,
    port: Port = None,
    host: DockerHost = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Keep the launch line's address, not loopback.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Mount the store read-only; download nothing.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop your server that has this name or port.")
    ] = False,
    restart_always: Annotated[
        bool, typer.Option("--restart-always", help="Once it answers, restart it at any end.")
    ] = False,
    watchdog: Annotated[
        bool | None,
        typer.Option(help="Guard the start [default: until this stack has answered once]."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay and guard it. Ctrl-C leaves the server running.")
    ] = False,
    floor: Annotated[
        str | None, typer.Option(help="Memory that the watchdog keeps free, such as 8GiB.")
    ] = None,
    deadline: Deadline = 1800.0,
    cluster: ClusterFile = None,
    layout: Annotated[str | None, typer.Option(hidden=True)] = None,
    backend: Annotated[str, typer.Option(hidden=True)] = "native",
    stage: Annotated[bool, typer.Option("--stage", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Start a server and wait until it has answered a request.

    A process stays in the foreground; a container keeps running.
    """
    if cluster:
        from sparkbook.cli import cluster as new

        if source is None or any((locked, host, expose, offline, replace, restart_always, watch)):
            raise SparkbookError(
                "--cluster needs an INPUT, and accepts: --name, --port, --layout, --backend,"
                " --stage, --deadline"
            )
        new.moved(f"serve {cluster} {source}")
        return new.serve(
            cluster, source, name, layout, backend, port, stage, deadline, dry_run, as_json
        )
    if layout or stage or backend != "native":
        raise SparkbookError("--layout, --backend and --stage belong to: sparkbook cluster serve")

    from sparkbook.serve import launcher

    wish = launcher.Wish(
        source=source,
        locked=locked,
        target=target,
        name=name,
        host=host,
        port=port,
        expose=expose,
        offline=offline,
        restart_always=restart_always,
        replace=replace,
        watchdog=watchdog,
        watch=watch,
        floor=floor,
        deadline_s=deadline,
    )
    if dry_run:
        plan = launcher.plan(wish)
        answer(as_json, plan.to_dict(), [plan.text, plan.notes])
    else:
        run_server(lambda: launcher.serve(wish, say=progress, show=ready(as_json)))


def ready(as_json: bool) -> Callable[[dict[str, Any]], None]:
    """Return what prints a server that is ready."""
    from sparkbook.serve import text

    return lambda facts: answer(as_json, facts, text.ready(facts))


def run_server(act: Callable[[], None]) -> None:
    """Do what starts a server: exit with 1 if the server failed, with 130 after Ctrl-C, which
    leaves nothing behind.
    """
    from sparkbook.serve.engine import EngineError
    from sparkbook.serve.faults import DockerFault
    from sparkbook.serve.ready import NotReady

    try:
        act()
    except (EngineError, NotReady, DockerFault) as error:
        typer.echo(f"sparkbook: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("sparkbook: Interrupted", err=True)
        raise typer.Exit(130) from None


@verb(
    app,
    "status",
    done="All servers are ready.",
    bad="A server is not ready.",
    unusable="Docker can't be asked.",
)
def status(host: DockerHost = None, cluster: ClusterFile = None, as_json: Json = False) -> None:
    """List your servers."""
    if cluster:
        from sparkbook.cli import cluster as new

        new.moved(f"status {cluster}")
        return new.status(cluster, as_json)

    from sparkbook.serve import running, text

    with running.engines(host) as (docker, notes):
        servers = running.status(docker)
    rows = {"servers": [server.to_dict() for server in servers]}
    answer(as_json, rows | notes.to_dict(servers=len(servers)), text.servers(servers, notes))
    if notes.worst == "error":
        raise typer.Exit(2)
    if any(server.state != "ready" for server in servers):
        raise typer.Exit(1)


@verb(app, "logs", bad="With --diagnose: there is a fault.", interrupted="Interrupted.")
def logs(
    name: ServerName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the server ends.")
    ] = False,
    diagnosis: Annotated[
        bool, typer.Option("--diagnose", help="Explain the log instead of printing it.")
    ] = False,
    host: DockerHost = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Print the log of a server, or explain it."""
    if cluster:
        from sparkbook.cli import cluster as new

        if follow:
            raise SparkbookError("--cluster can't be used with --follow")
        new.moved(f"logs {cluster} {name}")
        return new.logs(cluster, name, diagnosis, as_json)
    if follow and diagnosis:
        raise SparkbookError("--diagnose can't be used with --follow")
    if as_json and not diagnosis:
        raise SparkbookError("--json needs --diagnose")

    from sparkbook import logs as doctor
    from sparkbook.logs import text
    from sparkbook.serve import running

    with running.engines(host) as (docker, _):
        pieces = running.logs(docker, name, follow=follow)
        if not diagnosis:
            try:
                for piece in pieces:
                    print_bytes(piece)
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            return
        result = doctor.diagnose(b"".join(pieces).decode("utf-8", "replace"))
    answer(as_json, result.to_dict(), text.lines(result))
    if not result.healthy:
        raise typer.Exit(1)


def print_bytes(piece: bytes) -> None:
    """Print a piece of a log as it is, at once."""
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


@verb(app, "stop", bad="With --cluster: a rank is left.")
def stop(
    name: ServerName,
    host: DockerHost = None,
    cluster: ClusterFile = None,
    as_json: Json = False,
) -> None:
    """Stop a server and remove its container.

    Weights, and the logs of processes, stay.
    """
    if cluster:
        from sparkbook.cli import cluster as new

        new.moved(f"stop {cluster} {name}")
        return new.stop(cluster, name, as_json)

    from sparkbook.serve import running

    with running.engines(host) as (docker, _):
        stopped = running.stop(docker, name)
    answer(as_json, {"stopped": stopped}, [f"{stopped} is stopped"])
