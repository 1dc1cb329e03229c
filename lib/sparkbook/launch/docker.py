"""The options of `docker run` and `docker create`, of podman's and of nerdctl's, and the words that
follow them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sparkbook.errors import SparkbookError
from sparkbook.launch.lexer import show
from sparkbook.launch.line import Line, Remark, Word
from sparkbook.launch.server import MENTIONS, PROGRAM, container
from sparkbook.recipes.names import entrypoint_of
from sparkbook.releases import images
from sparkbook.util.shell_text import quote

ENGINES = {"docker", "podman", "nerdctl"}
_STARTS = (["run"], ["create"], ["container", "run"], ["container", "create"])
_GLOBAL_WITH_VALUE = {
    *("--config", "--context", "-c", "--host", "-H", "--log-level", "-l"),
    *("--tlscacert", "--tlscert", "--tlskey"),
    *("--connection", "--url", "--root", "--runroot", "--storage-driver", "--identity"),
    *("--namespace", "-n", "--address", "-a", "--cgroup-manager", "--data-root", "--snapshotter"),
}
"""Options between the engine and `run` that take a value."""

# docker 28.2, `docker run --help`
_DOCKER_SWITCHES = (
    "detach disable-content-trust help init interactive no-healthcheck oom-kill-disable "
    "privileged publish-all quiet read-only rm tty use-api-socket"
)
_DOCKER_OPTIONS = (
    "add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent "
    "cgroupns cidfile cpu-count cpu-percent cpu-period cpu-quota cpu-rt-period cpu-rt-runtime "
    "cpu-shares cpus cpuset-cpus cpuset-mems detach-keys device device-cgroup-rule "
    "device-read-bps device-read-iops device-write-bps device-write-iops dns dns-option "
    "dns-search domainname entrypoint env env-file expose gpus group-add health-cmd "
    "health-interval health-retries health-start-interval health-start-period health-timeout "
    "hostname io-maxbandwidth io-maxiops ip ip6 ipc isolation kernel-memory label label-file link "
    "link-local-ip log-driver log-opt mac-address memory memory-reservation memory-swap "
    "memory-swappiness mount name network network-alias oom-score-adj pid pids-limit platform "
    "publish pull restart runtime security-opt shm-size stop-signal stop-timeout storage-opt "
    "sysctl tmpfs ulimit user userns uts volume volume-driver volumes-from workdir"
)
# podman 5, `cmd/podman/common/create.go`, what docker lacks
_PODMAN_SWITCHES = "env-host no-hostname no-hosts replace rmi rootfs unsetenv-all"
_PODMAN_OPTIONS = (
    "arch authfile cert-dir cgroup-conf cgroups chrootdirs conmon-pidfile creds decryption-key "
    "env-merge gidmap group-entry health-log-destination health-max-log-count health-max-log-size "
    "health-on-failure health-startup-cmd health-startup-interval health-startup-retries "
    "health-startup-success health-startup-timeout hostuser hosts-file image-volume init-ctr "
    "init-path os passwd-entry personality pidfile pod pod-id-file preserve-fd preserve-fds "
    "rdt-class requires retry retry-delay sdnotify seccomp-policy secret shm-size-systemd "
    "signature-policy subgidname subuidname systemd timeout tz uidmap umask unsetenv variant"
)
# nerdctl 2, `docs/command-reference.md`, what docker lacks
_NERDCTL_OPTIONS = (
    "cosign-certificate-identity cosign-certificate-identity-regexp "
    "cosign-certificate-oidc-issuer cosign-certificate-oidc-issuer-regexp cosign-key init-binary "
    "ipfs-address verify"
)

OFF_SWITCHES = frozenset(f"{_DOCKER_SWITCHES} {_PODMAN_SWITCHES}".split())
"""Options without a value that are off unless they are given."""
ON_SWITCHES = frozenset(["http-proxy", "passwd", "read-only-tmpfs", "sig-proxy", "tls-verify"])
"""Options without a value that are on unless `=false` follows."""
SWITCHES = OFF_SWITCHES | ON_SWITCHES
"""Every option without a value."""
OPTIONS = frozenset(f"{_DOCKER_OPTIONS} {_PODMAN_OPTIONS} {_NERDCTL_OPTIONS}".split())
"""Options with a value."""

_SHORT = {
    "a": "attach",
    "c": "cpu-shares",
    "d": "detach",
    "e": "env",
    "h": "hostname",
    "i": "interactive",
    "l": "label",
    "m": "memory",
    "p": "publish",
    "P": "publish-all",
    "q": "quiet",
    "t": "tty",
    "u": "user",
    "v": "volume",
    "w": "workdir",
}
_SAME = {"net": "network", "net-alias": "network-alias", "dns-opt": "dns-option"}
_TRUE, _FALSE = {"", "1", "t", "T", "true", "TRUE", "True"}, {"0", "f", "F", "false", "FALSE"}
_IMAGE = re.compile(
    r"[a-z0-9][\w.-]*(:\d+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII
)


def start_of(words: list[Word]) -> int | None:
    """Return the index of the first word after `docker run`, docker's own options skipped; None
    where the words start no container.
    """
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        if text in MENTIONS:
            return None
        if text.rpartition("/")[2] not in ENGINES:
            continue
        after = at + 1
        while after < len(texts) and texts[after].startswith("-"):
            after += 2 if texts[after] in _GLOBAL_WITH_VALUE else 1
        for start in _STARTS:
            if texts[after : after + len(start)] == start:
                return after + len(start)
    return None


def read(line: Line, words: list[Word]) -> None:
    """Take the words after `docker run`.

    Raises:
        SparkbookError: the image is missing, or the value of the last option.
    """
    line.form = "docker"
    rest = list(words)
    while rest and (rest[0].spread or (rest[0].text.startswith("-") and rest[0].text != "-")):
        word = rest.pop(0)
        if word.text == "--":
            break
        if word.spread:
            line.spreads.append(word)
            continue
        for name, given in _options(line, word, rest):
            _take(line, name, given, word)
    if not rest:
        raise SparkbookError("docker run: the image is missing. Write it after the options")
    line.set_image(rest.pop(0))
    container(line, rest)


def _take(line: Line, name: str, given: Word, word: Word) -> None:
    if name == "env":
        line.set_env(given)
    elif name == "entrypoint":
        line.set_entry(given)
        _split_entry(line)
    else:
        if name == "gpus":
            # docker reads the value as CSV, so a list of devices is in double quotes of its own.
            given = Word(re.sub(r'^"(.*)"$', r"\1", given.text), given.start, given.end)
        line.add_option(name, given, word)


def _split_entry(line: Line) -> None:
    """Take podman's form of an entry point, a JSON list, apart."""
    assert line.entry_word is not None
    try:
        words = json.loads(line.entry_word.text) if line.entry_word.text.startswith("[") else None
    except ValueError:
        return
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        line.set_entry(Word(words[0]))
        line.words = [Word(word) for word in words[1:]]


