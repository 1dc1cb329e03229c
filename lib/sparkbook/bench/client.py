"""The measuring client: many streamed requests at once, and the time at which every piece of them
arrived.

It runs as a process of its own (`python client.py`, standard library only), so that no notebook,
progress bar or garbage collector of the caller shares its interpreter. One job a line comes in on
standard input; a line for each finished request and one with all records go out. While it measures
it only stamps and keeps what it reads: framing, events and JSON are taken apart when the last
stream has ended.

A stamp is the clock (`time.monotonic`, seconds) at the moment when the bytes were read that
completed a server-sent event.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

clock = time.monotonic
_LAG_EVERY_S = 0.02
_NUMBER = re.compile(
    "[0-9]{1,15}"
)  # isdigit() takes what int() does not: other scripts' digits, and thousands of them
_BROKE = "the connection broke"
MOST_BYTES, MOST_HEAD_BYTES = 64 * 2**20, 2**16
"""Of one reply, and of its head. The longest answer of an engine stays far below; what never ends
would be kept until memory is full.
"""


class Reply:
    """What one request was answered with: every read with its stamp, as it came."""

    __slots__ = (
        "begin",
        "connection",
        "done",
        "error",
        "head",
        "index",
        "mode",
        "reads",
        "scheduled",
        "size",
        "slot",
        "status",
    )

    def __init__(self, index: int, slot: int, scheduled: float | None):
        self.index, self.slot, self.scheduled = index, slot, scheduled
        self.begin, self.size = 0.0, 0
        self.reads: list[tuple[float, bytes]] = []
        self.head = b""
        self.status = 0
        self.mode = ""  # how the end is marked: chunked, length or close
        self.error: str | None = None


class Connection(asyncio.Protocol):
    """One keep-alive connection. It carries one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reply: Reply | None = None
        self.finished: asyncio.Future[None] | None = None
        self.tail = b""
        self.left = 0
        self.framing: Dechunker | None = None
        self.framed = 0  # reads of the reply that it has seen
        self.reusable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def usable(self) -> bool:
        return self.reusable and self.transport is not None and not self.transport.is_closing()

    def send(self, request: bytes, reply: Reply) -> asyncio.Future[None]:
        self.reply, self.tail = reply, b""
        self.framing, self.framed = Dechunker(), 0
        self.finished = asyncio.get_running_loop().create_future()
        reply.begin = clock()
        self.transport.write(request)  # type: ignore[union-attr]
        return self.finished

    def data_received(self, data: bytes) -> None:
        now = clock()
        reply = self.reply
        if reply is None:
            return
        reply.reads.append((now, data))
        reply.size += len(data)
        if not reply.mode:
            self._head(reply)
        elif reply.mode == "chunked":
            tail = data[-5:] if len(data) >= 5 else (self.tail + data)[-5:]
            self.tail = tail
            # The last chunk has no bytes. The same five bytes can stand inside a chunk that the
            # network split, so unless the stream has just said that it is done, the framing
            # decides.
            if tail == b"0\r\n\r\n" and (b"[DONE]" in data[-32:] or self.complete()):
                self._finish()
        elif reply.mode == "length":
            self.left -= len(data)
            if self.left <= 0:
                self._finish()
        if reply.size > (MOST_BYTES if reply.mode else MOST_HEAD_BYTES) and self.reply is reply:
            self.give_up(f"{reply.size >> 10} KiB and no end")

    def _head(self, reply: Reply) -> None:
        """Read the status line and how the body ends, once all of it is there."""
        received = b"".join(data for _, data in reply.reads)
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = received[:end].decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = received[end + 4 :]
        words = lines[0].split(" ")
        reply.status = int(words[1]) if len(words) > 1 and _NUMBER.fullmatch(words[1]) else 0
        reply.head = received[: end + 4]
        self.reusable = headers.get("connection", "").lower() != "close" and lines[0].startswith(
            "HTTP/1.1"
        )
        if "chunked" in headers.get("transfer-encoding", "").lower():
            reply.mode = "chunked"
            self.tail = body[-5:]
            if self.tail == b"0\r\n\r\n" and self.complete():
                self._finish()
        elif _NUMBER.fullmatch(headers.get("content-length", "")):
            reply.mode = "length"
            self.left = int(headers["content-length"]) - len(body)
            if self.left <= 0:
                self._finish()
        else:
            reply.mode, self.reusable = "close", False

    def complete(self) -> bool:
        """Return whether the chunked body has ended, by its framing."""
        reply = self.reply
        if reply is None or reply.mode != "chunked" or self.framing is None:
            return False
        # Each read is looked at once, however often this is asked.
        skip = 0 if self.framed else len(reply.head)
        new, self.framed = reply.reads[self.framed :], len(reply.reads)
        try:
            self.framing.feed(b"".join(data for _, data in new)[skip:])
        except ValueError:
            self.framing = None  # no chunked framing after all; `record` says so
            return False
        return self.framing.ended

    def _finish(self) -> None:
        self.reply = None
        if self.finished is not None and not self.finished.done():
            self.finished.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if self.reply is not None and self.finished is not None and not self.finished.done():
            if self.reply.mode != "close" and not self.complete() and self.reply.error is None:
                self.reply.error = f"{_BROKE}{f' ({error})' if error else ''}"
            self._finish()

    def give_up(self, why: str) -> None:
        """End the request that is under way as failed."""
        if self.reply is not None and self.reply.error is None:
            self.reply.error = why
        self.close()

    def close(self) -> None:
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()


