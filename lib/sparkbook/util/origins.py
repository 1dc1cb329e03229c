"""Send a secret to the server that it belongs to, and to no other: addresses are compared by
origin (scheme, host and port, https://www.rfc-editor.org/rfc/rfc6454), never by their text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sparkbook.errors import SparkbookError

_PORTS = {"http": 80, "https": 443}
_MOST_REDIRECTS = 10


class Origin(NamedTuple):
    """Who answers at an address; scheme and host in lower case."""

    scheme: str
    host: str
    port: int


def origin(url: str) -> Origin:
    """Return the origin of a web address.

    Addresses that two parsers could read differently are refused: the one that sends the request
    must mean the same host as this one.

    Raises:
        SparkbookError: it is no HTTP address, it holds a name or password, or characters that do
            not belong into one. The message does not show the address, which can hold a secret.
    """
    problem = None
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        problem = "it cannot be read"
    else:
        if not url.isascii() or any(letter <= " " or letter in "\\\x7f" for letter in url):
            problem = "it holds a blank, a backslash or a letter outside ASCII"
        elif "@" in parts.netloc:
            problem = "it holds a name or password before the host"
        elif scheme not in _PORTS or not host or port == 0:
            problem = "it does not begin with http:// or https:// and a host"
    if problem:
        raise SparkbookError(
            f"A web address is refused: {problem}. Write one such as https://huggingface.co"
        )
    assert host is not None
    return Origin(scheme, host.lower(), port or _PORTS[scheme])


def same_origin(one: str, other: str) -> bool:
    """Return whether two addresses name one server. Raises SparkbookError as `origin`."""
    return origin(one) == origin(other)


@contextlib.contextmanager
def get(
    client: Any, url: str, *, home: str, token: str | None, headers: Mapping[str, str], **more: Any
) -> Iterator[Any]:
    """Stream a GET and follow its redirects. The token goes to the home's origin only, and to
    nobody once a redirect has led away from it.

    Args:
        client: of httpx or httpx2.
        home: any address of the server that the token belongs to.
        more: for the client's `stream`.

    Raises:
        SparkbookError: an address on the way is none, or there are more than 10 redirects.
    """
    trusted = True
    for _ in range(_MOST_REDIRECTS + 1):
        trusted = trusted and same_origin(url, home)
        secret = {"authorization": f"Bearer {token}"} if token and trusted else {}
        with client.stream(
            "GET", url, headers={**headers, **secret}, follow_redirects=False, **more
        ) as answer:
            if answer.next_request is None:
                yield answer
                return
            url = str(answer.next_request.url)
    raise SparkbookError(f"{origin(home).host} redirects more than {_MOST_REDIRECTS} times.")
