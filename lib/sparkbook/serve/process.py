"""The process engine: the real `vllm serve` as a child, without a container.

The engine binds loopback, always asks for an API key, writes its log to a file, and never outlives
the process that started it (see `_guard.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkbook.formats.words import serve_groups
from sparkbook.recipes.launch import Launch
from sparkbook.serve import folders, identity, paths
from sparkbook.serve.endpoint import Endpoint, usable_key, write_private
from sparkbook.serve.engine import Engine, EngineError
from sparkbook.serve.identity import ProcessId
from sparkbook.serve.stack import without_web_pages
from sparkbook.util.secret import is_secret
from sparkbook.util.shell_text import HOME, command_line

_GUARD = Path(__file__).with_name("_guard.py")
_HOST = "127.0.0.1"
# Settings of the starter that are about its own Python, notebook or terminal and would mislead the
# engine: a kernel asks for colours.
_NOT_INHERITED = {
    *(
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "VIRTUAL_ENV",
        "MPLBACKEND",
        "JPY_PARENT_PID",
        "JPY_SESSION_NAME",
    ),
    *("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"),
}


_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 20_000  # servers that people start by hand have the lower ones


def port_is_free(port: int, host: str = _HOST) -> bool:
    """Return whether nothing listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = _HOST) -> int:
    """Return a port on which nothing listens now, below those that the kernel gives to whoever
    names none: no other program's connection takes it before it is used.
    """
    try:
        end = int(_GIVEN_OUT.read_text("utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        end = 0
    ports = range(_LOWEST_PORT, max(_LOWEST_PORT, end))
    tries = secrets.SystemRandom().sample(ports, min(len(ports), 100))
    if (port := next((one for one in tries if port_is_free(one, host)), None)) is not None:
        return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class ProcessEngine(Engine):
    """A running `vllm serve`. Use it as a context manager, or call `stop()`.

    Attributes:
        endpoint: where it answers.
        command: the words it was started with; no secret is among them.
        log_file: what it prints, from its first line on.
        key_file: the API key, readable by its owner alone.
        readiness: the timed stages of the start, once `wait_ready` has returned.
    """

    def __init__(  # noqa: PLR0913 - the two engines' choices, and what a rank of a cluster adds
        self,
        launch: Launch,
        model: Path | str,
        *,
        name: str,
        port: int | None = None,
        folder: Path | None = None,
        grace_s: float = 10.0,
        recipe: str = "",
        via: Sequence[str] = (),
        instead: Sequence[str] | None = None,
    ):
        """Start the engine and return at once; `wait_ready` waits until it answers.

        Args:
            launch: arguments and environment, from a recipe. Its host and port are not used: the
                engine binds loopback.
            model: folder or handle to serve.
            name: the name that clients use, unless the arguments give a served-model-name.
            port: the port to use; a free one is chosen when None.
            folder: where log and key go; made under the cache directory when None.
            grace_s: seconds between asking the engine to end and killing it.
            recipe: id of the recipe that it comes from, for `sparkbook status`.
            via: words before the command, such as those that enter another network namespace.
            instead: program of the engine's environment and its words, run in place of
                `vllm serve`: Ray's daemon on a node of a cluster.

        With `headless` among the arguments it is a rank of a server that answers elsewhere, and
        gets no host and port.

        Raises:
            EngineError: the port is taken, the model's folder is missing, or the program can't be
                started.
            SparkbookError: the engine's environment is not installed.
        """
        if isinstance(model, Path) and not (model / "config.json").is_file():
            raise EngineError(f"there is no model in {model}: it has no config.json")
        if port is not None and not port_is_free(port):
            raise EngineError(
                f"port {port} is taken on {_HOST}: stop what listens there"
                f" ({command_line('ss', '-ltnp', f'sport = :{port}')} names it), or leave the port"
                " out"
            )
        python = paths.engine_python()
        program = python.with_name(instead[0] if instead else "vllm")
        if not program.is_file():
            raise EngineError(
                f"there is no {program.name} next to {python}: 'make engine' makes an environment"
                " that has vllm"
            )
        key = usable_key(os.environ.get("VLLM_API_KEY", ""), "VLLM_API_KEY") or secrets.token_hex(
            16
        )
        port = port or free_port()
        args = {n: v for n, v in launch.serve.args.items() if n not in ("host", "port")}
        args.setdefault("served-model-name", name)
        served = args["served-model-name"]
        self.endpoint = Endpoint(
            f"http://{_HOST}:{port}", str(served[0] if isinstance(served, list) else served), key
        )
        if not args.get("headless"):
            args = {"host": _HOST, "port": port, **without_web_pages(args)}
        serve = launch.serve.model_copy(
            update={"model": str(model), "model_option": False, "args": args}
        )
        words = [
            word.replace(HOME, str(Path.home())) for group in serve_groups(serve) for word in group
        ]
        self.command = [*via, str(program), *(instead[1:] if instead else ["serve", *words])]
        self.folder = folder or folders.path_of(f"{name.replace('/', '-')}-{port}")
        self.name = self.folder.name
        self.log_file = self.folder / folders.LOG_FILE
        self.key_file = self.folder / folders.KEY_FILE
        self._grace_s = grace_s
        self._record = folders.reserve(
            self.folder,
            name=name,
            recipe=recipe,
            served=self.endpoint.model,
            url=self.endpoint.url,
        )
        try:
            write_private(self.key_file, key)
            self._start(_environment(launch, key, python))
        except BaseException:
            folders.release(self.folder, self._record)
            raise

    def _start(self, environment: dict[str, str]) -> None:
        """Start the guard, which starts the command, and make the folder the guard's."""
        # The lifeline: only this process holds the writing end, and children don't inherit it.
        reading, writing = os.pipe()
        self._lifeline: int | None = writing
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(reading), str(self._grace_s)]
        try:
            with self.log_file.open("wb") as log:
                self._guard = subprocess.Popen(
                    [*guard, *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[reading],
                    start_new_session=True,
                    env=environment,
                )
        except OSError as error:
            os.close(writing)
            raise EngineError(f"the engine can't be started: {error}") from None
        finally:
            os.close(reading)
        self._identity = ProcessId.of(self._guard.pid)
        try:
            if self._identity:
                self._record = folders.hand_over(self.folder, self._record, self._identity)
        except BaseException:
            self.stop()
            raise

    @property
    def running(self) -> bool:
        """Whether its processes are still there."""
        return self._guard.poll() is None

    def listens(self) -> bool:
        """Return whether it is one of its processes that listens at its address, and nobody else.

        Raises:
            Stranger: another program does.
        """
        return self._identity is not None and identity.listens(
            self.endpoint.url, self._identity.sockets
        )

    @property
    def exit_status(self) -> int | None:
        """Exit status, 128 + N after signal N; None while the engine runs."""
        return self._guard.poll()

    def stop(self) -> None:
        """End all of its processes and wait until they are gone. Calling it again does nothing."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        try:
            self._guard.wait(timeout=self._grace_s + 15)
        except subprocess.TimeoutExpired:
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(timeout=5)
            self._guard.kill()
            self._guard.wait()
        folders.release(self.folder, self._record)

    def kill(self) -> None:
        """End all of its processes at once; the guard sees to what is left."""
        if self._identity:
            self._identity.kill_descendants()

    def __repr__(self) -> str:
        state = "running" if self.running else f"ended with status {self.exit_status}"
        return f"<ProcessEngine {self.endpoint.model} at {self.endpoint.url}, {state}>"

    def _repr_html_(self) -> str:
        import html

        state = "running" if self.running else f"ended with status {self.exit_status}"
        return (
            f"<code>{html.escape(command_line(*self.command[:2]))} …</code> {state} at"
            f" <code>{html.escape(self.endpoint.url)}</code>"
        )


def _environment(launch: Launch, key: str, python: Path) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and (name in launch.env or not is_secret(name))
    }
    environment |= {name: value for name, value in launch.env.items() if value is not None}
    environment |= {"VLLM_API_KEY": key, "NO_COLOR": "1"}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    # vLLM's own advice on x86: Intel's OpenMP, which lies in the environment, must be loaded first.
    openmp = python.parents[1] / "lib" / "libiomp5.so"
    if openmp.exists():
        environment.setdefault("LD_PRELOAD", str(openmp))
    return environment
