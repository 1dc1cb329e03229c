"""`sparkbook serve`, `status`, `logs` and `stop`: the life of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkbook.cli import several
from sparkbook.cli.options import ClusterFile, DockerHost, Json, ServerName
from sparkbook.cli.output import answer, print_bytes, progress
from sparkbook.cli.servers import Deadline, DryRun, Name, Port, ready, run_server
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from sparkbook.serve.launcher import Wish

app = alone()


@verb(app, "serve", done="It answers.", bad="The server failed.", interrupted="Interrupted.")
def serve(
    source: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="A recipe ID, a set, or a launch line.")
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
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Make the container's root file system read-only.")
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
    unit: Annotated[
        bool, typer.Option("--unit", help="Print a systemd unit that serves it at boot.")
    ] = False,
    floor: Annotated[
        str | None, typer.Option(help="Memory that the watchdog keeps free, such as 8GiB.")
    ] = None,
    fraction: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu-memory-utilization",
            metavar="[ID=]SHARE",
            help="Instead of the recipe's, such as 0.5; in a set with the recipe's ID.",
        ),
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
        single = (locked, host, expose, offline, replace, restart_always, watch, unit)
        if source is None or any(single):
            raise SparkbookError(
                "--cluster needs an INPUT, and accepts: --name, --port, --layout, --backend,"
                " --stage, --deadline"
            )
        several.moved("serve", cluster, source)
        return several.serve(
            cluster,
            source,
            name,
            layout,
            backend,
            port,
            stage,
            deadline=deadline,
            dry_run=dry_run,
            as_json=as_json,
        )
    if layout or stage or backend != "native":
        raise SparkbookError("--layout, --backend and --stage belong to: sparkbook cluster serve")

    from sparkbook.serve import launcher

    shares = _shares(fraction or [])
    wish = launcher.Wish(
        source=source,
        locked=locked,
        target=target,
        name=name,
        host=host,
        port=port,
        expose=expose,
        offline=offline,
        read_only=read_only,
        restart_always=restart_always,
        replace=replace,
        watchdog=watchdog,
        watch=watch,
        floor=floor,
        fraction=shares.get(None),
        deadline_s=deadline,
    )
    if _is_set(source):
        if unit:
            raise SparkbookError("--unit is for one server, and a set has several")
        from sparkbook.serve import side_by_side

        if None in shares:
            raise SparkbookError("in a set, --gpu-memory-utilization needs a recipe: ID=0.5")
        named = {name: share for name, share in shares.items() if name}
        if dry_run:
            plan = side_by_side.plan(wish, named)
            answer(as_json, plan.to_dict(), [plan.text, plan.notes])
        else:
            run_server(lambda: side_by_side.serve(wish, named, say=progress, show=ready(as_json)))
        return
    if any(shares):
        raise SparkbookError("--gpu-memory-utilization takes ID=SHARE only for a set of servers")
    if unit:
        return _print_unit(wish, dry_run, as_json)
    if dry_run:
        plan = launcher.plan(wish)
        answer(as_json, plan.to_dict(), [plan.text, plan.notes])
    else:
        run_server(lambda: launcher.serve(wish, say=progress, show=ready(as_json)))


def _print_unit(wish: Wish, dry_run: bool, as_json: bool) -> None:
    """Print the unit that gives this very command at boot."""
    import getpass
    import sys
    from pathlib import Path

    from sparkbook.serve import boot

    if dry_run:
        raise SparkbookError("--unit starts nothing: leave out --dry-run")
    words = [word for word in sys.argv[1:] if word not in ("--unit", "--json")]
    command = [str(Path(sys.argv[0]).absolute()), *words]
    text = boot.unit(wish, command, user=getpass.getuser(), folder=Path.cwd())
    answer(as_json, {"unit": text}, [text.rstrip("\n")])


def _is_set(source: str | None) -> bool:
    if source is None or not source.replace("-", "").isalnum():
        return False
    from sparkbook.recipes import sets

    return source in sets.ids()


def _shares(texts: list[str]) -> dict[str | None, float]:
    """Shares of the memory by recipe; None: of the only server."""
    shares: dict[str | None, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            raise SparkbookError(
                f"--gpu-memory-utilization is {text}: write a share between 0 and 1, such as 0.5"
            )
        shares[name or None] = share
    return shares


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
        several.moved("status", cluster)
        return several.status(cluster, as_json)

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
        if follow:
            raise SparkbookError("--cluster can't be used with --follow")
        several.moved("logs", cluster, name)
        return several.logs(cluster, name, diagnosis, as_json)
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
        several.moved("stop", cluster, name)
        return several.stop(cluster, name, as_json)

    from sparkbook.serve import running

    with running.engines(host) as (docker, _):
        stopped = running.stop(docker, name)
    answer(as_json, {"stopped": stopped}, [f"{stopped} is stopped"])
