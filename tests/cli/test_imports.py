"""What the command imports: little for a short verb, and never what only the book needs. Nothing is
timed here; a list of modules says the same on every machine.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sparkbook.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
HEAVY = (
    *("matplotlib", "IPython", "numpy", "httpx", "docker", "huggingface_hub", "openai"),
    *("papermill", "nbformat", "ipywidgets", "psutil", "prometheus_client", "requests"),
)
LINE = "docker run --gpus all vllm/vllm-openai:v0.28.0 openai/gpt-oss-20b\n"

CALL = """
import json, sys
sys.argv = ["sparkbook", *json.loads(sys.argv[1])]
try:
    from sparkbook import cli
    if len(sys.argv) > 1:
        cli.main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""

ONLY = """
import json, sys
forbidden = set(json.loads(sys.argv[1]))
class Only:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in forbidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Only())
import contextlib, io
from sparkbook import cli
results = []
for line in json.loads(sys.argv[2]):
    sys.argv = ["sparkbook", *line]
    out, wrong, code = io.StringIO(), io.StringIO(), "no exit"
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            cli.main()
    except SystemExit as end:
        code = end.code or 0
    except Exception as error:
        code = f"{type(error).__name__}: {error}"
    results.append([line, code, out.getvalue()[-300:], wrong.getvalue()[-300:]])
print(json.dumps(results))
"""


def imported(*words: str) -> set[str]:
    """The modules that a call of the command imports."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, json.dumps(words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_command_alone_imports_next_to_nothing() -> None:
    modules = imported()
    assert modules.isdisjoint([*HEAVY, "pydantic", "pydantic_core", "yaml", "rich"])
    assert {name for name in modules if name.startswith("sparkbook")} == {
        "sparkbook",
        "sparkbook.cli",
        "sparkbook.cli.verbs",
        "sparkbook.errors",
    }


def test_help_reads_the_verbs_and_nothing_else() -> None:
    modules = imported("--help")
    assert modules.isdisjoint([*HEAVY, "pydantic", "pydantic_core", "yaml", "rich"])


def test_lint_of_a_line_in_a_pipe_validates_and_draws_nothing(tmp_path: Path) -> None:
    file = tmp_path / "line.txt"
    file.write_text(LINE)
    modules = imported("lint", str(file))
    assert modules.isdisjoint([*HEAVY, "pydantic", "pydantic_core", "rich", "typer._adapters"])


def names(requirements: list[str]) -> set[str]:
    """The distributions that requirements name, normalized."""
    words = (re.match(r"[\w.-]+", text) for text in requirements)
    return {word[0].lower().replace("_", "-") for word in words if word}


def needed(names_: set[str]) -> set[str]:
    """Distributions, with all that they require here without extras."""
    found: set[str] = set()
    waiting = set(names_)
    while waiting:
        name = waiting.pop()
        found.add(name)
        required = importlib.metadata.requires(name) or []
        waiting |= {
            one
            for one in names([text for text in required if "extra ==" not in text])
            if one not in found and _installed(one)
        }
    return found


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def forbidden() -> list[str]:
    """Every top-level module that is installed here and is of no distribution the command needs."""
    command = needed(names(PROJECT["dependencies"])) | {"sparkbook"}
    modules = importlib.metadata.packages_distributions()
    return sorted(
        module
        for module, distributions in modules.items()
        if command.isdisjoint(name.lower().replace("_", "-") for name in distributions)
        and not module.startswith("_")
    )


def alone(lines: list[list[str]]) -> list[list]:
    """Each line's exit code and the end of its output, with the command's dependencies only."""
    done = subprocess.run(
        [sys.executable, "-c", ONLY, json.dumps(forbidden()), json.dumps(lines)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return json.loads(done.stdout)


def test_what_only_the_book_needs_is_forbidden_here() -> None:
    assert {"matplotlib", "IPython", "papermill", "nbformat", "jupyter_core", "ray"} <= set(
        forbidden()
    )
    assert {"typer", "pydantic", "yaml", "numpy", "tqdm"}.isdisjoint(forbidden())


def test_every_help_is_shown_by_the_dependencies_alone() -> None:
    groups = ["recipes", "releases", "weights", "cluster", "lock", "kernels", "rules"]
    lines = [[verb, "--help"] for verb in VERBS] + [["--help"], ["--version"]]
    assert set(groups) < set(VERBS)
    for line, code, out, wrong in alone(lines):
        assert code == 0 and out and not wrong, (line, code, wrong)


@pytest.mark.slow
def test_the_verbs_of_a_spark_owner_work_by_the_dependencies_alone(tmp_path: Path) -> None:
    line, log = tmp_path / "line.txt", tmp_path / "vllm.log"
    line.write_text(LINE)
    log.write_text("OSError: [Errno 98] Address already in use\n")
    codes = {
        ("recipes", "list"): 0,
        ("recipes", "show", "gpt-oss-120b"): 0,
        ("releases", "diff", "0.30.0", "0.32.0"): 0,
        ("lint", str(line)): 0,
        ("convert", str(line), "--to", "compose"): 0,
        ("plan", str(line)): 0,
        ("plan", "gpt-oss-120b", "--nodes", "2"): 0,
        ("diagnose", str(log)): 1,
        ("check",): 0,
        ("serve", "gpt-oss-120b", "--dry-run"): 0,
        ("lock", "gpt-oss-120b"): 0,
        ("weights", "prune", "--store", str(tmp_path)): 0,
        ("monitor", "grafana"): 0,
        ("rules", "list"): 0,
        ("rules", "show", "HOST006"): 0,
        ("bench", "http://127.0.0.1:1"): 2,
        ("advise", "a.json", "b.json"): 2,
        ("metrics", "http://127.0.0.1:1"): 2,
        ("kernels", "test"): 2,
        ("book", "--target", "x"): 2,
    }
    for words, code, _, wrong in alone([list(words) for words in codes]):
        assert code == codes[tuple(words)], (words, code, wrong)
        assert "No module" not in wrong, (words, wrong)


def test_the_pins_hold_what_the_command_and_the_book_need() -> None:
    pinned = names((ROOT / "requirements.txt").read_text("utf-8").splitlines())
    extras = PROJECT["optional-dependencies"]
    assert names(PROJECT["dependencies"] + extras["book"] + extras["ray"]) <= pinned


@pytest.mark.parametrize("extra", ["book", "kernels", "ray"])
def test_the_extras_are_there(extra: str) -> None:
    assert names(PROJECT["optional-dependencies"][extra]).isdisjoint(names(PROJECT["dependencies"]))
