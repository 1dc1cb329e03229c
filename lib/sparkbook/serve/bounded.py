"""HTTP with an end: a reply is whole within a time and a size, however slowly or endlessly a server
sends it.

httpx's own timeout is the longest silence. A server that sends one byte a second never breaks it,
and one that never ends a stream neither.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx

MOST_BYTES = 64 * 2**20
"""Of one reply. The longest that an engine gives, a streamed answer of 100,000 tokens, is about 40
MiB.
"""


class Bounded(httpx.HTTPTransport):
    """A transport that gives each reply `whole_s` seconds from the request to its last byte; then
    it fails as `httpx.ReadTimeout`.
    """

    def __init__(self, whole_s: float, *, tls: bool):
        """`tls`: whether certificates will be needed; loading them takes longer than a request to
        an engine on this machine.
        """
        # Each request has a connection of its own, so that the one which is cut off is the one that
        # is late.
        super().__init__(verify=tls, limits=httpx.Limits(max_keepalive_connections=0))
        self._whole_s = whole_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        opened: list[socket.socket] = []
        late = threading.Event()

        def look(event: str, info: dict[str, Any]) -> None:
            # https://www.encode.io/httpcore/extensions/#trace
            if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
                opened.append(info["return_value"].get_extra_info("socket"))
                if late.is_set():
                    cut()

        def cut() -> None:
            late.set()
            for one in opened[-1:]:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)  # whoever waits for it reads its end now

        timer = threading.Timer(self._whole_s, cut)
        timer.daemon = True
        timer.start()
        request.headers["Accept-Encoding"] = (
            "identity"  # a packed reply may be a thousand times as long as what is counted here
        )
        request.extensions = {**request.extensions, "trace": look}
        too_late = httpx.ReadTimeout(f"no whole reply within {self._whole_s:g} s", request=request)
        try:
            reply = super().handle_request(request)
        except httpx.TransportError:
            timer.cancel()
            if late.is_set():
                raise too_late from None
            raise
        if (packed := reply.headers.get("Content-Encoding", "identity")) != "identity":
            timer.cancel()
            reply.close()
            raise httpx.ReadError(
                f"a reply packed as {packed[:20]!r}, which was not asked for", request=request
            )
        if kind := reply.headers.get("Content-Type"):
            reply.headers["Content-Type"] = kind.split(";")[
                0
            ]  # a charset may name any codec of Python, such as hex; ours is UTF-8
        reply.stream = _Body(reply.stream, timer, late, too_late)  # type: ignore[arg-type]
        return reply


class _Body(httpx.SyncByteStream):
    """A reply's body, watched to its end."""

    def __init__(
        self,
        body: httpx.SyncByteStream,
        timer: threading.Timer,
        late: threading.Event,
        too_late: httpx.ReadTimeout,
    ):
        self._body, self._timer, self._late, self._too_late = body, timer, late, too_late

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        try:
            for part in self._body:
                size += len(part)
                if size > MOST_BYTES:
                    raise httpx.ReadError(
                        f"a reply of more than {MOST_BYTES >> 20} MiB",
                        request=self._too_late.request,
                    )
                yield part
        except httpx.TransportError:
            if self._late.is_set():
                raise self._too_late from None
            raise
        if (
            self._late.is_set()
        ):  # where only the connection's end tells that of the body, being cut off looks like it
            raise self._too_late

    def close(self) -> None:
        self._timer.cancel()
        self._body.close()