# ---- after the measurement: bytes to events, events to figures


class Dechunker:
    """Takes HTTP/1.1's chunked framing off, fed with whatever the network gave."""

    def __init__(self) -> None:
        self.buffer = b""
        self.left = 0  # bytes of the current chunk still to come; -1: its line end
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        buffer = self.buffer + data if self.buffer else data
        out, at, size = [], 0, len(buffer)
        while at < size and not self.ended:
            if self.left > 0:
                part = buffer[at : at + self.left]
                out.append(part)
                at += len(part)
                self.left -= len(part)
                if self.left == 0:
                    self.left = -1
            elif self.left == -1:
                if size - at < 2:
                    break
                at += 2
                self.left = 0
            else:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    break
                length = int(buffer[at:end].split(b";")[0] or b"0", 16)
                if length == 0:
                    # Behind it come trailers, if any, and an empty line.
                    if buffer[end : end + 4] == b"\r\n\r\n" or buffer.find(b"\r\n\r\n", end) >= 0:
                        self.ended, at = True, size
                    break
                at, self.left = end + 2, length
        self.buffer = buffer[at:]
        return b"".join(out)


def _bodies(reply: Reply) -> Iterator[tuple[float, bytes]]:
    """Yield the reads without the response's head."""
    skip = len(reply.head)
    for stamp, data in reply.reads:
        if skip >= len(data):
            skip -= len(data)
        else:
            yield stamp, data[skip:]
            skip = 0


def events(bodies: Iterable[tuple[float, bytes]], chunked: bool) -> Iterator[tuple[float, bytes]]:
    """Parse server-sent events: the stamp of the read that completed each, and its data. Comments
    (`: ping`) are no events.

    Line ends may be CRLF, LF or CR, and bytes may be split anywhere
    (https://html.spec.whatwg.org/multipage/server-sent-events.html).
    """
    framing = Dechunker() if chunked else None
    rest, carriage, data = b"", False, []
    for stamp, raw in bodies:
        text = framing.feed(raw) if framing else raw
        if not text:
            continue
        if carriage and text.startswith(b"\n"):
            text = text[1:]  # the second half of a CRLF that the network split
            carriage = False
            if not text:
                continue
        carriage = text.endswith(b"\r")
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if rest:
            text = rest + text
        lines = text.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and data:
                yield stamp, data[0] if len(data) == 1 else b"\n".join(data)
                data = []
    # A stream that ends with its last event's line but without the empty one after it was cut off:
    # it is not an event.


