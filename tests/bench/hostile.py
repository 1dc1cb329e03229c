"""A server that behaves badly on purpose: the address says how.

`http://127.0.0.1:PORT/WHERE/HOW` is the address of one such server. WHERE: `all` (each path
misbehaves), `chat` (only completions do), or a number (so many completions are answered well before
they do). HOW: a key of `MODES`.
"""

import asyncio
import gzip
import itertools
import json
import threading

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIP_S = 0.02


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value):
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def text_event(number=0):
    return event({"choices": [{"index": 0, "delta": {"content": "word "}, "token_ids": [number]}]})


async def forever(writer, pieces, pause_s=DRIP_S):
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)


async def silent(writer):
    await asyncio.sleep(3600)


async def heads(writer):
    writer.write(HEAD)
    await asyncio.sleep(3600)


async def drips(writer):
    """One byte after the other of a reply that is never whole."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    await forever(writer, itertools.repeat(b" "))


async def drips_head(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    await forever(writer, itertools.repeat(b"x"))


async def endless(writer):
    writer.write(HEAD)
    await forever(writer, map(text_event, itertools.count()), 0.005)


async def breaks(writer):
    writer.write(HEAD + text_event() + text_event())
    await writer.drain()
    writer.transport.abort()


def answers(status, body, kind="application/json"):
    async def answer(writer):
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (status, kind.encode(), len(body), body)
        )

    return answer


def streams(*events):
    async def stream(writer):
        writer.write(HEAD + b"".join(events) + chunk(b""))

    return stream


async def no_chunks(writer):
    writer.write(HEAD + b"this is no chunk size\r\nnor this\r\n\r\n")
    await writer.drain()
    writer.transport.abort()


async def negative(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")
    await writer.drain()
    writer.transport.abort()


PACKED = gzip.compress(b" " * 4_000_000)


async def packed(writer):
    """A reply that is a thousand times as long as what is sent, though nobody asked for that."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
        % (len(PACKED), PACKED)
    )


def beyond(header, status=b"200"):
    """An event stream with a header of one's own, closed at its end."""

    async def answer(writer):
        writer.write(b"HTTP/1.1 %s OK\r\n%s\r\n\r\n{}" % (status, header.encode("latin-1")))
        await writer.drain()
        writer.transport.abort()

    return answer


MODES = {
    "silent": silent,
    "heads": heads,
    "drips": drips,
    "drips-head": drips_head,
    "endless": endless,
    "breaks": breaks,
    "key": answers(b"401 Unauthorized", b'{"error": "Unauthorized"}'),
    "missing": answers(b"404 Not Found", b'{"detail": "Not Found"}'),
    "broken": answers(b"500 Internal Server Error", b"Internal Server Error"),
    "nan": answers(b"200 OK", b"NaN"),
    "page": answers(b"200 OK", b"<html>Welcome</html>", "text/html"),
    "list": answers(b"200 OK", b"[[[]]]"),
    "odd-stream": streams(event({"choices": {"0": 1}}), event({"choices": [7], "usage": [1]})),
    "error-stream": streams(event({"error": {"message": "out of memory"}})),
    "no-chunks": no_chunks,
    "negative": negative,
    "packed": packed,
    "codec": answers(b"200 OK", b"00", "text/plain; charset=hex"),
    "superscript": beyond("Content-Length: \xb2"),
    "digits": beyond("Content-Length: " + "9" * 5000),
    "superstatus": beyond("X: y", b"\xb2"),
    "many": streams(
        text_event(),
        event({"choices": [], "usage": {"completion_tokens": 10**400}}),
        chunk(b"data: [DONE]\n\n"),
    ),
}


async def good_chat(writer, body):
    """A short right answer."""
    count = body.get("max_tokens", 8)
    if not body.get("stream"):
        step = {"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}
        choice = {
            "index": 0,
            "finish_reason": "length",
            "message": {"role": "assistant", "content": "a"},
            "logprobs": {"content": [step]},
        }
        await answers(b"200 OK", json.dumps({"id": "1", "choices": [choice]}).encode())(writer)
        return
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": count}}
    await streams(*map(text_event, range(count)), event(usage), chunk(b"data: [DONE]\n\n"))(writer)


class Hostile:
    """The server, in a thread of this process."""

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.counts = {}
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self.handle, "127.0.0.1", 0, backlog=512), self.loop
        ).result()
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        def end():
            self.server.close()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(end)
        self.thread.join(60)
        self.loop.close()

    def url(self, where, how):
        return f"http://127.0.0.1:{self.port}/{where}/{how}"

    async def handle(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ", 2)[1]
                length = next(
                    (
                        int(line[15:])
                        for line in head.lower().split("\r\n")
                        if line.startswith("content-length:")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length) or b"{}")
                _, where, how, rest = path.split("/", 3)
                await self.answer(writer, where, how, rest, body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, where, how, path, body):
        completion = path.endswith("completions")
        if where == "all" or (where == "chat" and completion):
            await MODES[how](writer)
        elif completion:
            seen = self.counts[where, how] = self.counts.get((where, how), 0) + 1
            await (good_chat(writer, body) if seen <= int(where) else MODES[how](writer))
        elif path == "v1/models":
            await answers(b"200 OK", b'{"data": [{"id": "m"}]}')(writer)
        elif path == "metrics":
            await answers(
                b"200 OK",
                b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n",
                "text/plain",
            )(writer)
        else:
            await answers(b"200 OK", b"{}")(writer)
