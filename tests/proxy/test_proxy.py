"""`sparkbook proxy`: what it writes, who keeps a key, and an error for each wrong use."""

from __future__ import annotations

import json

import pytest
from command_line import ENV, run
from sparkbook import proxy
from sparkbook.errors import SparkbookError
from sparkbook.proxy import Wanted


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setitem(ENV, "SPARKBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.delitem(ENV, "VLLM_API_KEY", raising=False)
    return tmp_path / "state"


def made(kind, *more, check=0):
    return run("proxy", kind, "--host", "spark.lan", *more, "--json", check=check)


@pytest.mark.parametrize("kind", proxy.KINDS)
def test_the_files_are_private_and_no_key_is_printed(kind, state):
    answer = made(kind, "--user", "alice", "--user", "bob")
    text = run("proxy", kind, "--host", "spark.lan").stdout
    value = json.loads(answer.stdout)
    folder = state / "proxy"
    keys = [file.read_text() for file in folder.rglob("*.key")]
    keys.append((state / "api-key").read_text())
    assert len(set(keys)) == 3 and list(value["users"]) == ["alice", "bob"]
    secrets = (folder / proxy.KEYS).read_text()
    assert all(key in secrets for key in keys)
    assert not [key for key in keys if key in answer.stdout + text + value["configuration"]]
    for file in [folder / proxy.KEYS, *folder.rglob("*.key")]:
        assert file.stat().st_mode & 0o077 == 0
    assert value["url"] == "https://spark.lan" and value["trust"] in text
    assert all(step in text for step in value["steps"])


@pytest.mark.parametrize("kind", proxy.KINDS)
def test_users_keep_their_keys_and_one_is_taken_away(kind, tmp_path):
    wanted = Wanted(kind=kind, host="spark.lan")
    _, first = proxy.write(wanted, "s", add=["alice", "bob"], folder=tmp_path)
    alice, bob = (first[name].read_text() for name in ("alice", "bob"))
    _, second = proxy.write(wanted, "s", add=["carol"], without=["bob"], folder=tmp_path)
    assert list(second) == ["alice", "carol"] and second["alice"].read_text() == alice
    text = (tmp_path / proxy.KEYS).read_text()
    assert alice in text and bob not in text and not first["bob"].exists()


@pytest.mark.parametrize("kind", proxy.KINDS)
def test_a_user_who_is_taken_away_and_added_gets_a_new_key(kind, tmp_path):
    wanted = Wanted(kind=kind, host="spark.lan")
    _, files = proxy.write(wanted, "s", add=["alice"], folder=tmp_path)
    lost = files["alice"].read_text()
    proxy.write(wanted, "s", add=["alice"], without=["alice"], folder=tmp_path)
    text = (tmp_path / proxy.KEYS).read_text()
    assert files["alice"].read_text() in text and lost not in text


def test_the_commands_are_right_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = Wanted(kind="nginx", host="spark.lan")
    made, files = proxy.write(wanted, "s", add=["alice"], folder=proxy.Path("-mine"))
    assert made == tmp_path / "-mine" and files["alice"].is_absolute()
    assert f"{tmp_path}/-mine/sparkbook.conf" in " ".join(wanted.steps(made))


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [("ann", 'a" x; "b', "no bearer token has"), ("a b;", "abc", "'a b;' is no user")],
)
def test_a_users_file_made_by_hand_can_not_leave_its_quotes(name, key, message, tmp_path):
    wanted = Wanted(kind="nginx", host="spark.lan")
    proxy.write(wanted, "s", add=["bob"], folder=tmp_path)
    file = tmp_path / f"users/{name}.key"
    file.write_text(key.replace(" ", ""))
    file.chmod(0o600)
    with pytest.raises(SparkbookError, match=message):
        proxy.write(wanted, "s", folder=tmp_path)


def test_a_point_in_a_users_key_stands_for_a_point_only():
    assert "Bearer a\\.b$" in Wanted(kind="nginx", host="x").keys_text({"ann": "a.b"}, "s")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "apache"}, "Unknown proxy 'apache'. There are: caddy, nginx"),
        ({"host": "https://spark.lan"}, "without https:// and port"),
        ({"host": "spark.lan:443"}, "without https:// and port"),
        ({"host": "a {\n}"}, "without https:// and port"),
        ({"host": "192.168.1.999"}, "without https:// and port"),
        ({"host": "12345"}, "without https:// and port"),
        ({"host": "a" * 61 + ".lan"}, "without https:// and port"),
        ({"upstream": "https://spark.lan"}, "the server's address on this machine"),
        ({"upstream": "http://127.0.0.1:8000/x"}, "the server's address on this machine"),
        ({"upstream": "http://127.0.0.1:99999"}, "the server's address on this machine"),
        ({"upstream": "http://[x"}, "the server's address on this machine"),
        ({"upstream": "http://a;b:8000"}, "the server's address on this machine"),
        ({"upstream": "http://spark-2:8000"}, "would cross the network to spark-2 unencrypted"),
        ({"upstream": "http://10.0.0.2:8000"}, "would cross the network to 10.0.0.2 unencrypted"),
        ({"max_body": "10"}, "write MiB, such as 32m"),
        ({"certificate": "/a.crt"}, "belong together"),
        ({"certificate": "/a b;", "certificate_key": "/b"}, "write a whole path"),
        ({"rate": 5}, "Caddy limits no rate without a plug-in"),
    ],
)
def test_what_a_configuration_cannot_hold_is_refused(given, message):
    with pytest.raises(SparkbookError, match=message):
        Wanted(**{"kind": "caddy", "host": "spark.lan"} | given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "nobody would have a key"),
        ({"add": ["../x"]}, "'../x' is no user"),
        ({"add": ["Ann"]}, "'Ann' is no user"),
        ({"add": ["ann"], "without": ["bob"]}, "bob has no key. There are: none"),
    ],
)
def test_users_that_are_none(change, message, tmp_path):
    with pytest.raises(SparkbookError, match=message):
        proxy.write(Wanted(kind="nginx", host="spark.lan"), "s", folder=tmp_path, **change)


@pytest.mark.parametrize("key", ['a"b', "a$b", "a{b}", "a\\b", "a;b"])
def test_a_servers_key_that_would_leave_its_quotes_is_refused(key):
    with pytest.raises(SparkbookError, match="no bearer token has"):
        Wanted(kind="nginx", host="spark.lan").keys_text({}, key)


def test_the_command_exits_with_2_and_one_line():
    for line in (["apache", "--host", "x"], ["caddy", "--host", "x", "--rate", "5"]):
        result = run("proxy", *line, check=2)
        assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert "--host" in run("proxy", "caddy", check=2).stderr


def test_an_own_certificate_takes_the_place_of_the_made_one():
    own = {"certificate": "/etc/ssl/spark.pem", "certificate_key": "/etc/ssl/spark.key"}
    for kind in proxy.KINDS:
        wanted = Wanted(kind=kind, host="spark.lan", **own)
        assert wanted.trust() is None and all(path in wanted.text() for path in own.values())
        assert "openssl" not in " ".join(wanted.steps(proxy.Path("/x")))
