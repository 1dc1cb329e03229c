"""A server that streams on a known schedule, and tells what it did: the truth that a measuring
client is held to.

Its own process (`python truth.py PORT`), standard library only. The request's body says what to do,
in `truth`: `ttft` and `step` (seconds), `pattern` (tokens of each chunk after the first, over and
over), `role` (early, first, none), `hidden` (so many tokens show no text), `reasoning` (so many
tokens are thoughts), `tools`, `ping`, `crlf`, `split` (write in pieces of so many bytes), `usage`,
`ids`, `die` (close after so many chunks), `status`, `length` (Content-Length instead of chunks),
`together` (say nothing before so many requests are there).
GET /truth returns what was written and when.
"""

import asyncio
import gc
import itertools
import json
import os
import socket
import ssl
import sys
import time
from functools import partial

TRUTH = []
DEFAULT = json.loads(os.environ.get("TRUTH_DEFAULT", "{}"))  # for clients that cannot send `truth`
STATE = {
    "running": 0,
    "drafts": 0,
    "accepted": 0,
    "generated": 0,
    "prompt": 0,
    "hits": 0,
    "unknown_fields": True,
}
BARRIERS = {}
WORDS = [f"wörd{i % 97}" for i in range(1000)]
now = time.monotonic


def sse(value, crlf):
    end = b"\r\n" if crlf else b"\n"
    return (
        b"data: "
        + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        + end
        + end
    )


def metrics():
    lines = []
    for name, kind, value in (
        ("num_requests_running", "gauge", STATE["running"]),
        ("num_requests_waiting", "gauge", 0),
        ("generation_tokens_total", "counter", STATE["generated"]),
        ("prompt_tokens_total", "counter", STATE["prompt"]),
        ("num_preemptions_total", "counter", 0),
        ("prefix_cache_queries_total", "counter", STATE["prompt"]),
        ("prefix_cache_hits_total", "counter", STATE["hits"]),
        ("spec_decode_num_drafts_total", "counter", STATE["drafts"]),
        ("spec_decode_num_draft_tokens_total", "counter", 4 * STATE["drafts"]),
        ("spec_decode_num_accepted_tokens_total", "counter", STATE["accepted"]),
    ):
        lines.append(
            f"# TYPE vllm:{name.removesuffix('_total')}"
            f' {kind}\nvllm:{name}{{engine="0",model_name="truth"}} {value}\n'
        )
    return "".join(lines).encode()


def prompt_of(body):
    """The text of the first message; other clients than ours send it in parts."""
    content = body["messages"][0]["content"]
    return (
        content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
    )


class Body:
    """A reply's body: in chunks, each written in parts of `split` bytes; or whole, with a length."""

    def __init__(self, options, writer):
        self.writer, self.split = writer, options.get("split")
        self.chunked, self.written = not options.get("length"), bytearray()

    def begin(self):
        if self.chunked:
            self.writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding:"
                b" chunked\r\n\r\n"
            )

    async def put(self, data):
        if not self.chunked:
            self.written.extend(data)
            return
        data = b"%x\r\n%s\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if not self.split:
            self.writer.write(data)
            return
        for at in range(0, len(data), self.split):
            self.writer.write(data[at : at + self.split])
            await asyncio.sleep(0.0005)

    async def end(self):
        if self.chunked:
            await self.put(b"")
            return
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            % len(self.written)
        )
        self.writer.write(head + bytes(self.written))


def event(crlf, delta, ids=None, finish=None):
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = ids
    return sse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "truth",
            "choices": [choice],
        },
        crlf,
    )


def usage_event(crlf, prompt_tokens, count):
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count,
        "total_tokens": prompt_tokens + count,
    }
    return sse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": "truth",
            "choices": [],
            "usage": usage,
        },
        crlf,
    )


def planned(body, options, count):
    """The events of a reply of `count` tokens: (tokens, bytes) each."""
    pattern = itertools.cycle(options.get("pattern") or [1])
    plan, made = [], 0
    while made < count:
        k = min(next(pattern) if plan else 1, count - made)
        text = " ".join(WORDS[(made * 7 + j) % 1000] for j in range(k)) + " "
        if made < options.get("hidden", 0):
            delta = {}
        elif made < options.get("reasoning", 0):
            delta = {"reasoning": text}
        elif options.get("tools"):
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        else:
            delta = {"content": text}
        ids = (
            list(range(made, made + k))
            if options.get("ids", True) and body.get("return_token_ids")
            else None
        )
        finish = "length" if made + k >= count else None
        plan.append((k, event(options.get("crlf"), delta, ids, finish)))
        made += k
    return plan


