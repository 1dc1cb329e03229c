"""Clients in throw-away environments, and an engine whose context is long enough for an agent's
first prompt. Used by the tests here and by `tools/record_clients.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkbook import checkpoint, recipes
from sparkbook.clients import Client, Settings
from sparkbook.serve.process import ProcessEngine

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
CONTEXT = 65536
DRIVERS = Path(__file__).with_name("drivers")
WITHOUT = {"open-webui": 'torch ; sys_platform == "never"\n'}
"""Dependencies that a client starts without: gigabytes that serve its own embeddings."""


@contextlib.contextmanager
def long_engine(folder: Path, context: int = CONTEXT) -> Iterator[ProcessEngine]:
    """Start tiny-dense with a config that claims more context than it learned: what it answers to a
    long prompt is noise, and the engine counts tokens and blocks as it does for any model.
    """
    model = folder / "long"
    shutil.copytree(checkpoint.MODELS / "tiny-dense", model)
    config = json.loads((model / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = context
    (model / "config.json").write_text(json.dumps(config), "utf-8")
    recipe = recipes.load("embedded/tiny-dense")
    launch = recipe.launch.model_copy(deep=True)
    launch.serve.args |= {
        "max-model-len": context,
        "kv-cache-memory-bytes": "512M",
        "max-num-batched-tokens": 8192,
        "block-size": 32,
    }
    with ProcessEngine(launch, model, name=recipe.served_name, folder=folder / "run") as engine:
        engine.wait_ready(recipe.capabilities)
        yield engine


def settings_of(engine: ProcessEngine) -> Settings:
    """Return what a client needs to know of the engine."""
    return Settings(
        url=engine.endpoint.url,
        model=engine.endpoint.model,
        key_file=str(engine.key_file),
        context=CONTEXT,
    )


class Installed:
    """A client, its programs and a home folder of its own with the settings that
    `sparkbook client` prints.

    Attributes:
        scripts: what it prints for a shell.
    """

    def __init__(self, client: Client, settings: Settings, folder: Path):
        self.client, self.settings, self.folder = client, settings, folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.programs = _install(client, folder)
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "LLM_USER_PATH": str(self.home),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_PROXY": "*",
        }
        self.scripts = []
        for block in client.blocks(settings):
            if block.file:
                file = self.home / block.file.removeprefix("~/").rpartition(")/")[2]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, "utf-8")
            elif block.syntax == "shell":
                self.scripts.append(block.text)

    def shell(self, script: str, **env: str) -> str:
        """Run a script of bash, and return what it printed."""
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=self.home,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    @contextlib.contextmanager
    def driver(self) -> Iterator[subprocess.Popen[str]]:
        """Run the printed Python and this client's driver; a line of JSON in, one out."""
        (block,) = self.client.blocks(self.settings)
        name = self.client.name
        source = block.text + (DRIVERS / f"{name}.py").read_text("utf-8")
        source += (DRIVERS / "_loop.py").read_text("utf-8")
        program = self.folder / "driver.py"
        program.write_text(source, "utf-8")
        process = subprocess.Popen(
            [self.programs / "python", program],
            cwd=self.home,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.stdin.close()

    @contextlib.contextmanager
    def web_interface(self, port: int) -> Iterator[WebInterface]:
        """Run Open WebUI with the variables that its `docker run` line sets."""
        words = self.scripts[0].replace("\\\n", " ").split()
        pairs = (words[n + 1] for n, word in enumerate(words) if word == "-e")
        variables = dict(pair.split("=", 1) for pair in pairs)
        variables |= {
            "OPENAI_API_KEY": Path(self.settings.key_file).read_text("utf-8").strip(),
            "DATA_DIR": str(self.home / "data"),
            "WEBUI_AUTH": "False",
            "OFFLINE_MODE": "True",
            "RAG_EMBEDDING_ENGINE": "openai",  # else it loads a model of its own
        }
        command = [self.programs / "open-webui", "serve", "--host", "127.0.0.1"]
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, "--port", str(port)],
                cwd=self.home,
                env=self.env | variables,
                stdout=log,
                stderr=log,
            )
        try:
            yield WebInterface(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            process.wait(60)


class WebInterface:
    """Open WebUI, asked as its page asks it."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]):
        self.url, self.token = url, ""
        while process.poll() is None:
            with contextlib.suppress(urllib.error.URLError):
                self.ask("/health")
                break
            time.sleep(0.5)
        self.token = self.ask("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return what a path answers: JSON, or a stream as text."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            text = reply.read().decode()
        return text if reply.headers["Content-Type"].startswith("text/event") else json.loads(text)


def _install(client: Client, folder: Path) -> Path:
    """Install the package that an entry names, and return the folder of its programs."""
    kind, _, package = (client.tried or "").partition(":")
    if kind == "npm":
        subprocess.run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, package],
            check=True,
        )
        return folder / "node_modules" / ".bin"
    if kind == "pypi":
        place = folder / "env"
        overrides = folder / "overrides.txt"
        overrides.write_text(WITHOUT.get(client.name, ""), "utf-8")
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, place], check=True)
        line = [UV, "pip", "install", "--quiet", "--python", place / "bin" / "python"]
        subprocess.run([*line, "--override", overrides, package], check=True)
        return place / "bin"
    return folder