def record(reply: Reply, keep_text: bool = True) -> dict[str, Any]:
    """Return one request as plain values. Times are seconds since the request was written; None is
    unknown.

    Keys: index, slot, begin (clock), scheduled (clock), status, error, ttfr, ttft, ttfo, end,
        stamps (one a step), tokens (of each step, where token ids came), usage, finish, text,
        text_bytes (of what was streamed: answer, thoughts and tool calls), events.
    """
    begin = reply.begin
    result: dict[str, Any] = {
        "index": reply.index,
        "slot": reply.slot,
        "begin": begin,
        "scheduled": reply.scheduled,
        "status": reply.status,
        "error": reply.error,
        **dict.fromkeys(("ttfr", "ttft", "ttfo", "end")),
        "stamps": [],
        **dict.fromkeys(("tokens", "usage", "finish")),
        "text": "",
        "text_bytes": 0,
        "events": 0,
    }
    if reply.reads:
        result["end"] = round(reply.reads[-1][0] - begin, 6)
    if reply.status != 200:
        result["error"] = _line(reply.error or f"status {reply.status}: {_reason(reply)}")
        return result
    try:
        _read_steps(reply, result, keep_text)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        result["error"] = (
            result["error"] or f"the reply is no streamed chat: {type(error).__name__}"
        )
    result["text"] = sound(result["text"])
    result["finish"] = result["finish"] and sound(result["finish"])
    result["error"] = result["error"] and _line(result["error"])
    return result


def sound(text: str) -> str:
    """Return a text that can be written as UTF-8. JSON may hold half a character (`\\ud83d`): two
    halves make one, one alone becomes U+FFFD.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _line(error: str) -> str:
    """Return what went wrong as one line, whatever bytes a server sent in place of words."""
    return " ".join(
        "".join(letter if letter.isprintable() else " " for letter in sound(error)).split()
    )


def _read_steps(reply: Reply, result: dict[str, Any], keep_text: bool) -> None:
    """Take the stream apart, into the result. A stream of another shape may make it fail as it
    likes.
    """
    begin = reply.begin
    stamps: list[float] = []
    tokens: list[int] = []
    texts: list[str] = []
    done, seen = False, 0
    for stamp, data in events(_bodies(reply), reply.mode == "chunked"):
        if data == b"[DONE]":
            done = True
            continue
        seen += 1
        choice = _choice(data, result)
        if choice is None:
            continue
        since = stamp - begin
        if result["ttfr"] is None:
            result["ttfr"] = round(since, 6)
        delta = choice.get("delta") or {}
        answer = delta.get("content") or choice.get("text")
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        calls = delta.get("tool_calls")
        ids = choice.get("token_ids")
        if choice.get("finish_reason"):
            result["finish"] = str(choice["finish_reason"])
        shown = bool(answer or thought or calls)
        # Ids tell of a step that shows nothing: a mark such as <think> that the parser takes away,
        # half a character, the end of the text.
        if not (shown or ids):
            continue
        stamps.append(round(since, 6))
        tokens.append(len(ids or ()))
        if shown and result["ttft"] is None:
            result["ttft"] = round(since, 6)
        if result["ttfo"] is None and (answer or calls):
            result["ttfo"] = round(since, 6)
        texts.extend(part for part in (thought, answer) if part)
        if calls:
            result["text_bytes"] += len(json.dumps(calls))
    if result["error"] is None and not done and result["finish"] is None:
        result["error"] = (
            "the stream ended in the middle"
            if seen
            else f"the reply holds no events: {_reason(reply)[:120]}"
        )
    if any(tokens):
        # In such a stream an event without ids is no step: the rest of what an earlier one held, or
        # a parser's last word.
        steps = [(stamp, count) for stamp, count in zip(stamps, tokens, strict=True) if count]
        result["stamps"] = [stamp for stamp, _ in steps]
        result["tokens"] = [count for _, count in steps]
    else:
        result["stamps"] = stamps
    result["events"] = seen
    text = "".join(texts)
    result["text_bytes"] += len(sound(text).encode())
    result["text"] = text if keep_text else ""


def _choice(data: bytes, result: dict[str, Any]) -> Any:
    """Return the first choice of an event; None where it has none. Its usage, or what is wrong with
    it, is put into the result.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        result["error"] = f"an event is not JSON: {data[:120].decode('utf-8', 'replace')}"
        return None
    if not isinstance(value, dict) or "error" in value or value.get("object") == "error":
        result["error"] = f"the stream says: {_message(value)}"
        return None
    if isinstance(value.get("usage"), dict):
        result["usage"] = value["usage"]
    choices = value.get("choices")
    return choices[0] if choices else None


