"""Reads what is to be judged into one value, a `Line`: more forgiving than `sparkbook.formats`,
because a linter has to look at mistakes.

A reader of launches refuses what a launch cannot keep (an option given twice, a secret,
`--privileged`); here it is kept and judged. The words are taken apart by the same lexer. Nothing is
executed or expanded; what a shell would fill in stays marked as not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.formats import documents
from sparkbook.formats.lexer import Token, lex, passed_on, show
from sparkbook.formats.words import serve_groups
from sparkbook.recipes.launch import Launch, entrypoint_of
from sparkbook.releases import images
from sparkbook.util.shell_text import HOME

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

_SHELLS = {"bash", "sh"}
_SWITCHES = {
    "detach",
    "rm",
    "interactive",
    "tty",
    "privileged",
    "init",
    "read-only",
    "publish-all",
    "oom-kill-disable",
    "sig-proxy",
    "no-healthcheck",
    "quiet",
}
_SHORT = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "u": "user",
    "d": "detach",
    "i": "interactive",
    "t": "tty",
    "P": "publish-all",
    "w": "workdir",
    "m": "memory",
    "h": "hostname",
    "l": "label",
    "c": "cpu-shares",
    "q": "quiet",
}
_SAME = {"net": "network"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_API_SERVER = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")


@dataclass(frozen=True)
class Word:
    """A word and where it stands in the text; `start` is -1 where it stands in none that can be
    changed.
    """

    text: str
    start: int = -1
    end: int = -1

    @property
    def known(self) -> bool:
        """Whether the text is what the program will see, and not something a shell fills in."""
        return "\0" not in self.text.replace(HOME, "")

    @property
    def shown(self) -> str:
        """The word as it stood."""
        return show(self.text)


@dataclass
class Line:
    """One start of a server, as it was written.

    Attributes:
        image: image reference; None for a process without a container.
        docker: docker's options in order, long names: (option, value, word); the value of a switch
            is empty.
        env: variables: value, or None where the caller's own is passed on.
        entry: entry point set on the line.
        runs: what the image runs by itself: `command`, `vllm-serve`, `wrapper`.
        serve: the words after `vllm serve`; None where a script of the image takes none.
        doubled: the words `vllm serve` given to an image that adds them by itself.
        nothing_serves: the first word that an image without an entry point of its own is told to
            run, where it starts no server.
        before: shell commands that run first.
        recipe: the recipe, where the input is one.
        text: what the words' positions refer to.
        others: further launch lines of the same text.
        told: what the reader of another format has to say.
    """

    image: str | None = None
    docker: list[tuple[str, str, Word]] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)
    env_words: dict[str, Word] = field(default_factory=dict)
    entry: str | None = None
    runs: str = "command"
    serve: list[Word] | None = None
    doubled: tuple[Word, Word] | None = None
    nothing_serves: str | None = None
    before: list[str] = field(default_factory=list)
    recipe: Recipe | None = None
    text: str = ""
    others: list[Line] = field(default_factory=list)
    told: list[Finding] = field(default_factory=list)

    @property
    def starts(self) -> bool:
        """Whether the line starts a server, as far as can be told: an image with a script of its
        own does.
        """
        return self.serve is not None or (self.runs == "wrapper" and self.entry is None)

    def option(self, name: str) -> str | None:
        """Value of docker's option, the last one given; an empty string for a switch; None where it
        is not given.
        """
        return next((value for option, value, _ in reversed(self.docker) if option == name), None)

    def values(self, name: str) -> list[str]:
        """Values of docker's option in order."""
        return [value for option, value, _ in self.docker if option == name]


