"""`sparkbook record`: nothing secret and no name gets into a bundle, and what is in it says the
same as before.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from sparkbook import host, logs
from sparkbook.bundle import Scrubber, record
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.host.machine import read_machine, recorded
from sparkbook.metrics import Metrics
from typer.main import get_command

DATA = Path(__file__).parent / "data"
LOGS = sorted((DATA / "logs").glob("*.log"))

SECRET = "canary-0f3c9-secret-value"
CANARIES = {
    "token": ("HF_TOKEN=hf_canaryCANARYcanary01234567", "hf_canary"),
    "key given": ("vllm serve m --api-key canary-topsecret-1", "topsecret"),
    "key with equals": ("--hf-token=canarytokenvalue9", "canarytoken"),
    "key in arguments": (
        "non-default args: {'api_key': ['canary-in-list'], 'port': 8000}",
        "canary-in-list",
    ),
    "key in JSON": ('{"VLLM_API_KEY": "canaryjsonvalue"}', "canaryjson"),
    "bearer": ("Authorization: Bearer canary.bearer", "canary.bearer"),
    "openai": ("sk-canaryCANARY0123456789", "sk-canary"),
    "ngc": ("NGC nvapi-canary-0123456789", "nvapi-canary"),
    "address with password": ("proxy http://bob:canarypw@10.1.2.3:3128/", "canarypw"),
    "query": ("GET /x?access_token=canaryquery1&y=2", "canaryquery1"),
    "private key": (
        "-----BEGIN OPENSSH PRIVATE KEY-----\ncanarykeybytes\n-----END OPENSSH PRIVATE KEY-----",
        "canarykeybytes",
    ),
    "cut private key": ("-----BEGIN RSA PRIVATE KEY-----\ncanarykeybytes", "canarykeybytes"),
    "jwt": ("eyJhbGciOiJIUzI1.eyJjYW5hcnkxMjM0.c2lnbmF0dXJl", "eyJjYW5hcnkx"),
    "known": (f"started with {SECRET}!", SECRET),
    "host": ("node canary-host.lab.example said", "canary-host"),
    "host as id": ("(Canary-Host_1)", "Canary-Host"),
    "user": ("owner canaryuser, uid 1000", "canaryuser"),
    "home": ("/home/canaryuser2/vllm/x and /Users/canary3/y", "canary"),
    "own home": ("/srv/homes/canary4/vllm", "canary4"),
    "mail": ("canary5@example.com", "canary5"),
    "address": ("rank 0 at 10.77.3.14:29500", "10.77.3.14"),
    "address 6": ("fe80::1a2b:3c4d:5e6f:7788 up", "1a2b"),
    "hardware address": ("link 4c:bb:47:12:34:56", "4c:bb:47"),
    "gpu": ("GPU-6f2a1b3c-1111-2222-3333-444455556666", "6f2a1b3c"),
    "word": ("model acmecorp-private", "acmecorp"),
    "key of digits": ("env {'VLLM_API_KEY': '12345678901234'}", "12345678901234"),
    "docker's config": ('"auths": {"x": {"auth": "Y2FuYXJ5OmNhbmFyeQ=="}}', "Y2FuYXJ5"),
    "curl": ("curl -u canaryname:canarypass http://x", "canarypass"),
    "cookie": ("Set-Cookie: sid=canarycookie; Path=/", "canarycookie"),
    "header": ("'Authorization': 'Token canaryheader'", "canaryheader"),
    "passphrase": ("PASSPHRASE=canarywords", "canarywords"),
    "short password": ("DB_PASS=cnry", "cnry"),
    "second line": ('API_KEY="canary-first\ncanary-second"', "canary-second"),
    "password with @": ("http://bob:pa@canaryrest@proxy:1/", "canaryrest"),
    "known, as in an address": ("x=with%2Fslash%20canary", "slash%20canary"),
    "known, as in JSON": ('{"x": "with/slash canary\\"quote"}', "slash canary"),
    "inside another field": ("args: env=HF_TOKEN=canaryinner1", "canaryinner1"),
}


@pytest.fixture
def scrubber() -> Scrubber:
    return Scrubber(
        [SECRET, "with/slash canary", 'with/slash canary"quote'],
        ["canary-host", "canaryuser", "acmecorp"],
        "/srv/homes/canary4",
    )


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_taken_out(scrubber: Scrubber, name: str) -> None:
    text, canary = CANARIES[name]
    assert canary in text
    assert canary not in scrubber.scrub(f"before\n{text}\nafter")
    assert scrubber.scrub(text).strip(), "something stands in its place"


def test_what_is_no_secret_stays(scrubber: Scrubber) -> None:
    text = (
        "INFO 11-27 23:51:27 [core.py:1231] max_num_batched_tokens=8192, pad_token_id: 0,"
        " 'api_key': None, 127.0.0.1:8000 [::1]:8000\ncuda 13.0, driver 580.95.05, 0000:01:00.0,"
        " <unused_token>, c10::Error, KV cache key: bf16, sha256:0123456789abcdef\n"
    )
    assert scrubber.scrub(text) == text


def test_the_same_name_has_the_same_stand_in(scrubber: Scrubber) -> None:
    text = scrubber.scrub("10.0.0.1 10.0.0.2 10.0.0.1 canary-host acmecorp CANARY-HOST")
    assert text == "192.0.2.1 192.0.2.2 192.0.2.1 name1 name2 name1"


@pytest.mark.slow
@pytest.mark.parametrize("file", LOGS, ids=lambda file: file.stem)
def test_a_log_says_the_same_afterwards(scrubber: Scrubber, file: Path) -> None:
    text = file.read_text("utf-8", errors="replace")
    before, after = logs.diagnose(text), logs.diagnose(scrubber.scrub(text))
    assert [(f.rule, f.severity) for f in after.findings] == [
        (f.rule, f.severity) for f in before.findings
    ]
    assert scrubber.scrub(scrubber.scrub(text)) == scrubber.scrub(text)


def bundle(out: Path, scrubber: Scrubber) -> list[str]:
    engine = LOGS[0].read_text("utf-8", errors="replace") + "".join(
        f"{text}\n" for text, _ in CANARIES.values()
    )
    scrape = (DATA / "metrics" / "h100-0.24.0-ngram-after.txt").read_text("utf-8")
    return record(
        out,
        logs={"canary-host": engine},
        metrics={"after": scrape},
        host=host.check(recorded()).to_dict,
        release="0.32.0",
        scrubber=scrubber,
    )


def test_a_bundle_is_test_data(tmp_path: Path, scrubber: Scrubber) -> None:
    files = bundle(tmp_path / "mine", scrubber)
    assert files == ["about.json", "host.json", "logs/name1.log", "metrics/after.txt"]
    assert (
        sorted(
            path.relative_to(tmp_path / "mine").as_posix()
            for path in (tmp_path / "mine").rglob("*.*")
        )
        == files
    )
    everything = "".join((tmp_path / "mine" / name).read_text("utf-8") for name in files)
    assert [canary for _, canary in CANARIES.values() if canary in everything] == []
    assert (
        host.check(
            read_machine((tmp_path / "mine/host.json").read_text("utf-8"), "host.json")
        ).verdict
        == host.check(recorded()).verdict
    )
    assert Metrics.parse((tmp_path / "mine/metrics/after.txt").read_text("utf-8"))
    about = json.loads((tmp_path / "mine/about.json").read_text("utf-8"))
    assert about["vllm"] == "0.32.0"
    assert logs.diagnose(LOGS[0]).primary.rule in about["files"]["logs/name1.log"]["rules"]


def test_an_archive_depends_on_its_texts_alone(tmp_path: Path, scrubber: Scrubber) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        bundle(
            tmp_path / name / "mine.tar.gz",
            Scrubber([SECRET], ["canary-host", "canaryuser", "acmecorp"], "/srv/homes/canary4"),
        )
    assert (tmp_path / "a/mine.tar.gz").read_bytes() == (tmp_path / "b/mine.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "a/mine.tar.gz") as archive:
        assert archive.getnames() == [
            f"mine/{name}"
            for name in ("about.json", "host.json", "logs/name1.log", "metrics/after.txt")
        ]
        assert {(entry.mtime, entry.uname) for entry in archive} == {(0, "")}


@pytest.mark.parametrize("name", ["mine", "mine.tar.gz"])
def test_nothing_is_replaced(tmp_path: Path, scrubber: Scrubber, name: str) -> None:
    (tmp_path / name).write_text("before", "utf-8")
    with pytest.raises(SparkbookError, match="is there already"):
        bundle(tmp_path / name, scrubber)
    assert (tmp_path / name).read_text("utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_cannot_be_taken_out_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrubber = Scrubber([SECRET])
    monkeypatch.setattr(scrubber, "scrub", lambda text: text)
    with pytest.raises(SparkbookError, match="a secret is still in") as error:
        record(tmp_path / "mine", logs={"engine": SECRET}, scrubber=scrubber)
    assert SECRET not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    line = ["record", str(tmp_path / "mine.tgz"), "--log", "-", "--no-host", "--also", "acmecorp"]
    done = CliRunner().invoke(
        get_command(app), line, input=f"ValueError: no {SECRET} for acmecorp\n"
    )
    assert done.exit_code == 0, done.output
    with tarfile.open(tmp_path / "mine.tgz") as archive:
        member = archive.extractfile("mine/logs/engine.log")
        assert member is not None
        assert member.read() == b"ValueError: no REMOVED for name1\n"
    empty = CliRunner().invoke(get_command(app), ["record", str(tmp_path / "none"), "--no-host"])
    assert "nothing to record" in str(empty.exception)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["-", "a.", "--x", "token", "a@", "eyJ", "://", "key=", "'", "::"])
def test_no_text_makes_the_search_slow(scrubber: Scrubber, part: str) -> None:
    """300 kB of one piece: what took a minute and more for each when searched quadratically."""
    scrubber.scrub(part * (300_000 // len(part)))


def test_a_switch_is_no_secret_and_its_value_stays() -> None:
    given = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "true", "MY_API_KEY": "b7Hs92kQ"}
    scrubber = Scrubber.of_this_machine(environ=given)
    assert scrubber.scrub('"ok": true, b7Hs92kQ') == '"ok": true, REMOVED'
