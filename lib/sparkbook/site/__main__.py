"""Command line of the book's builder; `make` is the way to call it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from sparkbook.errors import SparkbookError
from sparkbook.runner.project import Project, at, here
from sparkbook.runner.run_pages import Outcome, refresh
from sparkbook.site.book import build


def main(argv: Sequence[str] | None = None) -> int:
    """Build and return the exit code: 0 good, 1 a page failed or the site has a fault, 2 nothing
    could be done, 130 interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m sparkbook.site", description="Run the chapters and publish the site."
    )
    parser.add_argument(
        "--root", type=Path, help="the checkout (default: the one this library is part of)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    building = verbs.add_parser("build", help="run what changed and publish the site")
    building.add_argument(
        "--target", choices=["auto", "plan"], default="auto", help="plan: start no engine"
    )
    building.add_argument(
        "--only", metavar="NAME", help="one chapter (06_launch) or one recipe's page (gpt-oss-120b)"
    )
    refreshing = verbs.add_parser("refresh", help="run the committed notebooks again, in place")
    refreshing.add_argument("--only", metavar="NAME", help="one notebook")
    verbs.add_parser(
        "check", help="look for broken links, missing pages and outside loads in the built site"
    )
    serve = verbs.add_parser("serve", help="show the built site on this machine's loopback address")
    serve.add_argument("--port", type=int, default=8080)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        project = at(args.root.resolve()) if args.root else here()
        if args.verb == "serve":
            return _serve(project, args.port)
        if args.verb == "check":
            return _check(project)
        if args.verb == "refresh":
            return _summary(refresh(project, args.only))
        return _summary(build(project, args.target, args.only))
    except SparkbookError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing is still running", file=sys.stderr)  # noqa: T201
        return 130


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check(project: Project) -> int:
    from sparkbook.site.linkcheck import check

    if not project.html.is_dir():
        raise SparkbookError("there is no site yet: run 'make book'")
    problems = check(project.html)
    for problem in problems:
        print(problem)  # noqa: T201
    print(f"{len(problems)} problems in the site" if problems else "the site has no problems")  # noqa: T201
    return 1 if problems else 0


def _serve(project: Project, port: int) -> int:
    if not project.html.is_dir():
        raise SparkbookError("there is no site yet: run 'make book'")
    try:
        server = ThreadingHTTPServer(
            ("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=str(project.html))
        )
    except (OSError, OverflowError) as error:
        raise SparkbookError(
            f"port {port} of 127.0.0.1 cannot be used ({error}); choose another: make serve-site"
            " PORT=8081"
        ) from None
    with server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)  # noqa: T201
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _summary(outcome: Outcome) -> int:
    for name, failure in outcome.failures.items():
        print(f"FAILED {name}: {failure}", file=sys.stderr)  # noqa: T201
    for problem in outcome.problems:
        print(f"SITE {problem}", file=sys.stderr)  # noqa: T201
    print(f"{outcome.ran} run, {outcome.fresh} unchanged, {len(outcome.failures)} failed")  # noqa: T201
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