def from_launch(launch: Launch, recipe: Recipe | None = None) -> Line:
    """A launch as a line, as if it had been written out."""
    container = launch.container
    pairs: list[tuple[str, str | None]] = [
        ("name", container.name),
        ("gpus", container.gpus),
        ("runtime", container.runtime),
        ("ipc", container.ipc),
        ("shm-size", container.shm_size),
        ("network", container.network),
        ("restart", container.restart),
        ("user", container.user),
        *(("publish", port) for port in container.ports),
        *(("volume", volume) for volume in container.volumes),
        *(("ulimit", f"{name}={limit}") for name, limit in container.ulimits.items()),
    ]
    line = Line(
        image=launch.image,
        env=dict(launch.env),
        entry=container.entrypoint,
        runs=launch.entrypoint,
        recipe=recipe,
    )
    line.docker = [(name, value, Word("")) for name, value in pairs if value is not None]
    line.before = list(launch.serve.before)
    if launch.serve.command is None and launch.entrypoint != "wrapper":
        line.serve = [
            Word(show(word.replace(HOME, "~")))
            for group in serve_groups(launch.serve)
            for word in group
        ]
        if (
            launch.image
            and launch.entrypoint == "command"
            and not container.entrypoint
            and entrypoint_of(launch.image) == "vllm-serve"
        ):
            line.doubled = (Word("vllm"), Word("serve"))
    return line


def read(text: str) -> Line:
    """The launch line in a text: `docker run`, a compose file, or `vllm serve`; of several, the
    first, the others beside it.

    Raises:
        SparkbookError: there is none in it, or a quote is not closed.
    """
    documents.check_text(text)
    if re.search(r"^services:", text, re.MULTILINE):
        return _compose(text)
    tokens = lex(text)
    found = [line for command in _commands(tokens) if (line := _command(command, text))]
    for token in tokens if not found else ():
        # A launcher that a script writes down in a here-document and runs from there.
        if token.body and (
            line := next(
                (line for command in _commands(lex(token.body)) if (line := _command(command, ""))),
                None,
            )
        ):
            found.append(line)
    if not found:
        raise SparkbookError(
            "there is no launch line in this text: expected docker run …, a compose file, or vllm"
            " serve …"
        )
    # A script often tries something else in the image first, such as nvidia-smi: what serves is
    # what is meant.
    serving = [line for line in found if line.starts] or found
    serving[0].others = serving[1:]
    return serving[0]


def _commands(tokens: list[Token]) -> Iterator[list[Word]]:
    current: list[Word] = []
    for token in tokens:
        if token.operator:
            if token.text in ("<", ">", ">>"):
                continue
            if current:
                yield current
            current = []
        else:
            current.append(Word(token.text, token.start, token.end))
    if current:
        yield current


def _command(words: list[Word], text: str) -> Line | None:
    """The line that one command of a script is; None where it starts no server."""
    line = Line(text=text)
    rest = list(words)
    while rest and (
        rest[0].text in ("sudo", "exec", "nohup", "time", "env") or _ASSIGNMENT.match(rest[0].text)
    ):
        word = rest.pop(0)
        if _ASSIGNMENT.match(word.text):
            _set_env(line, word.text, word)
    texts = [word.text for word in rest[:3]]
    for start in (["docker", "run"], ["docker", "container", "run"], ["podman", "run"]):
        if texts[: len(start)] == start:
            return _docker(line, rest[len(start) :])
    if _server(line, rest):
        return line
    texts = [word.text for word in rest]
    told = texts[:1] in (["echo"], ["printf"], ["grep"])
    at = next(
        (i for i in range(len(texts) - 1) if texts[i : i + 2] == ["vllm", "serve"] and not told),
        None,
    )
    # Behind something that starts it: uv run, srun, docker exec, a launcher's script.
    return line if at is not None and _server(line, rest[at:]) else None


def _docker(line: Line, rest: list[Word]) -> Line:
    while rest and rest[0].text.startswith("-") and rest[0].text != "-":
        word = rest.pop(0)
        for option, value in _split(word, rest):
            if option == "env":
                _set_env(line, value, word)
            elif option == "entrypoint":
                line.entry = value
            else:
                line.docker.append((option, show(value.replace(HOME, "~")), word))
    if not rest:
        raise SparkbookError("docker run: the image is missing")
    line.image = rest.pop(0).shown
    _container(line, rest)
    return line


