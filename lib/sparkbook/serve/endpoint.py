"""Where an engine answers: address, served model and key."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import SplitResult, urlsplit

import httpx

from sparkbook.errors import SparkbookError
from sparkbook.serve.bounded import Bounded
from sparkbook.serve.paths import state_dir
from sparkbook.util import limits
from sparkbook.util.shell_text import command_line

if TYPE_CHECKING:
    import openai

ADDRESS_VARIABLE = "SPARKBOOK_ENDPOINT"
KEY_FILE_VARIABLE = "SPARKBOOK_KEY_FILE"
MAX_KEY_FILE = 100_000
"""Bytes of a key file."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server.

    Attributes:
        url: address without a path, such as `http://127.0.0.1:8000`.
        model: the served model's name; empty where it is not known yet (`served_models` asks).
        api_key: the bearer token. It is never printed.
    """

    url: str
    model: str = ""
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises `SparkbookError` for an address that is none. One that holds a name or password
        is not shown.
        """
        if "@" in self.url.partition("://")[2].partition("/")[0]:
            raise SparkbookError(
                "the address holds a name or password before the host: leave it out; a key goes"
                f" into {KEY_FILE_VARIABLE}"
            )
        if _parts(self.url) is None:
            raise SparkbookError(
                f"'{self.url}' is no server: write an address such as http://127.0.0.1:8000"
            )

    def client(self, timeout_s: float = 120.0, whole_s: float | None = None) -> openai.OpenAI:
        """Return an `openai` client for this server. It does not retry: a failure is to be seen,
        not hidden.

        Args:
            timeout_s: longest silence. whole_s: longest time of one request to its last byte; ten
                silences where it is not given.
        """
        import openai

        through = Bounded(whole_s or 10 * timeout_s, tls=self._tls)
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.api_key or "none",
            timeout=timeout_s,
            max_retries=0,
            # Redirects are refused: the key and the prompt are for this server. The type of the
            # client's parameter names one library; at run time it takes either.
            http_client=httpx.Client(  # type: ignore[arg-type]
                transport=through, timeout=timeout_s, follow_redirects=False, trust_env=False
            ),
        )

    def get(self, path: str, timeout_s: float = 10.0) -> httpx.Response:
        """GET a path of the server, such as `/health` or `/metrics`, with the key.

        Args:
            timeout_s: for all of the reply.

        Raises:
            SparkbookError: nothing answers there, or not all of it in time.
        """
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: dict[str, Any], timeout_s: float) -> httpx.Response:
        """POST JSON to a path of the server, as `get` asks it."""
        return self._ask("POST", path, body, timeout_s)

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        try:
            with httpx.Client(
                transport=Bounded(timeout_s, tls=self._tls), timeout=timeout_s, trust_env=False
            ) as client:
                return client.request(
                    method, f"{self.url}{path}", json=body, headers=self._headers()
                )
        except httpx.TransportError as error:
            # What a protocol error says can hold a header, and with it the key: only its name is
            # shown.
            reason = (
                type(error).__name__
                if isinstance(error, httpx.ProtocolError)
                else str(error) or type(error).__name__
            )
            raise SparkbookError(f"{self.url}{path} does not answer: {reason}") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise SparkbookError(
                f"{self.url}{path} can't be asked: {type(error).__name__}"
            ) from None

    def metrics_text(self) -> str:
        """Return what `/metrics` says, in Prometheus' text format.

        Raises:
            SparkbookError: nothing answers there, or it is no such page.
        """
        reply = self.get("/metrics")
        if not reply.is_success:
            raise SparkbookError(
                f"{self.url}/metrics answers {reply.status_code}: is this a vLLM server?"
            )
        return reply.content.decode("utf-8", "replace")

    def served_models(self, timeout_s: float = 10.0) -> list[str]:
        """Return names that `/v1/models` lists.

        Raises:
            SparkbookError: nothing answers, or the key is refused.
        """
        return [name for name, _ in self._listed(timeout_s)]

    def root_of_model(self) -> str | None:
        """Return folder or repository that the server says its model comes from; None where it does
        not say.

        Raises:
            SparkbookError: as `served_models`.
        """
        return dict(self._listed(10.0)).get(self.model)

    def _listed(self, timeout_s: float) -> list[tuple[str, str | None]]:
        """Return name and root of each served model."""
        reply = self.get("/v1/models", timeout_s)
        if reply.status_code == httpx.codes.UNAUTHORIZED:
            raise SparkbookError(
                f"{self.url} refuses the API key; give the server's own in VLLM_API_KEY or a file"
                f" named by {KEY_FILE_VARIABLE}"
            )
        if not reply.is_success:
            _no_list(self.url, f"status {reply.status_code}")
        try:
            found = [(model["id"], model.get("root")) for model in reply.json()["data"]]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            _no_list(self.url, "something else")
        if not all(isinstance(name, str) and isinstance(root, str | None) for name, root in found):
            _no_list(self.url, "something else")
        return found

    @property
    def _tls(self) -> bool:
        return self.url.lower().startswith("https")

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @classmethod
    def from_environment(cls) -> Endpoint | None:
        """Return the server that `SPARKBOOK_ENDPOINT` names, with its key from `SPARKBOOK_KEY_FILE`
        or `VLLM_API_KEY`; None where none is named.

        Raises:
            SparkbookError: the address is not one, the key file can't be read or is open to others,
                or the server does not answer.
        """
        url = os.environ.get(ADDRESS_VARIABLE, "").strip().rstrip("/").removesuffix("/v1")
        if not url:
            return None
        if "@" in url:
            raise SparkbookError(
                f"{ADDRESS_VARIABLE} holds a name or password before the host: leave it out; a key"
                f" goes into {KEY_FILE_VARIABLE}"
            )
        parts = _parts(url)
        if parts is None or parts.path:
            raise SparkbookError(
                f"{ADDRESS_VARIABLE} is '{url}'; write an address such as http://127.0.0.1:8000"
            )
        endpoint = cls(url, api_key=key_from_environment())
        models = endpoint.served_models()
        if not models:
            raise SparkbookError(f"{url} serves no model")
        return cls(url, models[0], endpoint.api_key)


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a server's address; None where it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def _no_list(url: str, what: str) -> NoReturn:
    raise SparkbookError(
        f"{url}/v1/models answers with {what} instead of a list of models: is it the address of a"
        " vLLM server?"
    )


