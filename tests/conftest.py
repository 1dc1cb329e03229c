"""What tests of several rooms share: the stand-in for vLLM, which is up in a moment, vLLM's own
parser, throw-away books, and two servers that redirect to one another.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from notebook_files import Cell
    from sparkbook.runner.project import Project


@pytest.fixture
def stand_in_engine(tmp_path, monkeypatch):
    """Processes started while this fixture lives run the stand-in instead of vLLM."""
    programs = tmp_path / "engine" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    vllm = programs / "vllm"
    vllm.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).parent / "serve" / "stand_in.py"}"'
        ' "$@"\n'
    )
    vllm.chmod(0o755)
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(programs / "python"))


@pytest.fixture
def sshd(tmp_path, monkeypatch):
    """Starts a real sshd on this machine's loopback, with an environment, and returns its port. The
    `ssh` of the tests has its key; root may come.
    """
    from sparkbook.serve.process import free_port

    daemons = []

    def start(**environment):
        port = free_port()
        for name in ("host", "user"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name]
            subprocess.run(key, check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks its unprivileged half in
        (tmp_path / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile"
            f" {tmp_path}/user.pub\nStrictModes no\nPermitRootLogin"
            " prohibit-password\nPasswordAuthentication no\nUsePAM no\nPidFile none\nSetEnv"
            f" {' '.join(f'{name}={value}' for name, value in environment.items())}\n"
        )
        options = (
            f"-F /dev/null -i {tmp_path}/user -o StrictHostKeyChecking=no -o"
            " UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        )
        ssh = tmp_path / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
        command = ["/usr/sbin/sshd", "-D", "-e", "-f", tmp_path / "sshd_config"]
        daemons.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        return port

    yield start
    for daemon in daemons:
        process = psutil.Process(daemon.pid)
        for each in [*process.children(recursive=True), process]:
            each.terminate()
        daemon.wait(60)


@pytest.fixture(scope="session")
def real_parser():
    """vLLM's own parser, started once for all tests that ask it (ten seconds)."""
    sys.path.insert(0, str(Path(__file__).parent / "releases"))
    from asked_parser import RealParser

    parser = RealParser()
    yield parser
    parser.close()


@dataclass
class Servers:
    """Two servers, each another origin, that redirect where they are told to.

    Attributes:
        redirects: path to location; all other paths are answered with an empty 200.
        tokens: the Authorization of each request, in their order.
    """

    urls: list[str] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)


@pytest.fixture
def servers():
    """Two running `Servers`."""
    both = Servers()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            both.tokens.append(self.headers.get("authorization"))
            location = both.redirects.get(self.path)
            self.send_response(307 if location else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 (http.server's name)

    running = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in running]
    for thread in threads:
        thread.start()
    both.urls = [f"http://127.0.0.1:{one.server_port}" for one in running]
    yield both
    for one, thread in zip(running, threads, strict=True):
        one.shutdown()
        thread.join()
        one.server_close()


@pytest.fixture
def notebook(tmp_path: Path) -> Callable[..., Path]:
    """Makes a notebook in the test's own folder."""

    def make(*cells: Cell, name: str = "one", **options: Any) -> Path:
        from notebook_files import write_notebook

        return write_notebook(tmp_path / f"{name}.ipynb", list(cells), **options)

    return make


@pytest.fixture
def book(tmp_path: Path) -> Callable[..., Project]:
    """Makes a book of chapters, each given as its list of cells; it has no recipes' pages, and its
    site is never built.
    """

    def make(chapters: dict[str, list[Cell]], **options: Any) -> Project:
        import yaml
        from notebook_files import write_notebook
        from sparkbook.runner.project import Project

        for name, cells in chapters.items():
            write_notebook(tmp_path / "notebooks" / f"{name}.ipynb", cells, **options)
        (tmp_path / "book").mkdir(exist_ok=True)
        (tmp_path / "book" / "intro.md").write_text("# A book\n", "utf-8")
        toc = {
            "format": "jb-book",
            "root": "book/intro",
            "chapters": [{"file": f"notebooks/{name}"} for name in chapters],
        }
        (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")
        return Project(tmp_path, recipes=())

    return make
