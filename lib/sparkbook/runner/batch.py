"""`sparkbook book`: many notebooks, on this machine's cores or on the Sparks of a Ray cluster.

A batch is a list of `Job`s: the chapters and the recipes' pages, or one notebook with every
combination of some parameters. What travels to a node is the notebook's text and its parameters;
the library has to be there already, the same one, which is checked. What comes back is kept at
once, each executed notebook and a line of `manifest.json`, so that a driver which is killed loses
nothing that it had collected, and a second call with the same folder runs only what is missing.

Where the jobs run is a `Workers`: `batch_workers.Local` starts a process a notebook,
`batch_workers.OnRay` a Ray task.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TextIO

from sparkbook.errors import SparkbookError
from sparkbook.runner import fingerprint, notebooks
from sparkbook.runner.pages import Target, pages
from sparkbook.runner.project import Project, here
from sparkbook.units import format_seconds
from sparkbook.util import documents, limits
from sparkbook.util.secret import is_secret

MANIFEST = "manifest.json"
ATTEMPTS = 3
"""How often a notebook is started at most, on all nodes together."""

_MOST_JOBS = 10_000
_PATIENCE_S = 60.0
"""How long a batch without any node waits for one to come back."""


@dataclass(frozen=True)
class Job:
    """One notebook to run.

    Attributes:
        name: unique in the batch; also the executed notebook's path below the folder.
        text: the notebook, as its file has it.
        values: parameters that differ from the defaults.
        plan: leave out the cells tagged `engine`.
    """

    name: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    plan: bool = False

    def made_from(self, library: str) -> str:
        """Hash of all that decides the result; `library` as `library_id` gives it."""
        return fingerprint.text(
            json.dumps([self.text, self.values, self.plan, library], sort_keys=True)
        )


@dataclass(frozen=True)
class Result:
    """How one attempt ended.

    Attributes:
        job: its name.
        node: where it ran.
        outcome: `done`; `failed`: a cell raised; `lost`: the node or its process went away.
        begin, end: UTC, ISO 8601, by the node's clock; None where the node did not live to say.
        seconds: between them.
        error: what went wrong in one line, with the failing cell's number and first line where a
            cell failed.
        cell: the failing code cell's number, from 1.
        text: the executed notebook, also of one that failed; None of one that was lost.
    """

    job: str
    node: str
    outcome: str
    begin: str | None = None
    end: str | None = None
    seconds: float | None = None
    error: str | None = None
    cell: int | None = None
    text: str | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """Return what the manifest keeps of it."""
        return {key: value for key, value in asdict(self).items() if key not in ("job", "text")}


class Workers(Protocol):
    """Where jobs run. A node is known by a name that people recognize."""

    def nodes(self) -> dict[str, int]:
        """Return the nodes to use now, with the number of notebooks that each runs at a time."""

    def start(self, job: Job, node: str) -> None:
        """Begin a job on a node. `finished` returns its end, good or bad."""

    def finished(self, timeout: float) -> list[Result]:
        """Wait up to `timeout` seconds, and return what has ended since the last call."""

    def stop(self) -> None:
        """End whatever runs, kernels and engines included."""


# ---- what there is to run


def chapters(project: Project, target: Target = "auto") -> list[Job]:
    """Return the whole book: every chapter, and a page for each recipe.

    Raises:
        SparkbookError: the book is not in order.
    """
    return [
        Job(page.name, page.source.read_text("utf-8"), page.values, target == "plan")
        for page in pages(project, target)
    ]


def jobs(
    names: Sequence[str],
    values: Mapping[str, Sequence[Any]],
    *,
    matrix_file: str | None = None,
    target: Target = "auto",
    project: Callable[[], Project] = here,
) -> list[Job]:
    """Return what a user names: chapters or files, with every combination of the values; nothing
    named: the whole book.

    Args:
        names: notebooks, by a chapter's name or as files.
        values: parameters and their values.
        matrix_file: a file that names notebook and parameters; `values` add to it and take
            precedence.
        target: `plan` starts no engine.
        project: the checkout, asked for only where a chapter is named.

    Raises:
        SparkbookError: something named is not there, or is not accepted.
    """
    if matrix_file:
        name, listed = read_matrix(Path(matrix_file))
        names, values = [*names, name], {**listed, **values}
    if not names:
        if values:
            raise SparkbookError(
                "parameters belong to a notebook: name one, such as 'model -p"
                " recipe_id=gpt-oss-20b,gpt-oss-120b'"
            )
        return chapters(project(), target)
    found = [
        Path(name) if name.endswith(".ipynb") else project().root / "notebooks" / f"{name}.ipynb"
        for name in names
    ]
    return [job for notebook in found for job in matrix(notebook, values, plan=target == "plan")]


def matrix(notebook: Path, values: Mapping[str, Sequence[Any]], *, plan: bool = False) -> list[Job]:
    """Return one notebook with every combination of the parameters' values, in the order given.

    Raises:
        SparkbookError: a parameter that the notebook does not have, one without a value, or one
            that would carry a secret; too many combinations.
    """
    if not notebook.is_file():
        raise SparkbookError(
            f"there is no notebook {notebook}: name a chapter such as 06_launch, or a file"
        )
    notebooks.require_known(notebook, dict(values))
    known = notebooks.parameters(notebook)
    for name, several in values.items():
        if not several:
            raise SparkbookError(f"parameter {name} has no value: leave it out, or give one")
    if math.prod(map(len, values.values())) > _MOST_JOBS:
        raise SparkbookError(f"the matrix has more than {_MOST_JOBS:,} combinations")
    axes = [
        [(name, _typed(known[name], value)) for value in several]
        for name, several in values.items()
    ]
    text = notebook.read_text("utf-8")
    if plan and "target" in known and "target" not in values:
        axes.append([("target", "plan")])
    jobs = [
        Job(_name(notebook.stem, dict(chosen)), text, dict(chosen), plan)
        for chosen in itertools.product(*axes)
    ]
    _refuse_secrets(jobs)
    return list({job.name: job for job in jobs}.values())


def read_matrix(file: Path) -> tuple[str, dict[str, list[Any]]]:
    """Return a matrix file: `notebook: NAME` and `parameters: {name: [values]}`.

    Raises:
        SparkbookError: it can't be read or is not of this form.
    """
    with limits.naming(file):
        found = documents.parse(limits.read_text(file, "the matrix"))
    parameters = found.get("parameters") if isinstance(found, dict) else None
    if (
        not isinstance(parameters, dict)
        or not isinstance(found.get("notebook"), str)
        or set(found) != {"notebook", "parameters"}
    ):
        raise SparkbookError(
            f"{file}: a matrix has 'notebook: NAME', 'parameters:' with a list of values for each"
            " name, and nothing else"
        )
    return found["notebook"], {
        str(name): value if isinstance(value, list) else [value]
        for name, value in parameters.items()
    }


def assignments(words: Sequence[str]) -> dict[str, list[Any]]:
    """`-p name=v1,v2` as names and texts; the notebook's parameter says later what type they are.

    Raises:
        SparkbookError: a word without `=`, or a name given twice.
    """
    found: dict[str, list[Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise SparkbookError(
                f"'{name}' is not of the form name=v1,v2"
            )  # not the whole word: it may hold a secret
        if name in found:
            raise SparkbookError(f"parameter {name} is given twice: write {name}=v1,v2")
        found[name] = [_Text(part) for part in text.split(",")]
    return found


class _Text(str):
    """A value as it was typed, still to be read by the parameter's type."""


