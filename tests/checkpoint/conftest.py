"""Small checkpoints to read, and a hub of our own that serves them."""

import http.server
import json
import re
import struct
import threading
from collections.abc import Mapping

import pytest

WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4, "F8_E8M0": 1}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """A file with these tensors, all zero."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = WIDTH[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}
LAYER = "model.layers.0."
PLAIN = {
    "model.embed_tokens.weight": ("BF16", (64, 32)),
    LAYER + "self_attn.q_proj.weight": ("BF16", (32, 32)),
    LAYER + "mlp.down_proj.weight": ("BF16", (32, 64)),
    LAYER + "input_layernorm.weight": ("BF16", (32,)),
    "lm_head.weight": ("BF16", (64, 32)),
}


class Hub(http.server.ThreadingHTTPServer):
    """As much of the hub as reading headers takes."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.refuse: tuple[int, str] | None = None
        self.sent = 0
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.listing: bytes | None = None
        self.redirect = ""

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.server.sent += len(body)

    def do_GET(self):
        self.server.asked.append(
            f"{self.command} {self.path} {self.headers.get('Range') or ''}".strip()
        )
        self.server.tokens.append(self.headers.get("authorization"))
        if self.server.redirect and not self.headers["Host"].startswith("localhost"):
            self._answer(307, Location=self.server.redirect + self.path)
            return
        if self.server.refuse:
            status, code = self.server.refuse
            self._answer(status, b"{}", **({"X_Error_Code": code} if code else {}))
            return
        if self.path.startswith("/api/models/"):
            if re.search(r"/revision/(?!main|v1)", self.path):
                self._answer(404, b"{}", X_Error_Code="RevisionNotFound")
                return
            if self.server.listing is not None:
                self._answer(200, self.server.listing)
                return
            files = [
                {"rfilename": name, "size": len(data)} for name, data in self.server.files.items()
            ]
            body = json.dumps(
                {
                    "id": "ORG/MODEL",
                    "modelId": "ORG/MODEL",
                    "sha": COMMIT,
                    "siblings": files,
                    "tags": [],
                }
            ).encode()
            self._answer(200, body, Content_Type="application/json")
            return
        file = self.path.split("?")[0].rpartition(f"/resolve/{COMMIT}/")[2]
        data = self.server.files.get(file)
        if data is None:
            self._answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
            return
        common = {"ETag": f'"{len(data):x}{file}"', "X_Repo_Commit": COMMIT}
        match = re.fullmatch(
            r"bytes=(\d+)-(\d+)", self.headers.get("Range") or self.headers.get("range") or ""
        )
        if match and self.command == "GET":
            self._answer(206, data[int(match[1]) : int(match[2]) + 1], **common)
        elif self.command == "HEAD":
            self.send_response(200)
            for name, value in {"Content-Length": str(len(data)), **common}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
        else:
            self._answer(200, data, **common)

    do_HEAD = do_GET  # noqa: N815 (http.server's name)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A running hub; its cache of config files is the test's own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    server = Hub()
    server.files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors": safetensors(PLAIN),
    }
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def api(hub, tmp_path):
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.address, token=False)
