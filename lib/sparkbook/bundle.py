"""`sparkbook record`: what a real machine said, with secrets and names taken out, as a bundle that
can become test data.

A bundle holds `host.json` (what `sparkbook check --json` answers, so `check --probes` judges it
again), `logs/*.log` (as `diagnose` reads them), `metrics/*.txt` (as `metrics` reads them) and
`about.json`: the library's answers for each today, which is what a test then expects.

Taken out are: every secret that this process knows (environment, key file), whatever is written
like one, the names of host and user, home folders, addresses, and words named by the caller. The
same name becomes the same stand-in everywhere. A name that was not given is not found: read a
bundle before you give it away.
"""

from __future__ import annotations

import getpass
import gzip
import io
import ipaddress
import json
import os
import re
import socket
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkbook.errors import SparkbookError
from sparkbook.util.secret import hide, is_secret

MOST_BYTES = 64 * 2**20
"""Of one log or scrape; what is longer is refused, since nobody could read it before giving it
away.
"""

REMOVED = "REMOVED"
_ORDINARY = {"root", "user", "vllm", "docker", "spark", "nvidia", "admin", "ubuntu", "localhost"}
"""Names of users and hosts that identify nobody, and are words of logs as well."""

_LOGIN = re.compile(r"((?<!\S)(?:-u|--user)[\s=]{1,4}[\"']?)[^\s:\"']+:[^\s\"']+")
_USER = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://)[^\s/'\"]+@", re.IGNORECASE)
_IPV4 = re.compile(
    r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)"
)
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}\b")
_UUID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE
)
_HOME = re.compile(r"(?P<keep>/(?:home|Users)/)(?P<name>[^/\s:'\",;)\]}]+)")
_OPEN = ("127.", "0.0.0.0", "255.255.255.255", "192.0.2.")
"""Addresses that do not identify a network."""


class Scrubber:
    """Takes secrets and names out of texts.

    Args:
        secrets: values that are secret whatever stands around them.
        names: words that must not stay, such as host and user names.
        home: the user's home folder.
    """

    def __init__(
        self, secrets: Iterable[str] = (), names: Iterable[str] = (), home: str | None = None
    ) -> None:
        self.secrets = sorted(
            {
                form
                for value in secrets
                if len(value) >= 4
                for form in (value, quote(value, safe=""), json.dumps(value)[1:-1])
            },
            key=len,
            reverse=True,
        )
        self.names = sorted(
            {name for name in names if len(name) >= 2 and name.lower() not in _ORDINARY},
            key=len,
            reverse=True,
        )
        self.home = home if home and home not in ("/", "/root") else None
        self._stand_ins: dict[tuple[str, str], str] = {}

    @classmethod
    def of_this_machine(
        cls, also: Iterable[str] = (), environ: Mapping[str, str] | None = None
    ) -> Scrubber:
        """One that knows this process's secrets and this machine's names; `also`: further words to
        take out.
        """
        environ = os.environ if environ is None else environ
        secrets = [value for name, value in environ.items() if is_secret(name, value)]
        for place in (
            environ.get("SPARKBOOK_KEY_FILE"),
            environ.get("HF_TOKEN_PATH"),
            "~/.cache/huggingface/token",
        ):
            with suppress(OSError, ValueError):
                secrets.append(Path(place or "").expanduser().read_text("utf-8").strip())
        host = socket.gethostname()
        names = [host, host.partition(".")[0], *also]
        with suppress(OSError, KeyError):
            names.append(getpass.getuser())
        return cls(secrets, names, environ.get("HOME"))

    def scrub(self, text: str) -> str:
        """The text without them."""
        for secret in self.secrets:
            text = text.replace(secret, REMOVED)
        text = _USER.sub(r"\1", _LOGIN.sub(rf"\1{REMOVED}", text))
        text = hide(text, REMOVED)
        if self.home:
            text = re.sub(rf"{re.escape(self.home)}(?![\w-])", "/home/user", text)
        text = _HOME.sub(lambda m: f"{m['keep']}user", text)
        text = _MAIL.sub("someone@example.org", text)
        text = _UUID.sub(
            lambda m: f"00000000-0000-0000-0000-{self._number('uuid', m[0].lower()):012d}", text
        )
        text = _MAC.sub(lambda m: f"02:00:00:00:00:{self._number('mac', m[0].lower()):02x}", text)
        text = _IPV4.sub(
            lambda m: m[0] if m[0].startswith(_OPEN) else f"192.0.2.{self._number('ip', m[0])}",
            text,
        )
        text = _IPV6.sub(
            lambda m: (
                f"2001:db8::{self._number('ip6', m[0].lower()):x}" if _is_outside(m[0]) else m[0]
            ),
            text,
        )
        for name in self.names:
            text = re.sub(
                rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])",
                lambda m: f"name{self._number('name', m[0].lower())}",
                text,
                flags=re.IGNORECASE,
            )
        return text

    def clean(self, text: str) -> str:
        """The text without them. Raises SparkbookError if one is in it still."""
        text = self.scrub(text)
        if what := self.left(text):
            raise SparkbookError(f"{what} is still in the result: nothing was written")
        return text

    def _number(self, kind: str, value: str) -> int:
        known = [key for key in self._stand_ins if key[0] == kind]
        if (kind, value) not in self._stand_ins:
            self._stand_ins[kind, value] = str(len(known) + 1)
        return int(self._stand_ins[kind, value])

    def left(self, text: str) -> str | None:
        """What of the known secrets and names is still in a text, in words that do not repeat it;
        None where nothing is.
        """
        if any(secret in text for secret in self.secrets):
            return "a secret"
        lowered = text.lower()
        return (
            "a name"
            if any(
                re.search(rf"(?<![a-z0-9]){re.escape(n.lower())}(?![a-z0-9])", lowered)
                for n in self.names
            )
            else None
        )