def _typed(parameter: notebooks.Parameter, value: Any) -> Any:
    """Return the value as the notebook's parameter wants it: text where that is `str`, else what
    YAML makes of it.
    """
    if isinstance(value, _Text) and parameter.type.split("|")[0].strip() != "str":
        try:
            value = documents.parse(str(value))
        except SparkbookError:
            raise SparkbookError(
                f"parameter {parameter.name}: its value is not of the type {parameter.type}"
            ) from None
    value = str(value) if isinstance(value, _Text) else value
    types: dict[str, tuple[type, ...]] = {
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "str": (str,),
    }
    accepted = types.get(parameter.type)
    if accepted and (
        not isinstance(value, accepted) or (isinstance(value, bool) and parameter.type != "bool")
    ):
        raise SparkbookError(
            f"parameter {parameter.name} is {parameter.type}, and one of the values is"
            f" {type(value).__name__}"
        )
    return value


def _name(stem: str, values: dict[str, Any]) -> str:
    """Return a name that a person and a file system can read; a hash joins it where signs had to go
    or it is long.
    """
    words = [f"{name}={value}" for name, value in values.items() if name != "target"]
    plain = "--".join([stem, *words])
    safe = re.sub(r"[^\w.=+-]+", "-", plain, flags=re.ASCII)[:120]
    return safe if safe == plain else f"{safe}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def _refuse_secrets(jobs: Sequence[Job]) -> None:
    """Refuse a secret as a parameter: parameters are shown in the executed notebook and in the
    manifest. The value is never printed.

    Raises:
        SparkbookError: naming the parameter.
    """
    hidden = secret_values()
    for job in jobs:
        for name, value in job.values.items():
            if is_secret(name) or any(secret in str(value) for secret in hidden):
                raise SparkbookError(
                    f"parameter {name} looks like a secret, and parameters are stored in plain"
                    " text: set it in the environment of the nodes instead (HF_TOKEN, VLLM_API_KEY)"
                )


