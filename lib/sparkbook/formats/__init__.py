"""Every format that a start of vLLM is written down in: read into a recipe, and written from one,
with a report of what was lost.

    >>> from sparkbook import formats
    >>> read = formats.resolve(
    ...     "docker run --gpus all vllm/vllm-openai:v0.19.0 openai/gpt-oss-20b --max-model-len 8192"
    ... )
    >>> read.format, read.recipe.model.repo, read.recipe.serve.args
    ('docker', 'openai/gpt-oss-20b', {'max-model-len': 8192})
    >>> written = formats.write(read.recipe, "compose")
    >>> formats.read(written.text, "compose").launch == read.launch
    True

`resolve` is what every verb of the command asks that takes an INPUT: a recipe's id, a file in any
format, the text itself, or `-`. The format is detected from the text and never from a
file's name. Nothing is executed while reading, and nothing is fetched or included; a text is at
most 1 MB.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.formats.conversion import Conversion, Notes, Written, finding, report
from sparkbook.formats.rules import CONV
from sparkbook.formats.source import file_of, file_text, naming, standard_input, text_of
from sparkbook.launch.reader import read_script, starts_container
from sparkbook.util.documents import check_text, parse_all

if TYPE_CHECKING:
    from sparkbook.recipes.launch import Launch
    from sparkbook.recipes.schema import Recipe

Reader = Callable[[str, Notes], "tuple[Launch, dict[str, Any]]"]
"""Reads a text into a launch and the fields of a recipe that the text states."""


@dataclass(frozen=True)
class Format:
    """One way to write a start down.

    Attributes:
        name: what `--as` and `--to` call it.
        title: what it is, for people.
        language: of a fenced block that shows it.
        detect: whether a text is of this format, given the text and the YAML document that it is: a
            list of several, None where it is none.
        reader: reads it.
        writer: writes a recipe; a `SparkbookError` where the format can't say what the recipe asks
            for.
    """

    name: str
    title: str
    language: str
    detect: Callable[[str, Any], bool]
    reader: Reader | None
    writer: Callable[[Recipe], str]

    def read(self, text: str) -> Conversion:
        """Return the recipe that a text of this format describes, with the loss report.

        Raises:
            SparkbookError: the text isn't of this format, or makes no recipe.
        """
        check_text(text)
        try:
            if self.reader is None:
                return _of("own", "read")(text)
            notes = Notes()
            launch, facts = self.reader(text, notes)
            return _of("from_launch", "build")((self.name, self.title), text, launch, notes, facts)
        except SparkbookError as error:
            raise _short(error) from None

    def write(self, recipe: Recipe | Launch) -> str:
        """Return a recipe, or for the formats of a bare launch a launch, in this format.

        Raises:
            SparkbookError: the format has no place for something in the recipe.
        """
        return self.writer(recipe)  # type: ignore[arg-type]


def _short(error: SparkbookError) -> SparkbookError:
    """Return an error whose message shows no more than a screen of what was read."""
    text = str(error)
    return error if len(text) <= 1000 else SparkbookError(f"{text[:700]} … {text[-200:]}")


def _of(module: str, function: str) -> Callable[..., Any]:
    """Return a function of one of this package's modules, which is imported when it is first
    called: a command that reads one line needs one.
    """

    def call(*args: Any) -> Any:
        return getattr(importlib.import_module(f"sparkbook.formats.{module}"), function)(*args)

    return call


def _line(
    name: str,
    module: str,
    title: str,
    language: str,
    detect: Callable[[str, Any], bool],
    keeps: bool = True,
) -> Format:
    """Return a format that holds a launch and nothing else."""

    def writer(recipe: Recipe | Launch) -> str:
        launch = getattr(recipe, "launch", recipe)
        foreign = dict(getattr(recipe, "foreign", {}).get(name) or {})
        return _of(module, "write")(launch, foreign) if keeps else _of(module, "write")(launch)

    return Format(
        name,
        title,
        language,
        detect,
        lambda text, notes: (_of(module, "read")(text, notes), {}),
        writer,
    )


def _document(
    name: str, module: str, title: str, suffix: str = "", language: str = "yaml"
) -> Format:
    """Return a format that holds facts as well."""
    return Format(
        name,
        title,
        language,
        _of(module, f"detect{suffix}"),
        _of(module, f"read{suffix}"),
        _of(module, f"write{suffix}"),
    )


_SERVES = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.(openai\.api_server|cli\.main)\b")


def _starts_container(text: str) -> bool:
    """Tell whether the launch line of a text is one of a container: a script may look at the driver
    in a container first, and then serve without one.
    """
    if not starts_container(text) or not _SERVES.search(text):
        return starts_container(text)
    try:
        return read_script(text).image is not None
    except SparkbookError:
        return True


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        _line(
            "docker",
            "docker_run",
            "docker run line",
            "bash",
            lambda text, document: not isinstance(document, dict) and _starts_container(text),
        ),
        _line(
            "compose",
            "compose",
            "compose file",
            "yaml",
            lambda text, document: isinstance(document, dict) and "services" in document,
        ),
        _line(
            "shell",
            "shell",
            "vllm serve line, without a container",
            "bash",
            lambda text, document: (
                not isinstance(document, dict) and _SERVES.search(text) is not None
            ),
            keeps=False,
        ),
        Format(
            "recipe",
            "recipe of this playbook",
            "yaml",
            lambda text, document: (
                isinstance(document, dict)
                and ("extends" in document or {"family", "sources"} <= set(document))
            ),
            None,
            _of("own", "write"),
        ),
        _document("eugr", "eugr", "eugr recipe, version 1"),
        _document("sparkrun", "sparkrun", "sparkrun recipe, version 2"),
        _document("spark-pulse", "spark_pulse", "spark-pulse recipe, version 2"),
        _document("nvidia", "nvidia", "NVIDIA local AI recipe"),
        _document("vllm-recipes", "vllm_recipes", "vLLM recipe, YAML of a model"),
        _document(
            "vllm-recipes-json",
            "vllm_recipes",
            "vLLM recipe, JSON for one hardware",
            "_json",
            "json",
        ),
        _document("kubernetes", "kubernetes", "Kubernetes Deployment"),
    )
}
"""Every format by its name."""


_RECIPE_KEY = re.compile(r"^(recipe_version|schema_version|services|apiVersion):", re.MULTILINE)
"""A key that only a document has, whatever its strings look like."""


def detect(text: str) -> str:
    """Return the name of a text's format, detected from its content.

    Raises:
        SparkbookError: it is of no known format, or out of bounds.
    """
    check_text(text)
    document, problem = None, None
    try:
        documents = parse_all(text)
        document = documents[0] if len(documents) == 1 else documents
    except SparkbookError as error:
        problem = error
    if problem is not None and _RECIPE_KEY.search(text):
        raise problem
    for format_ in FORMATS.values():
        if format_.detect(text, document):
            return format_.name
    if isinstance(document, dict) and "profiles" in document and "schema_version" in document:
        raise SparkbookError(
            "this is a performance.yaml, which holds measurements: give the recipe.yaml next to it"
        )
    if problem is not None and re.search(r"^\s*[\w-]+:(\s|$)|^\s*[{\[]", text, re.MULTILINE):
        raise problem
    keys = (
        f" (its keys are {', '.join(map(str, list(document)[:6]))})"
        if isinstance(document, dict) and document
        else ""
    )
    if variables := _only_variables(text):
        raise SparkbookError(
            f"this text only sets variables ({variables}), as the .env file next to a compose file"
            " does: give the compose file or the script that starts the server"
        )
    raise SparkbookError(
        f"there is no launch line in this text{keys}: expected docker run …, vllm serve …, or one"
        f" of the formats {', '.join(FORMATS)}"
    )


_COMMAND = re.compile(
    r"""^\s*(?:export\s+)?\w+=(?:"[^"]*"|'[^']*'|[^\s"'-]\S*)[ \t]+[\w./$;&|]""", re.MULTILINE
)
"""A line that sets a variable and runs something: `NAME=1 PROGRAM`, `NAME=1 && PROGRAM`."""


