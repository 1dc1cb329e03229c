"""Names and values that are secret, and those that only look so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sparkbook.releases import TABLE
from sparkbook.util.secret import by_name, by_value, is_secret

SECRET_NAMES = [
    "HF_TOKEN", "VLLM_API_KEY", "API_KEY_2", "DB_PASS", "PASSPHRASE", "REGISTRY_AUTH",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GITHUB_PAT", "apiKey", "hf-token",
    "ssl-keyfile-password", "DATABASE_PASSWORD_OLD", "X_CREDENTIALS_JSON", "SESSION_COOKIE",
    "authorization", "OPENAI_APIKEY",
]  # fmt: skip
OTHER_NAMES = [
    "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "SPARKBOOK_KEY_FILE", "tokenizer",
    "ssl-keyfile", "SSH_AUTH_SOCK", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "KEYBOARD", "max-num-seqs",
    "long-prefill-token-threshold", "PASSTHROUGH", "return-tokens-as-token-ids", "HOME", "",
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