def secret_values() -> list[str]:
    """Return the secrets of this process's environment that are long enough to be searched for."""
    return [value for name, value in os.environ.items() if is_secret(name) and len(value) >= 8]


def library_id() -> str:
    """Return the library as it is here: its version and a hash of its files, catalogue included."""
    return f"{version('sparkbook')}+{fingerprint.tree(Path(__file__).resolve().parents[1])[:12]}"


# ---- running it


@dataclass
class Outcome:
    """What a batch did.

    Attributes:
        done: names of the jobs whose executed notebook is in the folder, earlier ones included.
        kept: how many of them were there already.
        failed: job → why; the ones that failed and the ones that were lost on every attempt.
        folder: where everything is.
    """

    folder: Path
    done: list[str] = field(default_factory=list)
    kept: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every job is done."""
        return not self.failed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        return {
            "done": self.done,
            "kept": self.kept,
            "failed": self.failed,
            "manifest": str(self.folder / MANIFEST),
        }


class Folder:
    """The folder that a batch collects into: `manifest.json` and the executed notebooks.

    A file appears under its name only when it is complete, and the notebook before the manifest's
    line about it.
    """

    def __init__(self, path: Path, library: str) -> None:
        """Raises `SparkbookError` where the manifest that is there can't be read."""
        self.path, self.library = path, library
        self.items: dict[str, dict[str, Any]] = {}
        try:
            items = json.loads((path / MANIFEST).read_text("utf-8"))["notebooks"]
            if not isinstance(items, dict) or not all(
                isinstance(item, dict) for item in items.values()
            ):
                raise ValueError("'notebooks' has to map names to mappings")
            self.items = items
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SparkbookError(
                f"{path / MANIFEST} can't be read ({error}): name another folder, or delete"
                " this one"
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second batch out of the folder; the lock goes with the process, however it ends.

        Raises:
            SparkbookError: one is at work, or the folder can't be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / ".lock").open("a")
        except OSError as error:
            raise SparkbookError(f"{error.filename}: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SparkbookError(
                    f"another batch writes to {self.path}: wait for it, or name another folder with"
                    " --to"
                ) from None
            yield

    def has(self, job: Job) -> bool:
        """Return whether the job is done, from the same notebook, parameters and library."""
        item = self.items.get(job.name, {})
        made = item.get("made_from") == job.made_from(self.library)
        return made and item.get("outcome") == "done" and (self.path / item["executed"]).is_file()

    def begin(self, job: Job) -> None:
        """Note that a job starts; attempts of an earlier batch that did not end well are
        remembered.
        """
        before = self.items.get(job.name, {})
        same = before.get("made_from") == job.made_from(self.library)
        self.items[job.name] = {
            "parameters": job.values,
            "plan": job.plan,
            "made_from": job.made_from(self.library),
            "library": self.library,
            "outcome": "missing",
            "node": None,
            "begin": None,
            "end": None,
            "seconds": None,
            "error": None,
            "cell": None,
            "executed": None,
            "attempts": before.get("attempts", []) if same else [],
        }

    def keep(self, result: Result) -> None:
        """Write an attempt down, and its executed notebook."""
        item = self.items[result.job]
        if result.text is not None:
            place = Path("executed") / f"{result.job}.ipynb"
            (self.path / place).parent.mkdir(parents=True, exist_ok=True)
            _write(self.path / place, result.text)
            item["executed"] = place.as_posix()
        item.update(result.record())
        item["attempts"].append(result.record())
        self.write()

    def write(self) -> None:
        """Write the manifest."""
        content = {"sparkbook": self.library, "notebooks": self.items}
        _write(self.path / MANIFEST, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


def run(
    jobs: Sequence[Job],
    folder: Path,
    workers: Workers | Callable[[], Workers],
    *,
    attempts: int = ATTEMPTS,
    out: TextIO | None = None,
    patience_s: float = _PATIENCE_S,
) -> Outcome:
    """Run what is missing, and collect it.

    A notebook whose node or process went away is started again, on a node that has not had it where
    there is one. A notebook that failed in a
    cell is started again only on another node: on the same one it would fail again.

    Args:
        jobs: what to run; names are unique.
        folder: where executed notebooks and the manifest go.
        workers: where they run; a function that makes it is called only when something is to be
            run.
        attempts: how often a notebook is started at most.
        out: where progress goes (standard error, so that `--json` stays clean).
        patience_s: how long to wait, in seconds, for a node where there is none.

    Raises:
        SparkbookError: the folder is in use or can't be written, or no node may be used.
        KeyboardInterrupt: after everything was stopped and the manifest written.
    """
    library = library_id()
    kept = Folder(folder, library)
    with kept.locked():
        _refuse_secrets(jobs)
        waiting = [job for job in jobs if not kept.has(job)]
        for job in waiting:
            kept.begin(job)
        kept.write()
        outcome, out = Outcome(folder, kept=len(jobs) - len(waiting)), out or sys.stderr
        if outcome.kept:
            print(
                f"{outcome.kept} of {len(jobs)} notebooks are already in {folder}",
                file=out,
                flush=True,
            )
        if waiting:
            at = workers() if callable(workers) else workers
            try:
                _Schedule(waiting, kept, at, attempts, out, outcome.kept, patience_s).run()
            finally:
                at.stop()
        for job in jobs:
            item = kept.items[job.name]
            if item["outcome"] == "done":
                outcome.done.append(job.name)
            else:
                outcome.failed[job.name] = item["error"] or "not run: no node is left"
        return outcome


class _Schedule:
    """Which job goes to which node, and what becomes of one that did not end well."""

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Folder,
        workers: Workers,
        attempts: int,
        out: TextIO,
        kept: int,
        patience_s: float,
    ) -> None:
        self._waiting, self._folder, self._workers, self._attempts, self._out = (
            list(jobs),
            folder,
            workers,
            attempts,
            out,
        )
        self._patience_s = patience_s
        self._running: dict[str, tuple[Job, str]] = {}
        self._had: dict[str, list[str]] = {job.name: [] for job in jobs}
        self._total, self._ended = len(jobs) + kept, kept

    def run(self) -> None:
        """Run until nothing waits and nothing runs, or no node is left."""
        nodes = self._workers.nodes()
        where = ", ".join(f"{node} ({slots} at a time)" for node, slots in nodes.items())
        self._say(f"{len(self._waiting)} to run on {where or 'no node'}")
        alone_since: float | None = None
        while self._waiting or self._running:
            nodes = self._workers.nodes()
            alone_since = None if nodes or self._running else alone_since or time.monotonic()
            if alone_since is not None and time.monotonic() - alone_since > self._patience_s:
                self._say(
                    f"no node has come back in {self._patience_s:.0f} s: {len(self._waiting)}"
                    " notebooks have not run; the same line runs them"
                )
                return
            self._assign(nodes)
            for result in self._workers.finished(timeout=0.5):
                self._took(result, nodes)

    def _assign(self, nodes: dict[str, int]) -> None:
        load = {node: sum(at == node for _, at in self._running.values()) for node in nodes}
        for job in list(self._waiting):
            free = [node for node in nodes if load[node] < nodes[node]]
            if not free:
                return
            had = self._had[job.name]
            fresh = [node for node in nodes if node not in had]
            # One that went wrong waits for a node that has not had it, as long as there is one.
            choice = [node for node in free if node not in had] if fresh else free
            if choice:
                node = min(choice, key=lambda name: load[name])
                self._waiting.remove(job)
                had.append(node)
                self._running[job.name] = (job, node)
                load[node] += 1
                self._workers.start(job, node)

    def _took(self, result: Result, nodes: dict[str, int]) -> None:
        job, node = self._running.pop(result.job)
        self._folder.keep(result)
        had = self._had[job.name]
        elsewhere = any(name not in had for name in nodes)
        again = len(had) < self._attempts and (
            result.outcome == "lost" or (result.outcome == "failed" and elsewhere)
        )
        if again:
            self._say(
                f"{job.name}: {result.outcome} on {node} ({result.error});"
                f" again{' elsewhere' if elsewhere else ''}"
            )
            self._waiting.append(job)
            return
        self._ended += 1
        took = (
            f"{format_seconds(result.seconds)} on {node}"
            if result.seconds is not None
            else f"on {node}"
        )
        end = (
            took
            if result.outcome == "done"
            else f"{result.outcome.upper()} after {took}: {result.error}"
        )
        self._say(f"[{self._ended:>{len(str(self._total))}}/{self._total}] {job.name} … {end}")

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)