def _reason(reply: Reply) -> str:
    """Return what an error's body says."""
    body = b"".join(data for _, data in _bodies(reply))
    try:
        if reply.mode == "chunked":
            body = Dechunker().feed(body)
        return _message(json.loads(body))
    except (ValueError, RecursionError):
        return " ".join(body.decode("utf-8", "replace").split())[:200] or "no reply"


def _message(value: Any) -> str:
    error = value.get("error", value) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


# ---- the load


async def run(
    job: dict[str, Any], finished: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """Send the requests of a job and collect their records.

    A job's keys: `host`, `port`, `tls`, `path`, `headers`, `bodies` (JSON texts, sent in order),
    `slots` (so many at a time, released together), `arrivals_s` (open loop instead: when each is
    sent, seconds from the start), `seconds` (none is begun later), `timeout_s` (silence after which
    a request is given up), `whole_s` (the same for a reply that never ends; four silences where it
    is not given), `keep_text`. After as many failures in a row as twice the slots, at least eight,
    it sends no more.

    Returns:
        `records`, and about the client itself: `begin` (clock), `cpu_s` while it measured,
            `parse_cpu_s` afterwards, `reads`, `lag_p99_s` (how late the loop was), `clock_apart_s`
            (by how much the time of day went further than the clock), `interrupted`.
    """
    return await _Run(job, finished).result()


def _requests(job: dict[str, Any]) -> list[bytes]:
    """Return the job's requests, each whole: head and body."""
    lines = [
        f"POST {job['path']} HTTP/1.1",
        f"Host: {job['host']}:{job['port']}",
        "Content-Type: application/json",
    ]
    lines += [f"{name}: {value}" for name, value in job.get("headers", {}).items()]
    prefix = "\r\n".join([*lines, "Content-Length: "]).encode()
    bodies = [text.encode() for text in job["bodies"]]
    return [prefix + str(len(body)).encode() + b"\r\n\r\n" + body for body in bodies]


class _Run:
    """One job under way. Made inside a running event loop."""

    def __init__(self, job: dict[str, Any], finished: Callable[[int], None]):
        self.job, self.finished = job, finished
        self.context = ssl.create_default_context() if job.get("tls") else None
        self.timeout = float(job.get("timeout_s") or 300)
        self.whole = float(job.get("whole_s") or 4 * self.timeout)
        self.requests = _requests(job)
        self.following = iter(range(len(self.requests)))
        self.replies: list[Reply] = []
        self.active: dict[Connection, Reply] = {}
        self.opened_ever: list[Connection] = []
        self.lags: list[float] = []
        self.stop = asyncio.Event()
        self.failures, self.enough = 0, max(8, 2 * job["slots"])
        self.begin = 0.0
        self.until: float | None = None
        if job.get("stoppable"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.stop.set)

    async def connect(self) -> Connection:
        """Open a connection to the server; 30 seconds at most."""
        host = self.job["host"]
        _, connection = await asyncio.wait_for(
            asyncio.get_running_loop().create_connection(
                Connection,
                host,
                self.job["port"],
                ssl=self.context,
                server_hostname=host if self.context else None,
            ),
            30,
        )
        self.opened_ever.append(connection)
        return connection

    async def ask(
        self, connection: Connection, index: int, slot: int, scheduled: float | None = None
    ) -> Connection:
        """Send a request and wait for its reply. Return the connection to use next."""
        reply = Reply(index, slot, scheduled)
        for last in (False, True):
            if not connection.usable:
                try:
                    connection = await self.connect()
                except (OSError, TimeoutError) as error:
                    reply.begin = clock()
                    reply.error = f"no connection: {error or type(error).__name__}"
                    break
            self.active[connection] = reply
            await connection.send(self.requests[index], reply)
            self.active.pop(connection, None)
            # A server may close an idle connection in the moment in which it is used again: that is
            # no failure of the request.
            if last or reply.reads or not (reply.error or "").startswith(_BROKE):
                break
            reply.error = None
        if not (self.stop.is_set() and reply.error):
            self.replies.append(reply)
            failed = reply.error is not None or reply.status != 200
            self.failures = self.failures + 1 if failed else 0
            self.finished(len(self.replies))
        return connection

    def _ends(self, at: float) -> bool:
        """Return whether a request due at `at` (clock) is not sent any more."""
        late = self.until is not None and at >= self.until
        return self.stop.is_set() or self.failures >= self.enough or late

    async def closed(self, slot: int, connection: Connection) -> None:
        """Send one request after the other."""
        for index in self.following:
            if self._ends(clock()):
                return
            connection = await self.ask(connection, index, slot)

    async def opened(self, pool: list[Connection]) -> None:
        """Send each request when it is due, however many are under way."""
        free = list(pool)
        tasks = []
        stopped = asyncio.ensure_future(self.stop.wait())

        async def one(index: int, at: float) -> None:
            connection = free.pop() if free else Connection()
            free.append(await self.ask(connection, index, 0, at))

        try:
            for index, offset in zip(self.following, self.job["arrivals_s"], strict=False):
                at = self.begin + offset
                if (wait := at - clock()) > 0:
                    await asyncio.wait([stopped], timeout=wait)
                if self._ends(at):
                    break
                tasks.append(asyncio.ensure_future(one(index, at)))
            await asyncio.gather(*tasks)
        finally:
            stopped.cancel()

    async def watch(self) -> None:
        """Note how late the loop is; give up silent replies; end when the parent is gone."""
        parent = os.getppid()
        patience = min(1, self.timeout / 2)
        last_look = clock()
        while True:
            due = clock() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            now = clock()
            self.lags.append(now - due)
            if self.stop.is_set():
                for connection in list(self.active):
                    connection.close()
            if now - last_look > patience:
                last_look = now
                if os.getppid() != parent:
                    os._exit(1)
                self._give_up(now, patience)

    def _give_up(self, now: float, patience: float) -> None:
        for connection, reply in list(self.active.items()):
            silent = now - (reply.reads[-1][0] if reply.reads else reply.begin)
            if silent > patience and connection.complete():
                connection._finish()
            elif silent > self.timeout:
                connection.give_up(f"silent for {self.timeout:g} s")
            elif now - reply.begin > self.whole:
                connection.give_up(f"no end after {self.whole:g} s")

    async def result(self) -> dict[str, Any]:
        """Send the requests and return what `run` returns."""
        job = self.job
        pool = await asyncio.gather(*(self.connect() for _ in range(job["slots"])))
        gc.collect()
        gc.freeze()
        gc.disable()
        begin_cpu, self.begin, begin_day = time.process_time(), clock(), time.time()
        self.until = self.begin + job["seconds"] if job.get("seconds") else None
        watcher = asyncio.ensure_future(self.watch())
        try:
            if job.get("arrivals_s") is not None:
                await self.opened(pool)
            else:
                await asyncio.gather(*(self.closed(n, c) for n, c in enumerate(pool)))
        finally:
            watcher.cancel()
        cpu = time.process_time() - begin_cpu
        apart = time.time() - begin_day - (clock() - self.begin)
        for connection in self.opened_ever:
            connection.close()
        await asyncio.sleep(0)
        begin_parse = time.process_time()
        records = [record(reply, job.get("keep_text", True)) for reply in self.replies]
        lags = sorted(self.lags)
        outcome = {
            "records": records,
            "begin": self.begin,
            "cpu_s": round(cpu, 6),
            "parse_cpu_s": round(time.process_time() - begin_parse, 6),
            "reads": sum(len(reply.reads) for reply in self.replies),
            "events": sum(r["events"] for r in records),
            "lag_p99_s": round(lags[int(0.99 * len(lags))], 6) if lags else None,
            "clock_apart_s": round(apart, 6),
            "interrupted": self.stop.is_set(),
        }
        gc.enable()
        return outcome


def main() -> None:
    """Read jobs, one JSON a line, until standard input ends."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for line in sys.stdin:
        job = json.loads(line)
        job["stoppable"] = True

        def finished(count: int) -> None:
            os.write(1, b'{"finished": %d}\n' % count)

        try:
            answer = asyncio.run(run(job, finished))
        except (OSError, ValueError, TimeoutError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