def _options(line: Line, word: Word, rest: list[Word]) -> Iterator[tuple[str, Word]]:
    """Yield the options of one word, each with its value, which may be the next of the rest.

    Raises:
        SparkbookError: the value is missing.
    """
    if word.text.startswith("--"):
        name, joined, value = word.text[2:].partition("=")
        name = _SAME.get(name, name)
    else:
        letters = word.text[1:]
        while len(letters) > 1 and letters[1] != "=" and _SHORT.get(letters[0]) in SWITCHES:
            yield _SHORT[letters[0]], Word("")
            letters = letters[1:]
        name = _SHORT.get(letters[0], letters[0])
        value = letters[1:].removeprefix("=")
        joined = letters[1:]
    if name in SWITCHES:
        yield from _switch(name, value)
        return
    if name not in OPTIONS:
        shown = f"--{show(name)}" if len(name) > 1 else f"-{show(name)}"
        line.mistakes.append(
            Remark(
                "CONV202",
                f"Docker has no option {shown}; it is kept under foreign.",
                word.shown.partition("=")[0],
                f"Check the spelling of {quote(shown)}, or remove it.",
            )
        )
        if not joined and not _takes_value(rest):
            yield name, Word("")
            return
    if joined:
        yield name, Word(value, word.start, word.end)
    elif rest:
        yield name, rest.pop(0)
    else:
        raise SparkbookError(f"docker's option {word.shown} lacks its value")


def _switch(name: str, value: str) -> Iterator[tuple[str, Word]]:
    """Yield a switch, unless it says what holds anyway."""
    if value in _FALSE and name in OFF_SWITCHES:
        return
    if value in _TRUE and name in ON_SWITCHES and value:
        return
    yield name, Word("" if value in _TRUE else value)


def _takes_value(rest: list[Word]) -> bool:
    """Return whether the next word is the value of an unknown option, and not the image: the next
    word that looks like an image is the image.
    """
    if not rest or rest[0].text.startswith("-"):
        return False
    if len(rest) == 1:
        return False
    here, after = _likeness(rest[0]), _likeness(rest[1])
    if rest[1].text.startswith("-"):
        return here < 2
    if here == after == 0:
        return not PROGRAM.fullmatch(rest[1].text)
    return after > here


def _likeness(word: Word) -> int:
    """Rate how much a word looks like an image: 0 not at all, 4 a known one."""
    text = word.shown
    if not word.known:
        return 3 if "image" in text.lower() else 0
    if not _IMAGE.fullmatch(text):
        return 0
    if images.find(text) is not None or entrypoint_of(text) != "command":
        return 4
    if "@sha256:" in text or re.search(r":[\w.-]*[A-Za-z.][\w.-]*$", text):
        return 3
    return 2 if ":" in text else 1 if "/" in text else 0
