"""A secret canary: known tokens in the environment, and then every place where what runs leaves
something is searched for them.
"""

import contextlib
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from sparkbook.runner import notebooks

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CANARIES = {
    "HF_TOKEN": "hf-canary-2718281828459045",
    "VLLM_API_KEY": "key-canary-1618033988749894",
    "NGC_API_KEY": "ngc-canary-1414213562",
}


@pytest.fixture
def folder():
    """Shorter than pytest's own, since kernels are talked to over sockets in it, whose path may be
    107 bytes long.
    """
    with tempfile.TemporaryDirectory(prefix="sb-") as name:
        yield Path(name)


@pytest.mark.engine
@pytest.mark.kernel
def test_no_secret_is_left_anywhere(folder, monkeypatch):
    """The chapter that starts, watches, locks and reads a server runs whole: its log, lock, outputs
    and page hold no secret.
    """
    from nbconvert import HTMLExporter

    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    for name in ("SPARKBOOK_CACHE", "SPARKBOOK_STATE", "TMPDIR"):
        (folder / name).mkdir()
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.delenv("SPARKBOOK_ENDPOINT", raising=False)
    monkeypatch.delenv("SPARKBOOK_KEY_FILE", raising=False)
    command_lines: set[str] = set()
    keys: set[tuple[Path, int]] = set()
    over = threading.Event()

    def look():
        while not over.is_set():
            for process in psutil.process_iter(["cmdline"]):
                command_lines.add(" ".join(process.info["cmdline"] or ()))
            with contextlib.suppress(FileNotFoundError):
                for file in (folder / "SPARKBOOK_CACHE").rglob("api-key"):
                    keys.add((file, file.stat().st_mode & 0o777))
            time.sleep(0.5)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        executed = folder / "executed.ipynb"
        assert notebooks.execute(NOTEBOOKS / "15_keep_running.ipynb", executed) is None
    finally:
        over.set()
        watcher.join()
    page, _ = HTMLExporter().from_filename(str(executed))
    (folder / "page.html").write_text(page)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"server.log", "stack.lock.json", "executed.ipynb", "page.html"} <= {
        path.name for path in files
    }
    assert any("serve" in line and "tiny-dense" in line for line in command_lines), (
        "the server's own command line was seen"
    )
    for name, value in CANARIES.items():
        assert not [path for path in files if value in path.read_text(errors="replace")], (
            f"{name} lies in a file"
        )
        assert not [line for line in command_lines if value in line], (
            f"{name} stood on a command line"
        )
    # The one place where the key may be while the server runs: a file for its owner alone, gone
    # with it.
    assert (
        len(keys) == 1
        and {mode for _, mode in keys} == {0o600}
        and not any(file.exists() for file, _ in keys)
    )
