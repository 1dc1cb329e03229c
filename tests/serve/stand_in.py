"""A stand-in for `vllm serve` in tests of what surrounds an engine: starts in a moment, answers the
few paths that readiness asks.

STAND_IN_MODE chooses how it misbehaves: `dies` (ends with status 3 after a log line), `hangs`
(never opens its port), `ignores-term`, `fatal-line` (prints a fatal line and lingers), `step-fails` (prints what a worker says
whose step failed, and goes on), `forks`
(starts a child that leaves the process group, and one that stays), `shares` (its child holds shared
memory, OpenMP's mark and a socket), `no-tools`, `no-vector`, `late`
(as vLLM does, binds its port at once and listens when its model is loaded, here when the file
STAND_IN_LOADED exists; a failure to listen does not end it), `embeds` and `not-there` (have no
completions), `refuses` (answers 500 to them). Three are as ready as the one without a mode, and
worse: `changed` (another token for sure), `no-agent` (refuses the tool of an agent), `slow`. While the file STAND_IN_FROZEN exists no token comes;
the counters still move if it holds `busy`. It has made 7 tokens, or as many as STAND_IN_TOKENS
says, which no stream adds to.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODE = os.environ.get("STAND_IN_MODE", "")
ARGUMENTS = sys.argv[1:]
NAME = ARGUMENTS[ARGUMENTS.index("--served-model-name") + 1]
HEADLESS = "--headless" in ARGUMENTS
HOST = "" if HEADLESS else ARGUMENTS[ARGUMENTS.index("--host") + 1]
PORT = 0 if HEADLESS else int(ARGUMENTS[ARGUMENTS.index("--port") + 1])


SHARES = """
import os, socket, time
from multiprocessing import get_context, shared_memory
lock = get_context("spawn").Lock()
block = shared_memory.SharedMemory(create=True, size=4096)
mark = f"/dev/shm/__KMP_REGISTERED_LIB_{os.getpid()}_{os.getuid()}"
open(mark, "w").close()
path = os.environ["VLLM_RPC_BASE_PATH"] + "/socket"
socket.socket(socket.AF_UNIX).bind(path)
semaphore = "/dev/shm/sem." + lock._semlock.name.lstrip("/")
print(f"left: /dev/shm/{block.name} {mark} {semaphore} {path}", flush=True)
time.sleep(600)
"""
FROZEN = Path(os.environ.get("STAND_IN_FROZEN", "/nowhere"))
BASE = {"id": "x", "model": NAME, "created": 0}
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
tokens = int(os.environ.get("STAND_IN_TOKENS", "7"))
TOKEN = "token_id:2" if MODE == "changed" else "token_id:1"
STEP_S = 0.3 if MODE == "slow" else 0.02  # from a stream's first piece to the next


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def begin(self, length, status=200, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def reply(self, value, status=200, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.begin(len(body), status, kind)
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            return self.reply(b"")
        if self.path == "/metrics":
            if FROZEN.exists() and FROZEN.read_text() == "busy":
                tokens_made(1)
            running = int(FROZEN.exists())
            text = f'vllm:generation_tokens_total{{engine="0"}} {float(tokens)}\n'
            text += f'vllm:num_requests_running{{engine="0"}} {float(running)}\n'
            return self.reply(text.encode(), kind="text/plain")
        if self.headers.get("Authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            return self.reply({"error": "Unauthorized"}, 401)
        return self.reply({"data": [{"id": NAME}]})

    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/audio/transcriptions":
            return self.reply({"text": "a hum" if b"RIFF" in sent and b"WAVE" in sent else 7})
        body = json.loads(sent)
        if self.path == "/v1/embeddings":
            data = [] if MODE == "no-vector" else [{"index": 0, "embedding": [0.25] * 3}]
            return self.reply({"object": "list", "data": data, "model": NAME})
        if self.path == "/v1/rerank":
            scores = [
                {"index": n, "relevance_score": 1 / (n + 1)}
                for n, _ in enumerate(body["documents"])
            ]
            return self.reply({"results": scores})
        while FROZEN.exists():
            time.sleep(0.05)
        if self.path == "/v1/completions":
            status = {"embeds": 404, "not-there": 501, "refuses": 500}.get(MODE, 200)
            tokens_made(status == 200)
            logprobs = {"tokens": [TOKEN], "token_logprobs": [-0.1], "top_logprobs": [{}]}
            choice = {"index": 0, "text": "b", "logprobs": logprobs}
            return self.reply({"choices": [choice]}, status)
        if MODE == "no-agent" and b"read_file" in sent:
            return self.reply({"message": "no such tool"}, 400)
        return self.stream(body) if body.get("stream") else self.chat(body)

    def stream(self, body):
        deltas = [{"content": word} for word in ("Hello", " there")]
        if body.get("tools") and MODE != "no-tools":
            deltas = [{"tool_calls": [{"index": 0, **CALL}]}]
        chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks[-1]["choices"][0]["finish_reason"] = (
            "tool_calls" if "tool_calls" in deltas[-1] else "stop"
        )
        tokens_made(0 if "STAND_IN_TOKENS" in os.environ else 2)
        read = 1 + len(body["messages"][-1]["content"]) // 4
        usage = {"prompt_tokens": read, "completion_tokens": 2, "total_tokens": read + 2}
        chunks.append({"choices": [], "usage": usage})
        lines = [json.dumps({**BASE, "object": "chat.completion.chunk", **one}) for one in chunks]
        events = [f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"]]
        self.begin(sum(map(len, events)), kind="text/event-stream")
        self.wfile.write(events[0])
        time.sleep(STEP_S)
        self.wfile.write(b"".join(events[1:]))

    def chat(self, body):
        message = {"role": "assistant", "content": "Hello there"}
        if body.get("tools") and MODE != "no-tools":
            message["tool_calls"] = [CALL]
        if body.get("response_format"):
            message["content"] = '{"answer": "yes"}'
        if "12*17" in body["messages"][0]["content"]:
            message["reasoning"] = "I multiply."
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
            "message": message,
            "logprobs": {"content": [{"token": TOKEN, "logprob": -0.1, "top_logprobs": []}]},
        }
        self.reply({**BASE, "object": "chat.completion", "choices": [choice]})


def tokens_made(number):
    global tokens
    tokens += number


signal.signal(
    signal.SIGTERM, lambda *_: os._exit(0)
)  # a container's first process has no default for it
print("INFO stand-in", *ARGUMENTS, flush=True)
if MODE == "dies":
    print("ValueError: the model can't be loaded", flush=True)
    sys.exit(3)
if MODE == "fatal-line":
    print("OSError: [Errno 98] Address already in use", flush=True)
if MODE == "step-fails":
    print("(Worker_TP1 pid=9) ERROR 11-28 10:00:00 [m.py:1] WorkerProc hit an exception.")
    print("(Worker_TP1 pid=9) ERROR 11-28 10:00:00 [m.py:1] torch.OutOfMemoryError: CUDA out of")
    print("memory. Tried to allocate 2.00 GiB", flush=True)
if HEADLESS or MODE in ("hangs", "fatal-line"):
    time.sleep(600)
if MODE == "ignores-term":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if MODE == "forks":
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    print(f"child {child.pid}", flush=True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if MODE == "shares":
    subprocess.Popen([sys.executable, "-c", SHARES])
server = ThreadingHTTPServer((HOST, PORT), Handler, bind_and_activate=False)
server.server_bind()
if MODE == "late":
    print("bound", flush=True)
    while not Path(os.environ["STAND_IN_LOADED"]).exists():
        time.sleep(0.05)
try:
    server.server_activate()
except OSError as error:
    print(f"INFO {error}", flush=True)
    time.sleep(600)
server.serve_forever()
