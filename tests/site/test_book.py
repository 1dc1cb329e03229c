"""The builder: what is stale, what a failure does, Ctrl-C, the lock."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.runner import notebooks
from sparkbook.runner.fingerprint import Fingerprints
from sparkbook.runner.pages import pages, select
from sparkbook.runner.project import Project
from sparkbook.runner.run_pages import Outcome, locked, refresh
from sparkbook.site import book as builder

pytestmark = pytest.mark.kernel

Make = Callable[..., Project]


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing has its own tests; here only the running counts."""
    monkeypatch.setattr(builder, "publish", lambda *_: None)


def run(project: Project, **options: object) -> tuple[Outcome, list[str]]:
    out = io.StringIO()
    outcome = builder.build(project, out=out, **options)  # type: ignore[arg-type]
    return outcome, out.getvalue().splitlines()


def test_a_second_build_runs_nothing_and_a_changed_chapter_runs_alone(book: Make) -> None:
    project = book({"01_a": ["print(target)"], "02_b": ["print(target, 2)"]})
    outcome, lines = run(project)
    assert (outcome.ran, outcome.fresh, outcome.ok) == (2, 0, True)
    assert [line for line in lines if re.fullmatch(r"\[\d/2\] 01_a … (\d+ ms|\d+\.\d s)", line)]

    outcome, lines = run(project)
    assert (outcome.ran, outcome.fresh) == (0, 2)
    assert lines == ["[1/2] 01_a … unchanged", "[2/2] 02_b … unchanged"]

    chapter = project.root / "notebooks" / "02_b.ipynb"
    chapter.write_text(
        chapter.read_text("utf-8").replace("print(target, 2)", "print(target, 3)"), "utf-8"
    )
    outcome, lines = run(project)
    assert (outcome.ran, outcome.fresh) == (1, 1)
    assert lines[0] == "[1/2] 01_a … unchanged"