def _split(word: Word, rest: list[Word]) -> Iterator[tuple[str, str]]:
    """One word of docker's options, with the value that belongs to it."""
    if word.text.startswith("--"):
        option, joined, value = word.text[2:].partition("=")
        option = _SAME.get(option, option)
        if option in _SWITCHES:
            yield option, ""
            return
    else:
        letters = word.text[1:]
        while letters and _SHORT.get(letters[0]) in _SWITCHES:
            yield _SHORT[letters[0]], ""
            letters = letters[1:]
        if not letters:
            return
        option, value = _SHORT.get(letters[0], letters[0]), letters[1:].removeprefix("=")
        joined = value
    if not joined:
        if not rest:
            raise SparkbookError(f"docker's option {word.shown} lacks its value")
        value = rest.pop(0).text
    yield option, value


def _container(line: Line, rest: list[Word]) -> None:
    """The words after the image, by what the image runs by itself."""
    assert line.image is not None
    line.runs = entrypoint_of(line.image)
    name = PurePosixPath(line.entry).name if line.entry else line.entry
    if line.runs == "wrapper" and line.entry is None:
        return
    if name in _SHELLS or name == "vllm" or (name and name.startswith("python")):
        if not _server(line, [Word(name), *rest]):
            line.nothing_serves = f"{name} {' '.join(word.shown for word in rest[:2])}".strip()
    elif name is None and line.runs == "vllm-serve":
        if [word.text for word in rest[:2]] == ["vllm", "serve"]:
            line.doubled = (rest[0], rest[1])
            line.serve = rest[2:]
        elif rest and rest[0].text == "vllm":
            line.doubled = (rest[0], rest[0])
        else:
            line.serve = rest
    elif (
        name is None
        and images.find(line.image) is None
        and rest
        and (rest[0].text.startswith("--") or "/" in rest[0].text[1:])
        and not (rest[0].text.startswith("/"))
    ):
        # Not an image that is known, but the words are a model and options: it starts vllm serve by
        # itself.
        line.runs, line.serve = "vllm-serve", rest
    elif name is None and not _server(line, rest):
        line.nothing_serves = " ".join(word.shown for word in rest[:2]) or "nothing"


def _server(line: Line, rest: list[Word]) -> bool:
    """Takes a command that serves; whether it is one."""
    while rest and (rest[0].text in ("exec", "env") or _ASSIGNMENT.match(rest[0].text)):
        word = rest[0]
        rest = rest[1:]
        if _ASSIGNMENT.match(word.text):
            _set_env(line, word.text, word)
    if not rest:
        return False
    program = PurePosixPath(rest[0].text).name
    texts = [word.text for word in rest]
    if program == "vllm" and texts[1:2] == ["serve"]:
        line.serve = rest[2:]
        return True
    if (
        program.startswith("python")
        and texts[1:2] == ["-m"]
        and texts[2:3]
        and texts[2] in _API_SERVER
    ):
        line.serve = rest[4:] if texts[2:4] == [_API_SERVER[1], "serve"] else rest[3:]
        return True
    if program in _SHELLS:
        flags = [text for text in texts[1:] if re.fullmatch(r"-[a-z]+", text)]
        script = texts[1 + len(flags) :]
        return bool(script) and any("c" in flag for flag in flags) and _script(line, script[0])
    return False


def _script(line: Line, script: str) -> bool:
    """Takes a script that a shell in the container is given; positions in it are no positions of
    the text.
    """
    served = False
    for words in _commands(lex(script, outer=False)):
        inside = [Word(word.text) for word in words]
        if words[0].text == "export":
            for word in inside[1:]:
                _set_env(line, word.text, word)
        elif _server(line, inside):
            served = True
        elif not served:
            line.before.append(" ".join(word.shown for word in words))
    return served


def _set_env(line: Line, text: str, word: Word) -> None:
    name, equals, value = text.partition("=")
    line.env[show(name)] = (
        None if not equals or passed_on(value) == name else show(value.replace(HOME, "~"))
    )
    line.env_words[show(name)] = word


_SERVICE = {
    "container_name": "name",
    "runtime": "runtime",
    "ipc": "ipc",
    "shm_size": "shm-size",
    "network_mode": "network",
    "restart": "restart",
    "user": "user",
    "mem_limit": "memory",
    "ports": "publish",
    "volumes": "volume",
    "devices": "device",
    "cap_add": "cap-add",
}