def _is_outside(text: str) -> bool:
    """Return whether it is an IPv6 address that may identify a network: not this machine's own,
    none, or a stand-in.
    """
    with suppress(ValueError):
        address = ipaddress.IPv6Address(text)
        stand_in = address in ipaddress.IPv6Network("2001:db8::/32")
        return not (address.is_loopback or address.is_unspecified or stand_in)
    return False


def record(
    out: Path,
    *,
    logs: Mapping[str, str] | None = None,
    metrics: Mapping[str, str] | None = None,
    host: Callable[[], dict[str, Any]] | None = None,
    release: str | None = None,
    scrubber: Scrubber | None = None,
) -> list[str]:
    """Writes a bundle: a folder, or a `.tar.gz`. Nothing is written unless all of it is clean.

    Args:
        out: where it goes; must not be there yet.
        logs, metrics: name without ending to text.
        host: gives what `sparkbook check --json` says; None leaves the host out.
        release: the vLLM release that the server named.
        scrubber: what takes secrets and names out; left out, one that knows this machine's.

    Returns:
        The bundle's files.

    Raises:
        SparkbookError: `out` is there already, there is nothing to record, a text is too long, or
            something secret could not be taken out.
    """
    if out.exists() or out.is_symlink():
        raise SparkbookError(f"{out} is there already and is left as it is: choose another name")
    if not out.parent.is_dir():
        raise SparkbookError(f"{out.parent} is no folder: make it first")
    scrubber = scrubber or Scrubber.of_this_machine()
    files = {f"logs/{name}.log": text for name, text in (logs or {}).items()}
    files |= {f"metrics/{name}.txt": text for name, text in (metrics or {}).items()}
    if host is not None:
        files["host.json"] = json.dumps(host(), indent=2, ensure_ascii=False) + "\n"
    if not files:
        raise SparkbookError(
            "there is nothing to record: give --log FILE, --url URL, --metrics FILE, or --host"
        )
    for name, text in files.items():
        if len(text) > MOST_BYTES:
            raise SparkbookError(
                f"{name} has more than {MOST_BYTES // 2**20} MiB: cut out the part that matters"
            )
    clean = {scrubber.scrub(name): scrubber.scrub(text) for name, text in files.items()}
    if len(clean) != len(files):
        raise SparkbookError("two files have the same name once names are taken out: rename one")
    clean["about.json"] = scrubber.scrub(
        json.dumps(_about(clean, release), indent=2, ensure_ascii=False) + "\n"
    )
    for name, text in clean.items():
        if what := scrubber.left(f"{name}\n{text}"):
            raise SparkbookError(
                f"{what} is still in {Path(name).name} after all was taken out that could be:"
                " nothing was written"
            )
    if out.name.endswith((".tar.gz", ".tgz")):
        _archive(out, clean)
    else:
        _folder(out, clean)
    return sorted(clean)


