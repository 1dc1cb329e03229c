"""Names and values that are secret, and those that only look so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sparkbook.cli import app
from sparkbook.formats import FORMATS
from sparkbook.releases import TABLE
from sparkbook.util.secret import by_name, by_value, hide, is_secret, without_secrets
from typer.main import get_command

SECRET_NAMES = [
    "HF_TOKEN", "VLLM_API_KEY", "API_KEY_2", "DB_PASS", "PASSPHRASE", "REGISTRY_AUTH",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GITHUB_PAT", "apiKey", "hf-token",
    "ssl-keyfile-password", "DATABASE_PASSWORD_OLD", "X_CREDENTIALS_JSON", "SESSION_COOKIE",
    "authorization", "OPENAI_APIKEY",
]  # fmt: skip
OTHER_NAMES = [
    "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "SPARKBOOK_KEY_FILE", "tokenizer",
    "ssl-keyfile", "SSH_AUTH_SOCK", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "KEYBOARD", "max-num-seqs",
    "long-prefill-token-threshold", "PASSTHROUGH", "detach-keys", "return-tokens-as-token-ids", "HOME", "",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secrets_name(name: str) -> None:
    assert by_name(name)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_another_name(name: str) -> None:
    assert not by_name(name)


def test_of_vllms_own_names_only_the_secrets_are_secret() -> None:
    table = json.loads(Path(TABLE).read_text("utf-8"))
    names = {*table["options"], *table["envs"]}
    assert {name for name in names if by_name(name)} == {
        "api-key",
        "hf-token",
        "allow-credentials",  # a switch, which has no value
        "VLLM_API_KEY",
        "S3_ACCESS_KEY_ID",
        "S3_SECRET_ACCESS_KEY",
    }


@pytest.mark.parametrize(
    "value",
    [
        "http://user:p@ss@proxy:3128",
        "hf_abcdefghijklmnop",
        "nvapi-abcdefghijk",
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIx",
    ],
)
def test_a_value_that_is_secret_under_any_name(value: str) -> None:
    assert by_value(value) and is_secret("HTTPS_PROXY", value)


def test_a_switch_is_no_secret() -> None:
    assert not is_secret("VLLM_DISABLE_AUTH", "1")
    assert not is_secret("HTTPS_PROXY", "http://proxy:3128")
    assert is_secret("DB_PASS", "1234")


@pytest.mark.parametrize(
    "text",
    [
        "--api-key *** --port 8000", "pad_token_id: 151643", "eos_token='<|im_end|>'",
        "ssh://nvidia@spark-2", "docker run --user 1000:1000", "cache_key=abc", "--hf-token-path /x",
    ],
)  # fmt: skip
def test_what_is_not_hidden(text: str) -> None:
    assert hide(text) == text


def test_a_document_without_its_secrets() -> None:
    kept = {
        "env": [{"name": "A", "value": "1"}, {"name": "DB_PASS"}],
        "valueFrom": {"HF_TOKEN": {"secretKeyRef": {"name": "x", "key": "hf_token"}}},
        "pad_token_id": 151643, "eos_token": "<|im_end|>", "labels": ["a=b"], "empty": [],
        "none": None,
    }  # fmt: skip
    secret = {
        "env": [{"name": "A", "value": "1"}, {"name": "DB_PASS", "value": "x"}],
        "labels": ["a=b", "auth.token=abcdefgh"], "password": 12345678, "--secret": ["a"],
    }  # fmt: skip
    assert without_secrets(kept) == kept
    assert without_secrets({**kept, **secret}) == kept
    assert without_secrets({"kind": "Secret", "data": {"a": "eA=="}}) == {"kind": "Secret"}


CANARY = "canary7Canary"
LINE = "docker run -d --gpus all {} -p 8000:8000 vllm/vllm-openai:v0.28.0 --model openai/gpt-oss-20b {}"
WRITTEN = [
    *(f"-e {name}={CANARY}" for name in ("DB_PASS", "API_KEY_2", "PASSPHRASE", "REGISTRY_AUTH")),
    *(
        f"-e HTTPS_PROXY=http://u:{CANARY}@h:1",
        f"-e A=hf_{CANARY}",
        f"-e A_TOKEN={CANARY} -e A_TOKEN=b",
    ),
    *(f"--password {CANARY}", f"--label auth.token={CANARY}", f"--build-arg HF_TOKEN={CANARY}"),
]
OPTIONS = [
    *(f"--{name} {CANARY}" for name in ("api-key", "hf-token", "ssl-keyfile-password", "apikey")),
    *(f"--api-key={CANARY}", f"--api-ke {CANARY}", f"--api-key {CANARY} --api-key {CANARY}2"),
    *(f"--foo hf_{CANARY}", f"--otlp-traces-endpoint http://u:{CANARY}@h", f"-- --token {CANARY}"),
    *(f'--additional-config \'{{"a": {{"api_key": "{CANARY}"}}}}\'', f"--foo.password {CANARY}"),
]


@pytest.mark.parametrize(
    "line", [*(LINE.format(one, "") for one in WRITTEN), *(LINE.format("", one) for one in OPTIONS)]
)
def test_no_verb_prints_a_secret_of_a_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "line.txt"
    file.write_text(line, "utf-8")
    verbs = [["lint"], ["lint", "--json"], ["plan"], ["plan", "--json"], ["serve", "--dry-run"]]
    verbs += [["convert", "--to", name] for name in FORMATS]
    for words in verbs:
        done = CliRunner().invoke(get_command(app), [*words, str(file)])
        assert CANARY not in done.output, words
        assert done.exit_code in (0, 1, 2), done.exception
