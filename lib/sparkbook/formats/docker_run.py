"""The `docker run` line, alone or in a shell script around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.documents import check_text
from sparkbook.formats.lexer import Token, lex, line_of, literal, show
from sparkbook.formats.words import (
    Group,
    Reading,
    container_words,
    cut,
    filled,
    read_words,
    render,
    set_env,
)
from sparkbook.recipes.launch import DOCKER_OPTION, Launch
from sparkbook.util.shell_text import assignment, command_line, mark_home, quote

_WIDTH = 100

# docker's option: the container's field that it fills
_FIELDS = {
    "name": "name",
    "gpus": "gpus",
    "runtime": "runtime",
    "ipc": "ipc",
    "shm-size": "shm_size",
    "network": "network",
    "net": "network",
    "restart": "restart",
    "user": "user",
}
_LISTS = {"publish": "ports", "volume": "volumes"}
_SHORT = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "u": "user",
    "d": "detach",
    "i": "interactive",
    "t": "tty",
}
_SWITCHES = {"detach", "rm", "interactive", "tty"}
"""How the container is attached and whether it is kept: choices of the moment and no part of a
launch.
"""
_KEPT_SWITCHES = {
    "privileged",
    "init",
    "read-only",
    "publish-all",
    "oom-kill-disable",
    "no-healthcheck",
    "quiet",
    "disable-content-trust",
    "sig-proxy",
}
_KEPT = {
    "add-host",
    "annotation",
    "attach",
    "blkio-weight",
    "cap-add",
    "cap-drop",
    "cgroup-parent",
    "cgroupns",
    "cidfile",
    "cpu-shares",
    "cpus",
    "cpuset-cpus",
    "cpuset-mems",
    "device",
    "device-cgroup-rule",
    "dns",
    "dns-option",
    "dns-search",
    "domainname",
    "env-file",
    "expose",
    "group-add",
    "health-cmd",
    "health-interval",
    "health-retries",
    "health-start-period",
    "health-timeout",
    "hostname",
    "ip",
    "ip6",
    "isolation",
    "kernel-memory",
    "label",
    "label-file",
    "link",
    "log-driver",
    "log-opt",
    "mac-address",
    "memory",
    "memory-reservation",
    "memory-swap",
    "memory-swappiness",
    "mount",
    "network-alias",
    "oom-score-adj",
    "pid",
    "pids-limit",
    "platform",
    "pull",
    "security-opt",
    "stop-signal",
    "stop-timeout",
    "storage-opt",
    "sysctl",
    "tmpfs",
    "userns",
    "uts",
    "volume-driver",
    "volumes-from",
    "workdir",
}
"""Options of docker that no field of a recipe holds; kept under `foreign`."""
_KEPT_SHORT = {
    "P": "publish-all",
    "w": "workdir",
    "m": "memory",
    "h": "hostname",
    "l": "label",
    "c": "cpu-shares",
    "q": "quiet",
    "a": "attach",
}
_STARTS = (["run"], ["create"], ["container", "run"], ["container", "create"])
_ENGINES = {"docker", "podman", "nerdctl"}
_TELLS = {"echo", "printf", "grep", "which", "alias", "#"}


def write(launch: Launch, foreign: dict[str, list[str]] | None = None) -> str:
    """The `docker run` line, over several lines, for bash.

    Args:
        launch: what is started.
        foreign: docker's options that a launch does not hold, as `read` kept them.

    The home folder is left to the shell (`~/vllm`), a variable that is null is passed on
    (`-e HF_TOKEN`).

    Raises:
        SparkbookError: the launch has no image, or asks for something that docker cannot be told.
    """
    entry, words = container_words(launch)
    assert launch.image is not None
    named = ["--name", launch.container.name] if launch.container.name else []
    options = _packed([*_options(launch, entry), *_foreign(foreign or {})])
    options += [command_line("-v", mark_home(volume)) for volume in launch.container.volumes]
    for name, value in launch.env.items():
        options.append(
            "-e " + (quote(name) if value is None else assignment(name, value, tilde=False))
        )
    lines = [command_line("docker", "run", "-d", *named), *options, quote(launch.image)]
    if words:
        # Among them may be a script, whose lines stay lines.
        lines.append(render(words, partial(quote, reader="lines"), indent="    "))
    return " \\\n  ".join(lines) + "\n"


def _foreign(foreign: Mapping[str, list[str]]) -> Iterator[str]:
    """Options that a launch does not hold, each use on its own."""
    for option, values in foreign.items():
        if not DOCKER_OPTION.fullmatch(option):
            raise SparkbookError(f"foreign.docker: {option!r} is not the name of an option")
        for value in values:
            yield command_line(option, *([] if value == "" else [mark_home(value)]))


def _options(launch: Launch, entry: str | None) -> Iterator[str]:
    container = launch.container
    gpus = f'"{container.gpus}"' if container.gpus and "," in container.gpus else container.gpus
    for option, value in (
        ("gpus", gpus),
        ("runtime", container.runtime),
        ("ipc", container.ipc),
        ("shm-size", container.shm_size),
        ("network", container.network),
        ("restart", container.restart),
        ("user", container.user),
        ("entrypoint", entry),
    ):
        if value is not None:
            yield command_line(f"--{option}", mark_home(value))
    for name, limit in container.ulimits.items():
        yield command_line("--ulimit", f"{name}={limit}")
    for port in container.ports:
        yield command_line("-p", port)


def _packed(options: list[str]) -> list[str]:
    """Options on as few lines as the width allows."""
    lines: list[str] = []
    for option in options:
        if lines and len(lines[-1]) + len(option) + 5 <= _WIDTH:
            lines[-1] += f" {option}"
        else:
            lines.append(option)
    return lines


def starts(text: str) -> bool:
    """Whether a text looks like one that starts a container."""
    return bool(re.search(r"\b(docker|podman|nerdctl)\s+(container\s+)?(run|create)\b", text))


def read(text: str, notes: Notes | None = None) -> Launch:
    """The launch that a `docker run` line describes, alone or in a script. Nothing is executed;
    variables come from the text alone.

    Raises:
        SparkbookError: the text starts no container, or one that can't be read.
    """
    check_text(text)
    notes = notes if notes is not None else Notes()
    commands = _containers(text, notes, {})
    if not commands:
        tokens = [token for token in lex(text) if token.text != "\n"][:3]
        raise SparkbookError(
            "expected docker run …, found"
            f" '{show(' '.join(token.text for token in tokens)) or 'nothing'}'"
        )
    found: list[tuple[Reading, Launch]] = []
    problem: SparkbookError | None = None
    for words in commands:
        reading = Reading(Notes(guessed=dict(notes.guessed)))
        try:
            found.append((reading, _read_run(words, reading)))
        except SparkbookError as error:
            problem = problem or error
    if not found:
        assert problem is not None
        raise problem
    # A script often starts a database or looks at the driver first: what is given a model is what
    # serves.
    reading, launch = next(
        (item for item in found if item[1].serve.model or item[1].serve.args), None
    ) or next((item for item in found if "vllm" in (item[1].image or "")), found[0])
    for entry in reading.notes.found:
        if entry not in notes.found:
            notes.found.append(entry)
    notes.foreign.update(reading.notes.foreign)
    if len(commands) > 1:
        others = [other.image or "" for _, other in found if other is not launch]
        more = (
            f"; {len(commands) - len(found)} could not be read"
            if len(found) < len(commands)
            else ""
        )
        notes.add(
            "CONV205",
            f"of {len(commands)} containers the one with {launch.image} was taken",
            f"others: {', '.join(others) or 'none'}{more}",
        )
    return launch


def _containers(
    text: str, notes: Notes, variables: dict[str, list[str]], depth: int = 0
) -> list[Group]:
    """The words after `docker run` of every container that a script starts; what else it does is
    noted.

    Scripts in here-documents and command substitutions are looked into where the script itself
    starts none.
    """
    commands, current = [], []
    tokens = filled(lex(text), text, notes, variables)
    for token in [*tokens, Token("\n", len(text), len(text), operator=True)]:
        if token.operator and token.text in ("\n", ";", "&&", "||", ";;"):
            if current:
                commands.append(current)
            current = []
        else:
            current.append(token)
    found: list[Group] = []
    inside: list[str] = []
    for command in commands:
        if (words := _run_words(command, text, notes)) is not None:
            found.append(words)
            continue
        inside += [token.body for token in command if token.body]
        inside += [
            part[2:-1]
            for token in command
            for part in token.text.split("\0")[1::2]
            if part.startswith("$(") and starts(part)
        ]
        words = [token.text for token in command if not token.operator]
        if found and words and words[0].startswith("-"):
            raise SparkbookError(
                f"line {line_of(text, command[0].start) - 1} ends the command and more follows: end"
                " it with a backslash"
            )
        if (
            words
            and not all("=" in word for word in words)
            and words[0] not in ("export", "set", ":", "then", "fi", "do", "done", "else", "{", "}")
        ):
            notes.add(
                "CONV209",
                "the script does something else beside the start: left out",
                " ".join(words)[:60],
            )
    for script in inside if not found and depth < 3 else ():
        found += _containers(script, notes, variables, depth + 1)
    return found


def _run_words(command: list[Token], text: str, notes: Notes) -> Group | None:
    """The words after `docker run` in one command; None where it starts no container."""
    for at, token in enumerate(command):
        if token.operator or token.text in _TELLS:
            if token.text in _TELLS:
                return None
            continue
        if token.text in _ENGINES:
            following = [token.text for token in command[at + 1 : at + 3]]
            for start in _STARTS:
                if following[: len(start)] == start:
                    words, rest = cut(command[at + 1 + len(start) :], text)
                    if any(not other.operator for other in rest):
                        notes.add(
                            "CONV209",
                            "what is joined to the start is left out",
                            " ".join(other.text for other in rest)[:60],
                        )
                    return [token.text for token in words]
    return None


def _read_run(words: Group, reading: Reading) -> Launch:
    entry = None
    rest = list(words)
    while rest and rest[0].startswith("-"):
        for option, value in _split(rest):
            if option not in {"env", "entrypoint", "ulimit", *_LISTS, *_FIELDS}:
                _keep(reading.notes, option, value)
            elif option == "env":
                set_env(reading, value)
            elif option == "entrypoint":
                entry = literal(value)
            elif option == "ulimit":
                name, _, limit = literal(value).partition("=")
                reading.container.setdefault("ulimits", {})[name] = limit
            elif option in _LISTS:
                reading.container.setdefault(_LISTS[option], []).append(literal(value))
            elif option == "gpus":
                # docker reads this value as CSV, so a list of devices stands in double quotes of
                # its own.
                reading.container["gpus"] = re.sub(r'^"(.*)"$', r"\1", literal(value))
            else:
                reading.container[_FIELDS[option]] = literal(value)
    if not rest:
        raise SparkbookError("docker run: the image is missing")
    reading.image = literal(rest[0])
    read_words(reading, rest[1:], entry)
    return reading.launch()


def _keep(notes: Notes, option: str, value: str) -> None:
    """Keep an option of docker's that no field of a recipe holds.

    Raises:
        SparkbookError: it has no option's name.
    """
    spelled = f"--{option}" if len(option) > 1 else f"-{option}"
    if not DOCKER_OPTION.fullmatch(spelled):
        raise SparkbookError(
            f"'{show(spelled)}' is not an option of docker run: a name has letters, digits, dashes"
            " and dots"
        )
    notes.foreign.setdefault(spelled, []).append(literal(value))
    known = option in _KEPT or option in _KEPT_SWITCHES
    told = (
        "has no field in a recipe: kept under foreign"
        if known
        else "is not an option that docker is known to have: kept under foreign"
    )
    notes.add(
        "CONV203" if known else "CONV202",
        f"docker's option {spelled} {told}",
        value[:60] if value and option != "env-file" else None,
    )


def _split(rest: Group) -> Iterator[tuple[str, str]]:
    """Takes the next option off the words, with its value; switches, which a launch does not keep,
    yield nothing.

    Raises:
        SparkbookError: an option that a launch cannot keep, or one without its value.
    """
    word = rest.pop(0)
    if word.startswith("--"):
        option, joined, value = word[2:].partition("=")
        spelled = f"--{option}"
    else:
        letters = word[1:]
        while letters and _SHORT.get(letters[0]) in _SWITCHES:
            letters = letters[1:]
        if not letters and len(word) > 1:
            return
        option, value = (
            {**_KEPT_SHORT, **_SHORT}.get(letters[:1], letters[:1]),
            letters[1:].removeprefix("="),
        )
        if option in _KEPT_SWITCHES:
            yield option, ""
            return
        joined, spelled = value, f"-{letters[:1]}"
    if option in _SWITCHES:
        return
    if option in _KEPT_SWITCHES:
        yield option, "" if value in ("", "true") else value
        return
    if (
        not joined
        and option not in {"env", "entrypoint", "ulimit", *_LISTS, *_FIELDS, *_KEPT}
        and (not rest or rest[0].startswith("-"))
    ):
        yield option, ""
        return
    if not joined:
        if not rest:
            raise SparkbookError(f"docker's option {spelled} lacks its value")
        value = rest.pop(0)
    yield option, value
