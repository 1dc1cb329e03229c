"""A server that streams well and lies about what it streamed: the address says how.

`http://127.0.0.1:PORT/HOW` is the address of one such server, HOW a key of `LIES`: values that
replace those of an honest reply and of the counters in `/metrics`, which tell the same lie. Its own
process (`python lying.py`), standard library only; it prints its port.
"""

import asyncio
import itertools
import json

WORDS = ("gate", "river", "crown", "ledger", "marker", "canal", "north", "wind", "horse", "bell")

LIES = {
    "honest": {},
    "a-million-times": {"factor": 1_000_000},
    "three-times": {"factor": 3},
    "a-tenth": {"factor": 0.1},
    "nothing": {"factor": 0},
    "all-of-max-tokens": {"stop": 1},
    "long-prompts": {"prompt_factor": 1000},
    "cut-prompts": {"prompt_factor": 0.1},
    "cached": {"cached": 1_000_000},
    "canned": {"canned": True},
    "no-reason": {"finish": None},
    "cut-short": {"stop": 8, "count_sent": True},
    "busy": {"counted": 9},
    "other-prompts": {"prompt_counted": 9},
    "accepting": {"accepted": 5},
}
"""How, and what is changed: `factor` of the tokens streamed in `usage` and counters, `stop` after
so many tokens, `count_sent` counts only those, `prompt_factor` of the prompt's words, `counted` and
`prompt_counted` times the replies' tokens in the counters only, `accepted` of 4 drafts a step.
"""

STEP_S = 0.001


class Lies:
    """The counters of one address, and its replies."""

    def __init__(self, lie):
        self.lie = lie
        self.tokens = self.prompts = self.steps = 0
        self.texts = itertools.count()

    def metrics(self):
        values = {"generation_tokens": self.tokens, "prompt_tokens": self.prompts}
        if accepted := self.lie.get("accepted"):
            values["spec_decode_num_drafts"] = self.steps
            values["spec_decode_num_draft_tokens"] = 4 * self.steps
            values["spec_decode_num_accepted_tokens"] = accepted * self.steps
        lines = ["# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"]
        for name, value in values.items():
            lines.append(f"# TYPE vllm:{name} counter\nvllm:{name}_total {value:.0f}\n")
        return "".join(lines).encode()

    def usage(self, prompt, sent, wanted):
        lie = self.lie
        tokens = round((sent if lie.get("count_sent") else wanted) * lie.get("factor", 1))
        size = round(2 * len(prompt.split()) * lie.get("prompt_factor", 1))
        self.tokens += tokens * lie.get("counted", 1)
        self.prompts += size * lie.get("prompt_counted", 1)
        self.steps += sent
        usage = {"prompt_tokens": size, "completion_tokens": tokens, "total_tokens": size + tokens}
        if "cached" in lie:
            usage["prompt_tokens_details"] = {"cached_tokens": lie["cached"]}
        return usage


def chunk(value):
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def choice(delta, finish=None):
    return {"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


async def chat(writer, state, body):
    lie, wanted = state.lie, body["max_tokens"]
    first = 0 if lie.get("canned") else next(state.texts)
    sent = min(wanted, lie.get("stop", wanted))
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for i in range(sent):
        # Different words in every reply, and none twice in the same order.
        word = WORDS[(i * (first + 1) + i * i) % len(WORDS)]
        writer.write(chunk(choice({"content": f"{word}{first + i} "})))
        await writer.drain()
        await asyncio.sleep(STEP_S)
    usage = state.usage(body["messages"][0]["content"], sent, wanted)
    writer.write(chunk(choice({}, lie.get("finish", "length"))))
    writer.write(chunk({"choices": [], "usage": usage}))
    writer.write(chunk(b"[DONE]") + b"0\r\n\r\n")


def answer(writer, data):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(data) + data)


async def handle(reader, writer, states):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            size = head.partition("content-length:")[2].split("\r\n")[0]
            body = await reader.readexactly(int(size or 0))
            _, how, path = head.split(" ", 2)[1].split("/", 2)
            state = states[how]
            if path.endswith("completions"):
                await chat(writer, state, json.loads(body))
            elif path == "metrics":
                answer(writer, state.metrics())
            elif path == "v1/models":
                answer(writer, b'{"data": [{"id": "m"}]}')
            else:
                answer(writer, b"{}")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    states = {how: Lies(lie) for how, lie in LIES.items()}
    server = await asyncio.start_server(
        lambda reader, writer: handle(reader, writer, states), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
