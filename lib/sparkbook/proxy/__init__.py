"""A proxy with TLS before a server that answers on the loopback address: Caddy or nginx.

It lets through what vLLM's key covers, and `/health`, to users who each have a key of their own.
The configuration holds no key. The keys are in a file next to it, for its owner alone: a proxy
compares them as they are, since neither Caddy nor nginx compares hashes of bearer tokens.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import key_in, write_private
from sparkbook.serve.paths import state_dir
from sparkbook.util.files import write_text
from sparkbook.util.shell_text import command_line

Kind = Literal["caddy", "nginx"]
KINDS: tuple[Kind, ...] = ("caddy", "nginx")
OPEN = r"^(/v1(/\w[\w.-]*)+|/health)([?]|$)"
"""What passes, of the address as it was sent. A path of `..`, `//` or `%` does not: vLLM answers
`/metrics/../v1/x` with its metrics, and a proxy that tidies the path takes it for one of `/v1`.
"""
KEYS = "sparkbook-keys"
_FILES = {"caddy": "Caddyfile", "nginx": "sparkbook.conf"}
_HOST = re.compile(
    r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.IGNORECASE
)
_USER = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_PATH = re.compile(r"[\w./+-]+", re.ASCII)
_SIZE = re.compile(r"[1-9][0-9]{0,5}m")
_NAME = re.compile(r"\{\{(\w+)\}\}")


def _usable(host: str) -> bool:
    """Return whether a certificate holds a host: X.509 allows 64 letters in a common name (RFC
    5280, appendix A), and what ends with a number is an IPv4 address.
    """
    if host.rpartition(".")[2].isdigit():
        with contextlib.suppress(ValueError):
            return str(IPv4Address(host)) == host
        return False
    return len(host) <= 64 and bool(_HOST.fullmatch(host))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a proxy is to do.

    Attributes:
        kind: the program.
        host: the name or IPv4 address that clients use.
        upstream: address of the server.
        port: where the proxy answers.
        certificate, certificate_key: files of the certificate. Without them Caddy makes its own,
            and nginx reads what the printed command makes.
        max_body: the largest request, such as `32m` (MiB).
        at_once: requests at the same time: with nginx of one user, with Caddy of all.
        rate: requests of one user in a minute; only nginx counts them.
        patience_s: how long a client may take for a part of its request.
        log: file of the requests; None: where Debian's package keeps its logs.
    """

    kind: Kind
    host: str
    upstream: str = "http://127.0.0.1:8000"
    port: int = 443
    certificate: str | None = None
    certificate_key: str | None = None
    max_body: str = "32m"
    at_once: int = 8
    rate: int | None = None
    patience_s: int = 30
    log: str | None = None

    def __post_init__(self) -> None:
        """Raises `SparkbookError` for a value that a configuration can't hold."""
        if self.kind not in KINDS:
            raise SparkbookError(f"Unknown proxy '{self.kind}'. There are: {', '.join(KINDS)}")
        if not _usable(self.host):
            raise SparkbookError(
                f"--host is '{self.host}': write the name or IPv4 address that clients use, such as"
                " spark.lan, without https:// and port"
            )
        if not _SIZE.fullmatch(self.max_body):
            raise SparkbookError(f"--max-body is '{self.max_body}': write MiB, such as 32m")
        if (self.certificate is None) != (self.certificate_key is None):
            raise SparkbookError("--certificate and --certificate-key belong together")
        for path in (self.certificate, self.certificate_key, self.log):
            if path is not None and not (_PATH.fullmatch(path) and path.startswith("/")):
                raise SparkbookError(
                    f"'{path}' can't be in a configuration: write a whole path, without blanks"
                )
        if self.rate is not None and self.kind == "caddy":
            raise SparkbookError(
                "Caddy limits no rate without a plug-in: leave out --rate, or choose nginx"
            )
        self.address()

    def address(self) -> str:
        """Return host and port of the server.

        Raises:
            SparkbookError: it is none that a proxy on the same machine asks.
        """
        try:
            parts = urlsplit(self.upstream.rstrip("/").removesuffix("/v1"))
            plain = parts.scheme == "http" and not parts.path and "@" not in parts.netloc
            usable = plain and _HOST.fullmatch(parts.hostname or "") and parts.port
        except ValueError:
            usable = False
        if not usable:
            raise SparkbookError(
                f"--url is '{self.upstream}': write the server's address on this machine, such as"
                " http://127.0.0.1:8000"
            )
        if parts.hostname not in ("127.0.0.1", "localhost"):
            raise SparkbookError(
                f"the server's key would cross the network to {parts.hostname} unencrypted: run the"
                " proxy on the server's own machine, with --url http://127.0.0.1:PORT"
            )
        return f"{parts.hostname}:{parts.port}"

    def text(self) -> str:
        """Return the configuration."""
        template = Path(__file__).parent / "templates" / _FILES[self.kind]
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"upstream": self.address(), "rate": self.rate or 60}
        if self.kind == "caddy":
            own = self.certificate and f"{self.certificate} {self.certificate_key}"
            values |= {
                "certificate": own or "internal",
                "max_body": f"{self.max_body}ib",
                "open": OPEN.replace("\\", "\\\\"),
            }
        else:
            values |= {
                "certificate": self.certificate or "sparkbook.crt",
                "certificate_key": self.certificate_key or "sparkbook.key",
                "open": OPEN,
            }
        values["log"] = self.log or f"/var/log/{self.kind}/sparkbook.log"
        return _NAME.sub(lambda match: str(values[match[1]]), template.read_text("utf-8"))

    def keys_text(self, users: Mapping[str, str], server_key: str) -> str:
        """Return the file of the keys.

        Args:
            users: the key of each user. server_key: the server's own, which no user gets.

        Raises:
            SparkbookError: a key can't be written into it.
        """
        for name, key in {"the server": server_key, **users}.items():
            if not _TOKEN.fullmatch(key):
                raise SparkbookError(
                    f"the key of {name} holds a letter that no bearer token has (RFC 6750): choose"
                    " another one"
                )
        if self.kind == "caddy":
            rows = "".join(f'\t\t"Bearer {key}" {name}\n' for name, key in users.items())
            return (
                "(sparkbook_user) {\n"
                "\tmap {http.request.header.Authorization} {http.auth.user.id} {\n"
                f'{rows}\t\tdefault ""\n\t}}\n}}\n'
                f'(sparkbook_key) {{\n\theader_up Authorization "Bearer {server_key}"\n}}\n'
            )
        rows = "".join(f'    "~^Bearer {re.escape(key)}$" {name};\n' for name, key in users.items())
        return (
            f'map $http_authorization $sparkbook_user {{\n    default "";\n{rows}}}\n'
            f'map "" $sparkbook_authorization {{\n    default "Bearer {server_key}";\n}}\n'
        )

    def steps(self, folder: Path) -> list[str]:
        """Return the commands that put its files in their place."""
        made, keys = folder / _FILES[self.kind], folder / KEYS
        if self.kind == "caddy":
            return [
                "sudo apt-get install caddy",
                command_line(
                    "sudo", "install", "-m", 640, "-g", "caddy", keys, f"/etc/caddy/{KEYS}"
                ),
                command_line("sudo", "install", "-m", 644, made, "/etc/caddy/Caddyfile"),
                "sudo systemctl restart caddy",
            ]
        steps = [
            "sudo apt-get install nginx",
            command_line("sudo", "install", "-m", 600, keys, f"/etc/nginx/{KEYS}"),
            command_line("sudo", "install", "-m", 644, made, "/etc/nginx/conf.d/sparkbook.conf"),
            "sudo nginx -t && sudo systemctl reload nginx",
        ]
        if self.certificate is None:
            # Once: another certificate is one that no client trusts yet.
            there = command_line("sudo", "test", "-e", self.trust())
            made_once = command_line("sudo", *self.certificate_command(Path("/etc/nginx")))
            steps.insert(1, f"{there} || {made_once}")
        return steps

    def certificate_command(self, folder: Path) -> list[str]:
        """Return the command that makes a certificate that signs itself, good for 825 days."""
        kind = "IP" if self.host.replace(".", "").isdigit() else "DNS"
        return [
            *("openssl", "req", "-x509", "-nodes", "-days", "825"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", f"/CN={self.host}", "-addext", f"subjectAltName={kind}:{self.host}"),
            *("-keyout", f"{folder}/sparkbook.key", "-out", f"{folder}/sparkbook.crt"),
        ]

    def trust(self) -> str | None:
        """Return the file on this machine that clients need to trust; None: an own certificate."""
        if self.certificate:
            return None
        if self.kind == "nginx":
            return "/etc/nginx/sparkbook.crt"
        return "/var/lib/caddy/.local/share/caddy/pki/authorities/local/root.crt"


def write(
    wanted: Wanted,
    server_key: str,
    *,
    add: Iterable[str] = (),
    without: Iterable[str] = (),
    folder: Path | None = None,
) -> tuple[Path, dict[str, Path]]:
    """Write the configuration and the keys, and return their folder and the users' key files.

    Users that are there keep their keys.

    Args:
        add, without: users to add and to take away; one who is in both gets a new key.
        folder: None is one of this user's.

    Raises:
        SparkbookError: a name is none, nobody is left, or a file can't be written.
    """
    folder = (folder or state_dir() / "proxy").absolute()
    people, gone = folder / "users", set(without)
    known = {file.stem for file in people.glob("*.key")}
    for name in [*add, *gone, *known]:
        if not _USER.fullmatch(name):
            raise SparkbookError(
                f"'{name}' is no user: write at most 32 small letters, digits, '.', '_' and '-'"
            )
    if unknown := gone - known:
        there = ", ".join(sorted(known)) or "none"
        raise SparkbookError(f"{', '.join(sorted(unknown))} has no key. There are: {there}")
    names = sorted((known - gone) | set(add))
    if not names:
        raise SparkbookError("nobody would have a key: name one with --user NAME")
    try:
        people.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SparkbookError(f"{people} can't be made: {error.strerror}") from None
    files = {name: people / f"{name}.key" for name in names}
    for name, file in files.items():
        if name in gone or not file.exists():
            write_private(file, secrets.token_hex(32), first=name not in gone)
    keys = {name: key_in(file, str(file)) for name, file in files.items()}
    write_private(folder / KEYS, wanted.keys_text(keys, server_key))
    write_text(folder / _FILES[wanted.kind], wanted.text())
    for name in gone - files.keys():
        (people / f"{name}.key").unlink()
    return folder, files