def test_a_build_with_nothing_to_do_imports_nothing_heavy(book: Make) -> None:
    project = book({"01_a": ["print(target)"]})
    run(project)
    code = (
        "import sys; from pathlib import Path; from sparkbook.site import book; from"
        " sparkbook.runner.project import Project\nbook.publish = lambda *_: None\nassert"
        f" book.build(Project(Path({str(project.root)!r}), recipes=())).fresh == 1\nprint([name"
        " for name in ('papermill', 'nbclient', 'sphinx', 'matplotlib', 'vllm') if name in"
        " sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_failing_chapter_is_reported_and_the_others_run(book: Make) -> None:
    project = book(
        {"01_a": ["assert target == 'none', 'set target to none'"], "02_b": ["print(target)"]}
    )
    outcome, lines = run(project)
    assert outcome.ran == 2
    assert not outcome.ok
    assert (
        str(outcome.failures["01_a"])
        == "cell 2 (assert target == 'none', 'set target to none'): AssertionError: set target to"
        " none"
    )
    failed = next(at for at, line in enumerate(lines) if "01_a … FAILED after " in line)
    assert "AssertionError: set target to none" in lines[failed + 1]
    again, lines = run(project)
    assert (again.ran, again.fresh) == (1, 1), "what failed is run again, what did not is kept"


@pytest.mark.parametrize(
    "error", [SparkbookError("no room"), OSError("no room")], ids=["told", "of the system"]
)
def test_a_chapter_whose_engine_does_not_start_fails_without_running(
    book: Make, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from sparkbook.serve import embedded

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.delenv("SPARKBOOK_ENDPOINT", raising=False)
    monkeypatch.setattr(embedded, "start", refuse)
    project = book(
        {"01_a": [("print(target)", ["engine"])], "02_b": ["print(target)"]}, engine="attach"
    )
    declare(project, "02_b", engine="own", measures=True)
    outcome, lines = run(project)
    assert outcome.ran == 1, "what needs no shared engine runs"
    assert str(outcome.failures["01_a"]) == "the engine did not start: no room"
    assert "[1/2] 01_a … FAILED, not started" in lines
    page = pages(project, "auto")[0]
    assert "the engine did not start" in page.out.read_text("utf-8"), "the page says so"
    assert not page.is_fresh()


def test_a_server_that_is_named_already_is_used(
    book: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKBOOK_ENDPOINT", "http://127.0.0.1:9/v1")
    project = book(
        {"01_a": [("import os\nprint(target, os.environ['SPARKBOOK_ENDPOINT'])", ["engine"])]},
        engine="attach",
    )
    outcome, lines = run(project)
    assert outcome.ok, outcome.failures
    assert lines[0] == "engine: http://127.0.0.1:9/v1, named by SPARKBOOK_ENDPOINT"


def declare(project: Project, name: str, **sparkbook: object) -> None:
    """Change what a chapter's metadata says about its engine."""
    path = project.root / "notebooks" / f"{name}.ipynb"
    notebook = json.loads(path.read_text("utf-8"))
    notebook["metadata"]["sparkbook"] = sparkbook
    path.write_text(json.dumps(notebook), "utf-8")


def test_what_measures_runs_alone_after_what_does_not(book: Make) -> None:
    meet = (
        "import pathlib, time\npathlib.Path('{mine}').touch()\nend = time.monotonic() + 60\nwhile"
        " not pathlib.Path('{other}').exists():\n    assert time.monotonic() < end, 'alone'\n   "
        " time.sleep(0.05)\ntime.sleep(0.2)\npathlib.Path('{mine}.done').touch()"
    )
    project = book(
        {
            "01_a": [
                "import pathlib\nassert pathlib.Path('b.done').exists() and"
                " pathlib.Path('c.done').exists(), 'in company'"
            ],
            "02_b": [meet.format(mine="b", other="c")],
            "03_c": [meet.format(mine="c", other="b")],
        }
    )
    declare(project, "01_a", engine="own")
    declare(project, "02_b", engine="own", measures=False)
    outcome, _ = run(project)
    assert outcome.ok and outcome.ran == 3, outcome.failures


def test_the_shared_engine_comes_up_beside_the_other_pages(
    book: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkbook.serve import embedded

    did: list[str] = []

    class Engine(contextlib.AbstractContextManager["Engine"]):
        def wait_ready(self, *_: object) -> None:
            did.append("waited")

        def environment(self) -> dict[str, str]:
            return {"SPARKBOOK_ENDPOINT": "http://127.0.0.1:9"}

        def stop(self) -> None:
            did.append("stopped")

        def __exit__(self, *_: object) -> None:
            self.stop()

    monkeypatch.delenv("SPARKBOOK_ENDPOINT", raising=False)
    monkeypatch.setattr(
        embedded, "start", lambda *_, ready: did.append(f"started, ready={ready}") or Engine()
    )
    seen = "import os\nassert os.environ.get('SPARKBOOK_ENDPOINT') == {}"
    project = book(
        {"01_a": [(seen.format("'http://127.0.0.1:9'"), ["engine"])], "02_b": [seen.format(None)]}
    )
    declare(project, "01_a", engine="attach")
    outcome, lines = run(project)
    assert outcome.ok, outcome.failures
    assert did[:2] == ["started, ready=False", "waited"] and did[-1] == "stopped"
    assert [line.split(" … ")[0].split(";")[0] for line in lines[:5]] == [
        "engine: starting embedded/smollm2-135m …",
        "[1/2] 02_b",
        "engine: ready",
        "[2/2] 01_a",
        "engine: stopped",
    ]


def test_plan_starts_no_engine(book: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkbook.serve import embedded

    monkeypatch.delenv("SPARKBOOK_ENDPOINT", raising=False)
    monkeypatch.setattr(embedded, "start", lambda *_: pytest.fail("an engine was started"))
    project = book(
        {"01_a": [("raise SystemError", ["engine"]), "assert target == 'plan'"]}, engine="attach"
    )
    outcome, _ = run(project, target="plan")
    assert outcome.ok, outcome.failures
    assert notebooks.NOT_RUN in (project.executed / "plan/notebooks/01_a.ipynb").read_text("utf-8")


def test_only_runs_one_and_leaves_the_site_when_pages_are_missing(book: Make) -> None:
    project = book({"01_a": ["print(target)"], "02_b": ["print(target)"]})
    outcome, lines = run(project, only="02_b")
    assert outcome.ran == 1
    assert lines[-1].startswith("site: not built; pages that have not run yet: 1 (01_a)")


def test_a_name_that_no_page_has_is_refused(book: Make) -> None:
    project = book({"01_a": ["print(target)"]})
    with pytest.raises(SparkbookError, match="'02_x'; there are 01_a"):
        run(project, only="02_x")
    assert select(pages(project, "auto"), None) == pages(project, "auto")


def test_a_chapter_that_is_not_there_is_an_error(book: Make) -> None:
    project = book({"01_a": ["print(target)"]})
    (project.root / "notebooks" / "01_a.ipynb").unlink()
    with pytest.raises(SparkbookError, match=r"_toc\.yml names notebooks/01_a"):
        run(project)


def test_refresh_runs_in_place_with_the_defaults(book: Make) -> None:
    project = book({"01_a": ["print(target)"]})
    outcome = refresh(project, out=io.StringIO())
    assert outcome.ok
    path = project.root / "notebooks" / "01_a.ipynb"
    assert notebooks.is_normalised(path)
    assert [cell["execution_count"] for cell in notebooks.code_cells(notebooks.read(path))] == [
        1,
        2,
    ]
    assert "injected-parameters" not in path.read_text("utf-8")
    assert not list(path.parent.glob("*.json"))


class TestFingerprint:
    """What a page's fingerprint reacts to, on a copy of the library."""

    @pytest.fixture
    def library(self, tmp_path: Path) -> Path:
        source = Path(builder.__file__).parents[1]
        return Path(
            shutil.copytree(
                source,
                tmp_path / "lib" / "sparkbook",
                ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"),
            )
        )

    @staticmethod
    def prints(project: Project, library: Path, **values: object) -> tuple[str, str]:
        shutil.copyfile(project.root / "notebooks" / "01_a.ipynb", project.template)
        prints = Fingerprints(project, library)
        recipe = recipes.load("gpt-oss-120b")
        return prints.chapter(
            project.root / "notebooks/01_a.ipynb", values, "auto"
        ), prints.model_page(recipe, values, "auto")

    @pytest.mark.parametrize(
        ("code", "file", "reacts"),
        [
            ("from sparkbook.kernels import build", "kernels/gemv.cu", True),
            ("from sparkbook.plots import kernels as plots", "kernels/results/h100.json", True),
            ("print(target)", "kernels/gemv.cu", False),
            (
                "from sparkbook.runner import notebooks, batch",
                "lib/sparkbook/runner/batch.py",
                True,
            ),
            (
                "from sparkbook.runner import (\n    batch,\n    batch_workers,\n)",
                "lib/sparkbook/runner/batch_workers.py",
                True,
            ),
            ("from sparkbook.runner.batch import run", "lib/sparkbook/runner/batch.py", True),
            ("from sparkbook.runner import notebooks", "lib/sparkbook/runner/batch.py", False),
        ],
    )
    def test_what_a_chapter_names_in_its_code(
        self, book: Make, library: Path, code: str, file: str, reacts: bool
    ) -> None:
        project = book({"01_a": [code]})
        path = (library.parents[1] if file.startswith("lib/") else project.root) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        before = self.prints(project, library)
        path.write_text("changed", "utf-8")
        after = self.prints(project, library)
        assert (before[0] != after[0], before[1] != after[1]) == (reacts, False)

    @pytest.mark.parametrize(
        ("file", "chapter", "model"),
        [
            ("units.py", True, True),
            ("site/present.py", True, True),
            ("site/publish.py", False, False),
            ("recipes/recipe.schema.json", True, True),
            ("recipes/catalogue/gpt-oss-20b.yaml", True, False),
        ],
    )
    def test_a_changed_file(
        self, book: Make, library: Path, file: str, chapter: bool, model: bool
    ) -> None:
        project = book({"01_a": ["print(target)"]})
        before = self.prints(project, library)
        with (library / file).open("a", encoding="utf-8") as stream:
            stream.write("\n# changed\n")
        after = self.prints(project, library)
        assert (before[0] != after[0], before[1] != after[1]) == (chapter, model)

    def test_values_and_requirements_count(self, book: Make, library: Path) -> None:
        project = book({"01_a": ["print(target)"]})
        before = self.prints(project, library)
        assert all(
            a != b
            for a, b in zip(before, self.prints(project, library, target="plan"), strict=True)
        )
        (project.root / "requirements.txt").write_text("numpy==1\n", "utf-8")
        assert all(a != b for a, b in zip(before, self.prints(project, library), strict=True))

    def test_outputs_and_bytecode_do_not(self, book: Make, library: Path) -> None:
        project = book({"01_a": ["print(target)"]})
        before = self.prints(project, library)
        assert refresh(project, "01_a", out=io.StringIO()).ok
        (library / "__pycache__").mkdir()
        (library / "__pycache__" / "units.pyc").write_bytes(b"x")
        chapter, _ = self.prints(project, library)
        # The kernelspec and language_info that normalising writes are no change either, once they
        # are there.
        assert refresh(project, "01_a", out=io.StringIO()).ok
        assert self.prints(project, library)[0] == chapter
        assert len(before[0]) == 64

    def test_a_recipe_counts_with_what_it_extends(self, book: Make, library: Path) -> None:
        project = book({"01_a": ["print(target)"]})
        shutil.copyfile(project.root / "notebooks" / "01_a.ipynb", project.template)
        recipe = recipes.load("gpt-oss-120b")
        other = recipe.model_copy(update={"env": {**recipe.env, "HF_HOME": "/elsewhere"}})
        prints = Fingerprints(project, library)
        assert prints.model_page(recipe, {}, "auto") != prints.model_page(other, {}, "auto")


def command(project: Project) -> list[str]:
    """The builder as a process of its own, without a site to build."""
    code = (
        "import sys; from pathlib import Path; from sparkbook.site import __main__ as"
        " cli\ncli.Project = lambda root:"
        " __import__('sparkbook.runner.project').book.project.Project(root,"
        f" recipes=())\nsys.exit(cli.main(['--root', {str(project.root)!r}, 'build']))"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_stops_the_kernels_and_leaves_nothing_half_written(
    book: Make, name: str
) -> None:
    marker = (
        "import pathlib, os,"
        " time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(300)"
    )
    project = book(
        {"01_a": ["print(target)"], "02_b": [marker]}, engine="own"
    )  # one after the other
    process = subprocess.Popen(
        command(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pid_file = project.root / "notebooks" / "pid"
    try:
        deadline = time.monotonic() + 60
        while not (pid_file.exists() and pid_file.read_text("utf-8")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(getattr(signal, name))
        _, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130, error
    assert error.strip().splitlines() == ["interrupted: nothing is still running"]
    assert not psutil.pid_exists(int(pid_file.read_text("utf-8"))), "the kernel is gone"
    executed = sorted(path.name for path in (project.executed / "auto/notebooks").iterdir())
    assert executed == [
        "01_a.ipynb",
        "01_a.json",
    ], "the finished chapter is kept, the other one leaves no trace"


def test_a_second_build_at_the_same_time_is_refused(book: Make) -> None:
    project = book({"01_a": ["print(target)"]})
    with locked(project):
        done = subprocess.run(command(project), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    message = f"process {os.getpid()} is already building the book: wait for it, or stop it"
    assert done.stderr == f"error: {message}\n"
    outcome, _ = run(project)
    assert outcome.ok, "the lock is free again"