async def stream(body, options, writer, begin):
    count = body.get("max_tokens") or body.get("max_completion_tokens") or 16
    prompt, crlf = prompt_of(body), options.get("crlf")
    # Made before the clock runs: what is written at a moment is ready then.
    plan, out = planned(body, options, count), Body(options, writer)
    role = event(crlf, {"role": "assistant", "content": ""})
    if together := options.get("together"):
        await BARRIERS.setdefault(together, asyncio.Barrier(together)).wait()
    out.begin()
    if options.get("role", "first") == "early":
        await out.put(role)
    stamps, due, die = [], begin + options.get("ttft", 0.02), options.get("die")
    for number, (_, data) in enumerate(plan):
        if (wait := due - now()) > 0:
            await asyncio.sleep(wait)
        elif number % 8 == 0:
            await writer.drain()
            await asyncio.sleep(0)
        if number == 0 and options.get("role", "first") == "first":
            await out.put(role)
        if options.get("ping") and number % 3 == 0:
            await out.put(b": ping\r\n\r\n" if crlf else b": ping\n\n")
        stamps.append(now())
        await out.put(data)
        due += options.get("step", 0.005)
        if die is not None and number + 1 >= die:
            await writer.drain()
            writer.transport.abort()
            return
    STATE["generated"] += count
    STATE["prompt"] += len(prompt.split())
    STATE["drafts"] += len(plan) - 1
    STATE["accepted"] += count - len(plan)
    if options.get("usage", True) and (body.get("stream_options") or {}).get("include_usage"):
        await out.put(usage_event(crlf, len(prompt.split()), count))
    await out.put(b"data: [DONE]\r\n\r\n" if crlf else b"data: [DONE]\n\n")
    await out.end()
    TRUTH.append(
        {"prompt": prompt, "begin": begin, "stamps": stamps, "tokens": [k for k, _ in plan]}
    )


def send(writer, value, status="200 OK", kind="application/json"):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    writer.write(
        b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
        % (status.encode(), kind.encode(), len(data), data)
    )


async def complete(request, headers, writer, begin):
    """Answer a request for a completion, as its `truth` options say."""
    reply = partial(send, writer)
    options = request.get("truth") or DEFAULT
    if options.get("status"):
        reply(
            {
                "error": {
                    "message": "The model is not loaded",
                    "code": options["status"],
                }
            },
            f"{options['status']} Error",
        )
    elif options.get("key") and headers.get("authorization") != f"Bearer {options['key']}":
        reply({"error": "Unauthorized"}, "401 Unauthorized")
    elif options.get("strict") and "ignore_eos" in request:
        reply(
            {"error": {"message": "Unrecognized request argument: ignore_eos"}},
            "400 Bad Request",
        )
    elif not request.get("stream"):
        count = request.get("max_tokens") or request.get("max_completion_tokens") or 1
        usage = {
            "prompt_tokens": 20,
            "completion_tokens": count,
            "total_tokens": 20 + count,
        }
        message = {"role": "assistant", "content": "Paris " * count}
        reply(
            {
                "id": "x",
                "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
                "usage": usage,
            }
        )
    else:
        STATE["running"] += 1
        try:
            await stream(request, options, writer, begin)
        finally:
            STATE["running"] -= 1


async def handle(reader, writer):
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            headers = {
                k.strip().lower(): v.strip()
                for k, _, v in (line.partition(":") for line in head[1:])
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            begin = now()

            reply = partial(send, writer)
            if path == "/truth":
                reply(TRUTH)
                TRUTH.clear()
            elif path == "/metrics":
                reply(metrics(), kind="text/plain")
            elif path == "/version":
                reply({"version": "0.0.truth"})
            elif path == "/v1/models":
                reply({"data": [{"id": "truth"}]})
            elif path == "/health":
                reply(b"")
            elif method == "POST":
                await complete(json.loads(body), headers, writer, begin)
            else:
                reply({"error": "not found"}, "404 Not Found")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
    server = await asyncio.start_server(
        handle, "127.0.0.1", 0, limit=2**24, ssl=context, backlog=512
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    gc.disable()
    asyncio.run(main())