def _only_variables(text: str) -> str:
    """Return the first names that an environment file sets; empty for any other text. What is not
    spelled like such a name may be a secret.
    """
    try:
        values = _of("compose", "read_env")(text)
    except SparkbookError:
        return ""
    names = [name for name in values if re.fullmatch(r"[A-Z][A-Z\d_]{,63}", name, re.ASCII)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "" if _COMMAND.search(text) else ", ".join(names[:3]) + more


def read(text: str, format: str | None = None, env: Mapping[str, str] | None = None) -> Conversion:
    """Return the recipe that a text describes.

    Args:
        text: the text.
        format: the name of its format; left out, it is detected.
        env: for a compose file, the variables of its `.env` file (`compose.read_env`).

    Raises:
        SparkbookError: it is of no known format, can't be read, or makes no recipe.
    """
    name = format or detect(text)
    if name not in FORMATS:
        raise SparkbookError(f"unknown format '{name}'; the formats are {', '.join(FORMATS)}")
    if name == "compose" and env:
        notes = Notes()
        launch = _of("compose", "read")(text, notes, env)
        return _of("from_launch", "build")((name, FORMATS[name].title), text, launch, notes)
    return FORMATS[name].read(text)


def resolve(source: str, env: Mapping[str, str] | None = None) -> Conversion:
    """Return the recipe that a user names: a recipe's id, a file of any format, a text, or `-` for
    standard input.

    A recipe of the catalogue has an empty report. An own recipe file may extend its neighbors;
    nothing else is read from the disk.

    Raises:
        SparkbookError: there is no such recipe, or what was given can't be read. The message says
            what to do.
    """
    name, text = text_of(source)
    if name is None:
        assert text is not None
        with naming(source):
            return read(text, env=env)
    from sparkbook import recipes

    return Conversion(
        "recipe", recipes.load(Path(name) if text is not None else name), Findings(), text or ""
    )


def write(recipe: Recipe, to: str) -> Written:
    """Return a recipe in another format, with a report of what the written form does not give back.

    Raises:
        SparkbookError: there is no such format, or it can't say what the recipe asks for.
    """
    if to not in FORMATS:
        raise SparkbookError(f"unknown format '{to}'; the formats are {', '.join(FORMATS)}")
    text = FORMATS[to].write(recipe)
    written = report(to, FORMATS[to].title, text, recipe, FORMATS[to].read(text))
    if to not in ("docker", "compose", "shell", "recipe") and (at := _home_inside(recipe.launch)):
        entry = finding(
            "CONV102",
            f"{at} begins with your home folder, which is a different folder in the container.",
            fix="Write the whole path.",
        )
        return replace(written, findings=Findings([entry, *written.findings]))
    return written


def _home_inside(launch: Launch) -> str | None:
    """Return a place of the launch that names the caller's home folder to a program in the
    container.
    """
    places = {
        "serve.model": launch.serve.model,
        **{f"serve.args.{name}": value for name, value in launch.serve.args.items()},
        **{f"env.{name}": value for name, value in launch.env.items()},
    }
    return next(
        (
            place
            for place, value in places.items()
            if isinstance(value, str) and (value == "~" or value.startswith("~/"))
        ),
        None,
    )


__all__ = [
    "CONV",
    "FORMATS",
    "Conversion",
    "Format",
    "Notes",
    "Written",
    "detect",
    "file_of",
    "file_text",
    "read",
    "resolve",
    "standard_input",
    "text_of",
    "write",
]