def own_key() -> tuple[str, Path]:
    """Return the API key of this user's Docker servers, and the 0600 file that holds it.

    `VLLM_API_KEY` where it is set, and then that is what the file holds; else it is made once and
    kept.

    Raises:
        SparkbookError: the file is open to others or can't be used.
    """
    file = state_dir() / "api-key"
    if key := usable_key(os.environ.get("VLLM_API_KEY", ""), "VLLM_API_KEY"):
        file = state_dir() / "api-key-from-environment"
        write_private(file, key)
        return key, file
    # An empty file is what a full disk once left.
    if not file.exists() or not file.stat().st_size:
        write_private(file, secrets.token_hex(32), first=True)
    return key_in(file, str(file)), file


def write_private(file: Path, text: str, *, first: bool = False) -> None:
    """Write a file that only its owner can read, from its first byte on. It appears as a whole.

    Args:
        first: keep the file of another process that was first, unless it is empty.

    Raises:
        SparkbookError: it can't be written; what was there stays.
    """
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        if first and file.exists() and not file.stat().st_size:
            file.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(new, file) if first else new.replace(file)
    except OSError as error:
        raise SparkbookError(f"the key file {file} can't be written: {error.strerror}") from None
    finally:
        new.unlink(missing_ok=True)


def key_from_environment() -> str:
    """Return the API key from the file that `SPARKBOOK_KEY_FILE` names, else from `VLLM_API_KEY`;
    empty where neither is there.

    Raises:
        SparkbookError: the file can't be read, is open to others, or holds no key.
    """
    name = os.environ.get(KEY_FILE_VARIABLE)
    if not name:
        return usable_key(os.environ.get("VLLM_API_KEY", ""), "VLLM_API_KEY")
    return key_in(Path(name), f"{name} ({KEY_FILE_VARIABLE})")


def key_in(name: Path, shown: str) -> str:
    """Return the API key that a file holds; `shown` is what messages call the file.

    Raises:
        SparkbookError: the file can't be read, is open to others, or holds no key.
    """
    try:
        file = name.expanduser()
        if file.stat().st_mode & 0o077:
            raise SparkbookError(
                f"the key file {file} can be read by others: {command_line('chmod', 600, file)}"
            )
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SparkbookError(f"the key file {shown} can't be read: {reason}") from None
    text = limits.read_text(file, "the key file", most=MAX_KEY_FILE)
    key = usable_key(text, f"the key file {file}")
    if not key:
        raise SparkbookError(f"the key file {shown} is empty")
    return key


def usable_key(key: str, where: str) -> str:
    """Return the key without the blanks around it. The error for a key that can't be in
    a header names where the key came from, never its value.
    """
    key = key.strip()
    if not all(33 <= ord(letter) <= 126 for letter in key):
        raise SparkbookError(
            f"{where} holds a blank, a line end or a letter outside ASCII, which no key has"
        )
    return key