def _compose(text: str) -> Line:
    document = documents.parse(text)
    found = document.get("services") if isinstance(document, dict) else None
    if not isinstance(found, dict):
        raise SparkbookError("this is not a compose file: its services are no mapping")
    services = {name: service for name, service in found.items() if isinstance(service, dict)}
    lines = [_service(service, text) for service in services.values() if service.get("image")]
    served = [line for line in lines if line.serve is not None or line.runs != "command"] or lines
    if not served:
        raise SparkbookError("no service of this compose file has an image")
    served[0].others = served[1:]
    return served[0]


def _service(service: dict[str, Any], text: str) -> Line:
    line = Line(text=text, image=str(service["image"]))
    for key, option in _SERVICE.items():
        values = service.get(key)
        for value in values if isinstance(values, list) else [values] if values is not None else []:
            line.docker.append((option, _filled(value), Word("")))
    if service.get("privileged"):
        line.docker.append(("privileged", "", Word("")))
    if service.get("deploy") or service.get("gpus"):
        line.docker.append(("gpus", "all", Word("")))
    for key in ("ulimits", "environment"):
        allowed = dict if key == "ulimits" else dict | list
        if not isinstance(service.get(key) or {}, allowed):
            raise SparkbookError(
                f"{key} of the service with {line.image} is no"
                f" {'mapping' if key == 'ulimits' else 'mapping or list'}"
            )
    for name, limit in (service.get("ulimits") or {}).items():
        line.docker.append(("ulimit", f"{name}={limit}", Word("")))
    env = service.get("environment") or {}
    pairs = (
        [str(entry).partition("=") for entry in env]
        if isinstance(env, list)
        else [(k, "=", v) for k, v in env.items()]
    )
    for name, equals, value in pairs:
        filled = None if not equals or value is None else _filled(value)
        line.env[str(name)] = (
            None
            if filled is not None and re.fullmatch(rf"\$\{{?{name}[^}}]*\}}?", filled)
            else filled
        )
    entry, command = _listed(service.get("entrypoint")), _listed(service.get("command"))
    line.entry = entry[0].text if entry else None
    _container(line, [*entry[1:], *command])
    return line


def _filled(value: Any) -> str:
    return (str(value).lower() if isinstance(value, bool) else str(value)).replace("$$", "$")


def _listed(value: Any) -> list[Word]:
    if value is None:
        return []
    if isinstance(value, list):
        return [
            Word(re.sub(r"(?<!\$)(\$\{[^}]*\}|\$[A-Za-z_]\w*)", "\0\\1\0", _filled(word)))
            for word in value
        ]
    return [Word(token.text) for token in lex(_filled(value), expand=False) if not token.operator]


def given(source: str) -> tuple[Line, str]:
    """What a user names: a recipe's id, a file in any format that `sparkbook.formats` knows, `-`
    for standard input, or the text itself.

    A launch line and a compose file are read here, mistakes and all; any other format becomes a
    recipe first, and what its reader has to say of it joins the findings.

    Returns:
        The line, and the text that suppressions are looked for in.

    Raises:
        SparkbookError: it is none of these, or cannot be read.
    """
    from sparkbook import formats

    name, text = formats.text_of(source)
    if name is not None:
        return _recipe(name)
    assert text is not None
    with formats.naming(source):
        return _told(text), text


def _told(text: str) -> Line:
    """The line of a text, of whatever format."""
    from sparkbook import formats

    if not _IS_DOCUMENT.search(text) or re.search(r"^services:", text, re.MULTILINE):
        return read(text)
    format_ = formats.detect(text)
    if format_ in ("docker", "shell", "compose"):
        return read(text)
    found = formats.read(text, format_)
    line = from_launch(found.launch)
    line.told = [finding for finding in found.findings if finding.severity != "info"]
    return line


_IS_DOCUMENT = re.compile(r"^(\s*[{\[]|[\w-]+:(\s|$))", re.MULTILINE)


def _recipe(source: str) -> tuple[Line, str]:
    from sparkbook import recipes
    from sparkbook.recipes.catalogue import CATALOGUE

    recipe = recipes.load(source)
    path = (
        Path(source)
        if source.endswith((".yaml", ".yml"))
        else CATALOGUE / f"{source.partition('@')[0]}.yaml"
    )
    return from_launch(recipe.launch, recipe), path.read_text("utf-8")
