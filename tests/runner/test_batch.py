"""`sparkbook book`: what becomes of a job, with nodes that are scripted; then real processes, and a
real Ray cluster of two nodes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import nbformat
import psutil
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.runner import batch
from sparkbook.runner.batch import Job, Result

LIB = Path(batch.__file__).parents[2]
SPARKBOOK = [sys.executable, "-c", "from sparkbook.cli import main; main()"]

PARAMETERS = """n: int = 1  # number to square
gate: str = ""  # a file to wait for
fail: bool = False  # whether to fail
die: str = ""  # kill the process that runs this, unless the file is there; then make it"""
CELLS = [
    "import os, pathlib, signal, time",
    (
        "if die and not pathlib.Path(die).exists():\n    pathlib.Path(die).touch()\n   "
        " os.kill(os.getppid(), signal.SIGKILL)"
    ),
    (
        "while gate and not pathlib.Path(gate).exists():\n    pathlib.Path(f'{gate}.{n}').touch()\n"
        "    time.sleep(0.1)"
    ),
    "assert not fail, 'as asked'",
    "print(n * n)",
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    first = nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    made = nbformat.v4.new_notebook(
        cells=[first, *map(nbformat.v4.new_code_cell, CELLS)],
        metadata={"sparkbook": {"engine": "none"}},
    )
    path = tmp_path_factory.mktemp("notebook") / "square.ipynb"
    nbformat.write(made, path)
    return path


def items(folder: Path) -> dict[str, dict]:
    return json.loads((folder / "manifest.json").read_text("utf-8"))["notebooks"]


def attempts(item: dict) -> list[tuple[str, str]]:
    return [(one["node"], one["outcome"]) for one in item["attempts"]]


# ---- what there is to run


def test_a_matrix_is_every_combination_in_the_order_given(notebook: Path) -> None:
    jobs = batch.jobs([str(notebook)], batch.assignments(["n=1,2", "fail=false,true"]))
    assert [job.name for job in jobs] == [
        "square--n=1--fail=False",
        "square--n=1--fail=True",
        "square--n=2--fail=False",
        "square--n=2--fail=True",
    ]
    assert jobs[1].values == {"n": 1, "fail": True}
    assert all(job.text == notebook.read_text("utf-8") for job in jobs)


def test_a_matrix_with_too_many_combinations_is_refused(notebook: Path) -> None:
    with pytest.raises(SparkbookError, match="more than 10,000 combinations"):
        batch.matrix(notebook, {"n": list(range(101)), "fail": [False] * 100})


MOST = batch._MOST_JOBS
LARGE: list[dict[str, list[object]]] = [
    *({"n": list(range(size))} for size in (MOST + 1, 90_000, 100_000, 250_000)),
    *({"n": [1] * size, "fail": [False, True]} for size in (MOST // 2 + 1, 90_000)),
    {"n": list(range(300)), "gate": ["a"] * 300},
    {"n": [1] * 30, "gate": ["a"] * 30, "fail": [False] * 30, "die": [""] * 30},
    {f"p{number}": [1, 2] for number in range(5000)},
    {"n": [[1] * 100] * 1000},
]


@pytest.mark.parametrize("values", LARGE)
@pytest.mark.parametrize("form", ["file", "line"])
def test_a_large_matrix_is_refused_before_a_job_is_made(
    notebook: Path, tmp_path: Path, values: dict, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is large about it, and wherever it comes from."""
    monkeypatch.setattr(batch, "Job", mock.Mock(side_effect=AssertionError("a job")))
    monkeypatch.setattr(batch, "_typed", mock.Mock(side_effect=SparkbookError("a value is read")))
    file = tmp_path / "matrix.yaml"
    with pytest.raises(SparkbookError) as refused:
        if form == "file":
            file.write_text(json.dumps({"notebook": str(notebook), "parameters": values}))
            batch.jobs([], {}, matrix_file=str(file))
        else:
            words = [f"{name}={','.join(map(str, some))}" for name, some in values.items()]
            batch.jobs([str(notebook)], batch.assignments(words))
    said = str(refused.value)
    assert len(said) < 300 and "\n" not in said and "a value is read" not in said


def test_the_largest_matrix_is_run(notebook: Path, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    values = {"n": list(range(MOST // 2)), "fail": [False, True]}
    file.write_text(json.dumps({"notebook": str(notebook), "parameters": values}))
    assert len(batch.jobs([], {}, matrix_file=str(file))) == MOST


def test_a_matrix_file_names_notebook_and_values_and_the_line_takes_precedence(
    notebook: Path, tmp_path: Path
) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(f"notebook: {notebook}\nparameters:\n  n: [1, 2]\n  gate: 'a, b/c'\n")
    jobs = batch.jobs([], batch.assignments(["n=3"]), matrix_file=str(file))
    assert [job.values for job in jobs] == [{"n": 3, "gate": "a, b/c"}]
    # What a file system does not take is not in the name, and two such names stay two.
    assert jobs[0].name.startswith("square--n=3--gate=a-b-c-")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["n"], "'n' is not of the form name=v1,v2"),
        (["n=1", "n=2"], "parameter n is given twice"),
        (["m=1"], "no parameter m; it has n, gate, fail, die"),
        (["n=one"], "parameter n is int"),
        (["n=0x" + "f" * 5000], "is not of the type int"),
        (["n=2026-99-99"], "parameter n is int"),
        (["fail=3"], "parameter fail is bool"),
    ],
)
def test_what_cannot_be_run_is_said(notebook: Path, words: list[str], says: str) -> None:
    with pytest.raises(SparkbookError, match=says):
        batch.jobs([str(notebook)], batch.assignments(words))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "notebook: a\n",
        "notebook: a\nparameters: [1]\n",
        "a: [",
        "notebook: a\nparameters: {}\nx: 1\n",
        "a: " + "[" * 5000,
    ],
)
def test_a_file_that_is_no_matrix_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "matrix.yaml").write_text(text)
    with pytest.raises(SparkbookError, match=r"matrix\.yaml"):
        batch.read_matrix(tmp_path / "matrix.yaml")


def test_no_secret_is_a_parameter_and_none_is_printed(
    notebook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    with pytest.raises(SparkbookError, match="parameter gate looks like a secret") as raised:
        batch.jobs([str(notebook)], {"gate": ["x-hf_abcdefgh"]})
    assert "hf_abcdefgh" not in str(raised.value)


def test_the_whole_book_is_every_chapter_and_every_recipes_page() -> None:
    from sparkbook import recipes
    from sparkbook.runner.project import here

    jobs = batch.jobs([], {}, target="plan")
    assert len(jobs) == len(here().chapters()) + len(recipes.ids())
    assert {"06_launch", "models/gpt-oss-120b"} <= {job.name for job in jobs}
    assert all(job.plan for job in jobs)


# ---- what becomes of a job


class Scripted:
    """Nodes that end jobs as told: a function from job, node and number of the attempt to an
    outcome.
    """

    def __init__(self, nodes: dict[str, int], outcome: Callable[[str, str, int], str]) -> None:
        self._nodes, self._outcome, self.began, self.most = nodes, outcome, [], 0
        self._running: list[tuple[str, str]] = []
        self.stopped = False

    def nodes(self) -> dict[str, int]:
        return dict(self._nodes)

    def start(self, job: Job, node: str) -> None:
        self.began.append((job.name, node))
        self._running.append((job.name, node))
        self.most = max(self.most, len(self._running))

    def finished(self, timeout: float) -> list[Result]:
        if not self._running:
            return []
        name, node = self._running.pop(0)
        outcome = self._outcome(name, node, sum(one == name for one, _ in self.began))
        if outcome == "interrupt":
            raise KeyboardInterrupt
        if outcome == "node gone":
            del self._nodes[node]
            outcome = "lost"
        error = None if outcome == "done" else "why"
        return [
            Result(
                name,
                node,
                outcome,
                "b",
                "e",
                1.0,
                error,
                None,
                None if outcome == "lost" else f"{name} on {node}",
            )
        ]

    def stop(self) -> None:
        self.stopped = True


def run(
    jobs: list[str], workers: Scripted, folder: Path, **more: object
) -> tuple[batch.Outcome, str]:
    out = io.StringIO()
    outcome = batch.run(
        [Job(name, "text") for name in jobs], folder, workers, out=out, patience_s=0.0, **more
    )  # type: ignore[arg-type]
    assert workers.stopped or not workers.began
    return outcome, out.getvalue()


def test_jobs_fill_every_slot_and_no_more(tmp_path: Path) -> None:
    workers = Scripted({"a": 1, "b": 2}, lambda *_: "done")
    outcome, said = run(list("123456"), workers, tmp_path)
    assert (outcome.done, outcome.ok, workers.most) == (list("123456"), True, 3)
    assert said.splitlines()[0] == "6 to run on a (1 at a time), b (2 at a time)"
    assert "[6/6]" in said.splitlines()[-1]


def test_what_a_lost_node_had_is_run_on_another(tmp_path: Path) -> None:
    workers = Scripted({"a": 1, "b": 1}, lambda _, node, __: "node gone" if node == "a" else "done")
    outcome, said = run(["1", "2"], workers, tmp_path)
    assert outcome.ok
    assert attempts(items(tmp_path)["1"]) == [("a", "lost"), ("b", "done")]
    assert "1: lost on a (why); again elsewhere" in said


def test_a_failure_is_tried_on_another_node_once_and_named(tmp_path: Path) -> None:
    workers = Scripted({"a": 1, "b": 1}, lambda name, *_: "failed" if name == "bad" else "done")
    outcome, _ = run(["bad", "1", "2"], workers, tmp_path)
    assert (outcome.done, outcome.failed) == (["1", "2"], {"bad": "why"})
    assert [outcome for _, outcome in attempts(items(tmp_path)["bad"])] == ["failed", "failed"]
    assert len({node for node, _ in attempts(items(tmp_path)["bad"])}) == 2
    assert (tmp_path / "executed" / "bad.ipynb").is_file()  # what was reached is evidence too


def test_on_one_machine_a_failure_is_not_repeated_but_a_lost_process_is(tmp_path: Path) -> None:
    workers = Scripted(
        {"a": 2},
        lambda name, _, number: "failed" if name == "bad" else "lost" if number == 1 else "done",
    )
    outcome, _ = run(["bad", "unlucky"], workers, tmp_path)
    assert list(outcome.failed) == ["bad"]
    assert [name for name, _ in workers.began].count("bad") == 1
    assert [outcome for _, outcome in attempts(items(tmp_path)["unlucky"])] == ["lost", "done"]


def test_attempts_have_an_end(tmp_path: Path) -> None:
    workers = Scripted({"a": 1}, lambda *_: "lost")
    outcome, _ = run(["1"], workers, tmp_path, attempts=2)
    assert (outcome.failed, len(workers.began)) == ({"1": "why"}, 2)


def test_without_any_node_the_rest_is_left_for_the_next_call(tmp_path: Path) -> None:
    outcome, said = run(["1", "2"], Scripted({"a": 1}, lambda *_: "node gone"), tmp_path)
    assert outcome.failed == {"1": "why", "2": "not run: no node is left"}
    assert "2 notebooks have not run" in said
    outcome, _ = run(["1", "2"], Scripted({"b": 1}, lambda *_: "done"), tmp_path)
    assert outcome.ok
    assert attempts(items(tmp_path)["1"]) == [("a", "lost"), ("b", "done")]


def test_a_second_call_runs_only_what_is_missing_or_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(
        ["1", "2"],
        Scripted({"a": 1}, lambda name, *_: "done" if name == "1" else "failed"),
        tmp_path,
    )
    workers = Scripted({"a": 1}, lambda *_: "done")
    outcome, said = run(["1", "2", "3"], workers, tmp_path)
    assert [name for name, _ in workers.began] == ["2", "3"]
    assert (outcome.kept, outcome.done) == (1, ["1", "2", "3"])
    assert said.startswith("1 of 3 notebooks are already in ")
    (tmp_path / "executed" / "2.ipynb").unlink()
    workers = Scripted({"a": 1}, lambda *_: "done")
    run(["1", "2", "3"], workers, tmp_path)
    assert [name for name, _ in workers.began] == ["2"]
    # Another library: nothing of what is there counts.
    monkeypatch.setattr(batch, "library_id", lambda: "another")
    workers = Scripted({"a": 1}, lambda *_: "done")
    run(["1"], workers, tmp_path)
    assert [name for name, _ in workers.began] == ["1"]
    # A job that this call did not name keeps its place.
    assert set(items(tmp_path)) == {"1", "2", "3"}


def test_ctrl_c_stops_the_workers_and_keeps_what_was_there(tmp_path: Path) -> None:
    workers = Scripted({"a": 1}, lambda name, *_: "interrupt" if name == "2" else "done")
    with pytest.raises(KeyboardInterrupt):
        run(["1", "2", "3"], workers, tmp_path)
    assert workers.stopped
    assert {name: item["outcome"] for name, item in items(tmp_path).items()} == {
        "1": "done",
        "2": "missing",
        "3": "missing",
    }


def test_two_batches_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        batch.Folder(tmp_path, "x").locked(),
        pytest.raises(SparkbookError, match="another batch writes to"),
    ):
        run(["1"], Scripted({"a": 1}, lambda *_: "done"), tmp_path)


@pytest.mark.parametrize(
    "text", ["[]", '{"notebooks": 5}', '{"notebooks": {"a": 5}}', "[" * 100_000]
)
def test_a_manifest_that_is_none_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SparkbookError, match=r"manifest\.json can't be read"):
        run(["1"], Scripted({"a": 1}, lambda *_: "done"), tmp_path)
    assert (tmp_path / "manifest.json").read_text() == text


# ---- real processes


def command(
    *words: object, cwd: Path, before: tuple[str, ...] = (), **env: str
) -> subprocess.Popen[str]:
    """The command as a user runs it; `before` may put it into a network namespace."""
    environment = {**os.environ, "PYTHONPATH": str(LIB), **env}
    return subprocess.Popen(
        [*before, *SPARKBOOK, "book", *map(str, words)],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(true: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def output(path: Path) -> str:
    return "".join(
        out.text
        for cell in nbformat.read(path, 4).cells
        if cell.cell_type == "code"
        for out in cell.outputs
    )


@pytest.mark.kernel
def test_a_pool_of_processes_a_lost_one_and_a_failing_one(notebook: Path, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(
        f"notebook: {notebook}\nparameters:\n  n: 7\n  fail: [false, true]\n  die:"
        f" [{tmp_path / 'died'}]\n"
    )
    driver = command(
        "--matrix", file, "--to", "out", "--jobs", 2, "--json", cwd=tmp_path, HF_TOKEN="hf_abcdefgh"
    )
    answer, said = driver.communicate(timeout=600)
    assert driver.returncode == 1, said
    told = json.loads(answer)
    good, bad = told["done"] + list(told["failed"])
    assert told["failed"][bad] == "cell 6 (assert not fail, 'as asked'): AssertionError: as asked"
    found = items(tmp_path / "out")
    # Whichever came first was killed once, and has been run again.
    assert sorted(len(found[name]["attempts"]) for name in (good, bad)) == [1, 2]
    assert "ended with signal SIGKILL" in said
    assert output(tmp_path / "out" / found[good]["executed"]) == "49\n"
    assert (found[bad]["outcome"], found[bad]["cell"], found[bad]["parameters"]["fail"]) == (
        "failed",
        6,
        True,
    )
    assert all(found[good][key] for key in ("node", "begin", "end", "seconds", "library"))
    assert "hf_abcdefgh" not in "".join(
        path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )


@pytest.mark.kernel
def test_a_killed_driver_leaves_no_process_and_loses_nothing(
    notebook: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    file = tmp_path / "matrix.yaml"
    file.write_text(f"notebook: {notebook}\nparameters:\n  gate: ['', {gate}]\n")
    words = ("--matrix", file, "--to", "out", "--jobs", 2)
    driver = command(*words, cwd=tmp_path)
    wait_for(
        lambda: (
            (tmp_path / "gate.1").exists()
            and sorted(i["outcome"] for i in items(tmp_path / "out").values())
            == ["done", "missing"]
        )
    )
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.communicate()
    assert len(below) >= 2  # the notebook's process and its kernel
    wait_for(
        lambda: (
            not any(
                process.is_running() and process.status() != psutil.STATUS_ZOMBIE
                for process in below
            )
        ),
        30,
    )
    gate.touch()
    driver = command(*words, cwd=tmp_path)
    _, said = driver.communicate(timeout=600)
    assert driver.returncode == 0, said
    assert "1 of 2 notebooks are already in out" in said
    # And Ctrl-C: the same, with an exit code and a word.
    gate.unlink()
    (tmp_path / "gate.1").unlink()
    driver = command(*words[:3], "other", cwd=tmp_path)
    wait_for((tmp_path / "gate.1").exists)
    below = psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=600)
    assert (driver.returncode, "Interrupted: nothing is left running" in said) == (130, True)
    assert not any(process.is_running() for process in below)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999", "127.0.0.1:x"])
def test_a_cluster_that_is_not_there_is_said_at_once(
    notebook: Path, tmp_path: Path, address: str
) -> None:
    from sparkbook.runner.batch_workers import made

    with pytest.raises(SparkbookError, match=f"no Ray cluster answers at {address}"):
        made(1, address, print)


# ---- a real Ray cluster


class Cluster:
    """Two nodes on two network namespaces of this machine that a pair of virtual interfaces joins;
    each runs one notebook at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.mark, self.folder = f"sb{os.getpid() % 100000}", folder
        self.names = [f"{self.mark}-{number}" for number in (1, 2)]
        self.address = "10.77.9.1:6379"

    def start(self) -> None:
        one, two = self.names
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "link",
            "add",
            "spark",
            "netns",
            one,
            "type",
            "veth",
            "peer",
            "name",
            "spark",
            "netns",
            two,
        )
        for number, name in enumerate(self.names, 1):
            _ip("-n", name, "addr", "add", f"10.77.9.{number}/24", "dev", "spark")
            _ip("-n", name, "link", "set", "spark", "up")
        self.ray(
            one,
            "--head",
            "--port=6379",
            "--node-ip-address=10.77.9.1",
            "--include-dashboard=false",
            f"--temp-dir={self.folder}",
        )
        self.ray(two, f"--address={self.address}", "--node-ip-address=10.77.9.2")

    def ray(self, name: str, *words: str) -> None:
        command = [
            "ip",
            "netns",
            "exec",
            name,
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            *words,
        ]
        command += [
            "--num-cpus=2",
            "--object-store-memory=100000000",
            '--resources={"spark": 1}',
            "--disable-usage-stats",
        ]
        env = {**os.environ, "PYTHONPATH": str(LIB), "RAY_NUM_REDIS_GET_RETRIES": "300"}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def book(self, *words: object, cwd: Path, **env: str) -> subprocess.Popen[str]:
        return command(
            *words,
            "--ray",
            self.address,
            cwd=cwd,
            before=("ip", "netns", "exec", self.names[0]),
            **env,
        )

    def pids(self, name: str) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", name).split()]

    def power_off(self, name: str) -> None:
        """Everything in the namespace ends at once, as when a machine loses its power."""
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        for name in self.names:
            if Path("/run/netns", name).exists():
                while self.pids(name):
                    self.power_off(name)
                    time.sleep(0.1)
                _ip("netns", "del", name)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(
        prefix="sbray", ignore_cleanup_errors=True
    ) as folder:  # short: sockets lie in it
        made = Cluster(Path(folder))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.mark.kernel
@pytest.mark.cluster
def test_a_batch_on_two_nodes_of_which_one_dies_under_it(
    notebook: Path, tmp_path: Path, cluster: Cluster
) -> None:
    gate = tmp_path / "gate"
    file = tmp_path / "matrix.yaml"
    file.write_text(f"notebook: {notebook}\nparameters:\n  n: [1, 2, 3]\n  gate: [{gate}]\n")
    words = ("--matrix", file, "--to", tmp_path / "out")

    # A failing notebook is tried on both nodes, the other one is done; the driver is then killed
    # while two more wait.
    driver = cluster.book(notebook, "-p", "fail=true,false", "--to", tmp_path / "out", cwd=tmp_path)
    _, said = driver.communicate(timeout=600)
    assert driver.returncode == 1, said
    bad, good = (items(tmp_path / "out")[f"square--fail={value}"] for value in ("True", "False"))
    assert sorted(node.split("(")[1] for node, _ in attempts(bad)) == ["10.77.9.1)", "10.77.9.2)"]
    assert bad["error"] == "cell 6 (assert not fail, 'as asked'): AssertionError: as asked"
    assert (good["outcome"], output(tmp_path / "out" / good["executed"])) == ("done", "1\n")

    driver = cluster.book(*words, cwd=tmp_path)
    wait_for(lambda: sum((tmp_path / f"gate.{n}").exists() for n in (1, 2, 3)) == 2)
    driver.kill()
    driver.communicate()
    for path in tmp_path.glob("gate.*"):
        path.unlink()
    assert items(tmp_path / "out")["square--fail=False"]["outcome"] == "done"

    # The same again; a node loses its power with a notebook on it.
    driver = cluster.book(*words, cwd=tmp_path)
    wait_for(lambda: sum((tmp_path / f"gate.{n}").exists() for n in (1, 2, 3)) == 2)
    cluster.power_off(cluster.names[1])
    gate.touch()
    answer, said = driver.communicate(timeout=600)
    assert driver.returncode == 0, said
    found = {name: item for name, item in items(tmp_path / "out").items() if "gate" in name}
    assert len(found) == 3, answer
    assert [output(tmp_path / "out" / item["executed"]) for item in found.values()] == [
        "1\n",
        "4\n",
        "9\n",
    ]
    ends = [
        [(node.split("(")[1], outcome) for node, outcome in attempts(item)]
        for item in found.values()
    ]
    assert [("10.77.9.2)", "lost"), ("10.77.9.1)", "done")] in ends
    assert all(one[-1] == ("10.77.9.1)", "done") for one in ends)
    assert "lost on" in said
