"""A real Docker engine for the tests: a private `dockerd` in namespaces of its own, the host stays
as it is.

The API is reached through a socket of the file system. What containers publish lies on the loopback
of the engine's network namespace: a test that talks to it enters that namespace (`engine` does).
Containers, bridge and rules die with the namespaces.
"""

import contextlib
import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import docker
import psutil
import pytest
from sparkbook import recipes
from sparkbook.recipes import Launch, Serve
from sparkbook.recipes.launch import Container
from sparkbook.recipes.schema import Image
from sparkbook.serve import docker_host, embedded, paths

_CLONE_NEWNET = 0x40000000
# The first process of the namespaces. It starts dockerd again when it ends: how a restart is made.
_INIT = """
ip link set lo up
trap 'over=1; kill -TERM $engine' TERM
while [ -z "$over" ]; do
  dockerd --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/dockerd.pid" \
    --storage-driver overlay2 --exec-opt native.cgroupdriver=cgroupfs --shutdown-timeout 2 >>"$1/dockerd.log" 2>&1 &
  engine=$!
  wait $engine; wait $engine
  rm -f "$1/dockerd.pid"
  while [ -e "$1/hold" ]; do sleep 0.1; done
done
"""


class Engine:
    """The engine: its folder, its processes, and a client."""

    def __init__(self) -> None:
        self.folder = Path(
            tempfile.mkdtemp(prefix="sbd.", dir="/tmp")
        )  # short: paths of sockets hold about 100 letters
        self.stubs = self.folder / "stubs"
        self.stubs.mkdir()
        self.address = f"unix://{self.folder}/docker.sock"
        outer = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        self._outer = subprocess.Popen(
            [*outer, "--propagation", "private", "bash", "-c", _INIT, "init", str(self.folder)],
            stdin=subprocess.DEVNULL,
            env={
                "PATH": f"{self.stubs}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
            },
        )
        self.wait_up()
        self.client = docker.DockerClient(base_url=self.address, timeout=60)

    def wait_up(self, within_s: float = 180) -> None:
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(Exception):
                client = docker.DockerClient(base_url=self.address, timeout=5)
                client.ping()
                client.close()
                return
            if time.monotonic() > deadline or self._outer.poll() is not None:
                raise RuntimeError(
                    "dockerd did not start:\n" + (self.folder / "dockerd.log").read_text()[-3000:]
                )
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self._outer.pid).children(recursive=True)

    def daemon(self) -> psutil.Process:
        return next(process for process in self.processes() if process.name() == "dockerd")

    def stop_daemon(self) -> None:
        """End dockerd, as `systemctl stop docker` does; it stays away until `start_daemon`."""
        (self.folder / "hold").touch()
        daemon = self.daemon()
        daemon.terminate()
        psutil.wait_procs([daemon], timeout=60)

    def start_daemon(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)
        self.wait_up()

    @property
    def init(self) -> int:
        """Process id of the namespaces' first process."""
        return psutil.Process(self._outer.pid).children()[0].pid

    @contextlib.contextmanager
    def network(self):
        """The calling thread, in the engine's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            Path("/proc/thread-self/ns/net").open() as own,
            Path(f"/proc/{self.init}/ns/net").open() as theirs,
        ):
            if libc.setns(theirs.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(own.fileno(), _CLONE_NEWNET)

    def load(
        self, name: str, root: Path, command: list[str] | None = None, mode: str | None = None
    ) -> None:
        """An image out of a folder, without a registry. `mode`: of the stand-in that runs in it."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            tar.add(root, arcname=".")
        changes = [f"CMD {command!r}".replace("'", '"')] if command else []
        changes += [f"ENV STAND_IN_MODE={mode}"] if mode else []
        repository, tag = name.split(":")
        self.client.api.import_image_from_data(
            data.getvalue(), repository=repository, tag=tag, changes=changes
        )

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for container in self.client.containers.list(all=True, ignore_removed=True):
                container.remove(force=True)
        self.client.close()
        with contextlib.suppress(ProcessLookupError, psutil.Error, IndexError):
            os.kill(self.init, signal.SIGTERM)
        try:
            self._outer.wait(15)
        except subprocess.TimeoutExpired:
            self._outer.kill()  # --kill-child ends the namespaces with it
            self._outer.wait()
        for _ in range(20):
            for folder in sorted(Path("/sys/fs/cgroup").glob("*/docker*/"), reverse=True):
                for inner in sorted(folder.rglob("*/"), reverse=True):
                    with contextlib.suppress(OSError):
                        inner.rmdir()
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if not list(Path("/sys/fs/cgroup").glob("*/docker/*/")):
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def dockerd():
    """The engine, started once for all tests."""
    engine = Engine()
    try:
        root = engine.folder / "root"
        for name in ("etc", "tmp", "proc", "sys", "dev", "root", "var", "bin", "usr", "sbin"):
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        shutil.copy(shutil.which("busybox"), root / "bin")
        (root / "bin" / "sh").symlink_to("busybox")
        (root / "bin" / "sleep").symlink_to("busybox")
        engine.load("test/busybox:1", root, ["sleep", "600"])
        # An empty root that borrows the host's /usr: host programs, among them vLLM's environment,
        # run in it.
        shutil.rmtree(root / "bin")
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        engine.load("test/host:1", root)
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(dockerd, tmp_path, monkeypatch):
    """The engine for one test: in its network, with state and cache of the test's own; afterwards
    no container may be left.
    """
    monkeypatch.setenv("DOCKER_HOST", dockerd.address)
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))
    for name in ("VLLM_API_KEY", "SPARKBOOK_ENDPOINT", "SPARKBOOK_KEY_FILE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with dockerd.network():
        yield dockerd
        left = [
            container.name
            for container in dockerd.client.containers.list(all=True, ignore_removed=True)
        ]
        for container in dockerd.client.containers.list(all=True, ignore_removed=True):
            container.remove(force=True)
    assert not left, f"containers left behind: {left}"


@pytest.fixture
def host(engine):
    """A connection to it, as the launcher makes it."""
    host = docker_host.reach()
    yield host
    host.close()


@pytest.fixture
def shell():
    """Makes a launch whose container runs a line of busybox' shell; for everything about a
    container that is not about vLLM.
    """

    def make(script: str, **container) -> Launch:
        container.setdefault("ports", ["127.0.0.1:8000:8000"])
        launch = Launch(
            image="test/busybox:1",
            entrypoint="wrapper",
            container=Container(**container),
            serve=Serve(command=["sh", "-c", script]),
        )
        return launch

    return make


def borrowed() -> list[str]:
    """Volumes that lend a container the host's programs and this Python."""
    folders = {"/usr", str(Path(sys.base_prefix).resolve())} | (
        {"/etc/ssl"} if Path("/etc/ssl").is_dir() else set()
    )
    return [
        f"{folder}:{folder}:ro"
        for folder in sorted(folders)
        if folder == "/usr" or not folder.startswith("/usr/")
    ]


@pytest.fixture
def borrowed_volumes() -> list[str]:
    """`borrowed`, for tests."""
    return borrowed()


@pytest.fixture
def answering(tmp_path):
    """Makes a launch whose container runs the stand-in for vLLM."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = Path(__file__).parents[1] / "stand_in.py"
    shutil.copy(stand_in, programs)
    python = Path(sys.executable).resolve()
    (programs / "vllm").write_text(
        f'#!/bin/sh\nshift 0\nexec {python} /programs/stand_in.py "$@"\n'
    )
    (programs / "vllm").chmod(0o755)

    def make(mode: str = "", port: int = 8000, **container) -> Launch:
        volumes = [*borrowed(), f"{programs}:/programs:ro", *container.pop("volumes", [])]
        ports = [] if container.get("network") == "host" else [f"127.0.0.1:{port}:8000"]
        return Launch(
            image="test/host:1",
            container=Container(ports=ports, volumes=volumes, **container),
            env={"PATH": "/programs:/usr/bin:/bin", "VLLM_API_KEY": None}
            | ({"STAND_IN_MODE": mode} if mode else {}),
            serve=Serve(
                model="tiny", args={"host": "0.0.0.0", "port": 8000, "served-model-name": "small"}
            ),
        )

    return make


@pytest.fixture
def real(borrowed_volumes):
    """The recipe of tiny-dense in a container: the real vLLM, out of the engine's environment on
    this host.
    """
    recipe = recipes.load("embedded/tiny-dense")
    python, model = paths.engine_python(), embedded.model_folder("tiny-dense")
    environment = python.parents[1].resolve()
    container = recipe.container.model_copy(
        update={
            "name": "tiny",
            "ports": ["127.0.0.1:8000:8000"],
            "restart": "unless-stopped",
            "ipc": "host",
            "volumes": [
                *borrowed_volumes,
                f"{environment}:{environment}:ro",
                f"{model}:/models/tiny-dense:ro",
            ],
        }
    )
    serve = recipe.serve.model_copy(
        update={
            "model": "/models/tiny-dense",
            "args": {**recipe.serve.args, "host": "0.0.0.0", "port": 8000},
        }
    )
    env = {
        **recipe.env,
        "PATH": f"{environment}/bin:/usr/bin:/bin",
        "HOME": "/root",
        "HF_TOKEN": None,
    }
    if (openmp := environment / "lib" / "libiomp5.so").exists():
        env["LD_PRELOAD"] = str(openmp)
    return recipe.model_copy(
        update={
            "image": Image(ref="test/host:1"),
            "container": container,
            "serve": serve,
            "env": env,
        }
    )