def _about(files: Mapping[str, str], release: str | None) -> dict[str, Any]:
    """Return the library's answers for each file, the ones that a test would hold it to."""
    from importlib.metadata import version

    from sparkbook import logs

    answers: dict[str, Any] = {}
    for name, text in sorted(files.items()):
        if name.startswith("logs/"):
            found = logs.diagnose(text)
            answers[name] = {
                "verdict": found.verdict if found.known or found.verdict == "empty" else "no log",
                "rules": [finding.rule for finding in found.findings],
            }
        elif name == "host.json":
            answers[name] = {"verdict": json.loads(text).get("summary", {}).get("verdict")}
        else:
            answers[name] = {"lines": text.count("\n")}
    return {"sparkbook": version("sparkbook"), "vllm": release, "files": answers}


def _folder(out: Path, files: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".record-") as place:
        fresh = Path(place) / "bundle"
        for name, text in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_text(text, "utf-8")
        fresh.rename(out)


def _archive(out: Path, files: Mapping[str, str]) -> None:
    """A tar file that depends on the texts alone: no times, no owners."""
    top = out.name.removesuffix(".tgz").removesuffix(".tar.gz")
    with tempfile.NamedTemporaryFile(dir=out.parent, prefix=".record-", delete=False) as raw:
        try:
            with (
                gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w") as archive,
            ):
                for name, text in sorted(files.items()):
                    data = text.encode()
                    entry = tarfile.TarInfo(f"{top}/{name}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
            raw.close()
            os.link(raw.name, out)  # fails where somebody was quicker, instead of replacing it
        except FileExistsError:
            raise SparkbookError(
                f"{out} is there already and is left as it is: choose another name"
            ) from None
        finally:
            Path(raw.name).unlink(missing_ok=True)


def named(paths: Iterable[str], read: Callable[[str], str]) -> dict[str, str]:
    """Texts by the names of their files, without endings; `-` is standard input.

    Raises:
        SparkbookError: a file can't be read, or two have the same name.
    """
    found: dict[str, str] = {}
    for path in paths:
        name = (
            "engine" if path == "-" else Path(path).name.removesuffix(".log").removesuffix(".txt")
        )
        if name in found:
            raise SparkbookError(f"two files are called {name}: rename one")
        try:
            found[name] = read(path)
        except OSError as error:
            raise SparkbookError(f"{path} can't be read: {error.strerror}") from None
    return found


def this_machine() -> dict[str, Any]:
    """Return what `sparkbook check --json` answers here."""
    from sparkbook import host

    return host.check(host.look()).to_dict()


def served(url: str) -> tuple[dict[str, str], str | None]:
    """A scrape of a running server's metrics, and the release that it names. The key is taken from
    the environment.

    Raises:
        SparkbookError: nothing answers there, or something else than vLLM.
    """
    from sparkbook.serve.endpoint import Endpoint, key_from_environment

    endpoint = Endpoint(url.rstrip("/").removesuffix("/metrics"), api_key=key_from_environment())
    scrape = endpoint.metrics_text()
    told = endpoint.get("/version")
    release = None
    with suppress(ValueError, AttributeError):
        release = told.json().get("version") if told.is_success else None
    return {"scrape": scrape}, release


__all__ = ["Scrubber", "named", "record", "served", "this_machine"]
