"""What `sparkbook client` prints: complete, quoted for who reads it, without the key."""

from __future__ import annotations

import json
import subprocess
from datetime import date

import pytest
import yaml
from command_line import ENV, run
from sparkbook import clients
from sparkbook.clients import Settings
from sparkbook.errors import SparkbookError
from sparkbook.recipes import Launch, Serve
from sparkbook.serve.process import ProcessEngine

EACH = pytest.mark.parametrize("client", clients.every().values(), ids=lambda one: one.name)
PLAIN = Settings(url="http://127.0.0.1:8000", model="qwen3", key_file="/keys/spark.key")
ODD = Settings(url="https://spark.lan", model="a b/c", key_file="/my keys/spark key")


@EACH
@pytest.mark.parametrize("settings", [PLAIN, ODD], ids=["plain", "odd"])
def test_the_settings_are_whole_and_can_be_read(client, settings):
    blocks = client.blocks(settings)
    whole = "".join(block.text for block in blocks)
    values = settings.values()
    assert str(values["base_url"]) in whole or str(values["root_url"]) in whole
    assert settings.model in whole or client.name == "open-webui"  # which asks for the list
    assert settings.key_file in whole
    for block in blocks:
        if block.syntax == "json":
            json.loads(block.text)
        elif block.syntax == "yaml":
            yaml.safe_load(block.text)
        elif block.syntax == "python":
            compile(block.text, client.name, "exec")
        elif block.syntax == "shell":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


@EACH
def test_an_entry_names_its_page_and_when_it_was_read(client):
    assert client.source.startswith("https://") and client.date <= date.today()


def test_the_agents_that_anthropics_api_serves_get_an_address_without_v1():
    for name in ("claude-code", "anthropic"):
        text = "".join(block.text for block in clients.find(name).blocks(PLAIN))
        assert '"http://127.0.0.1:8000"' in text or "URL=http://127.0.0.1:8000\n" in text


@pytest.mark.parametrize("model", ['a"b', "a'b", "a\\b", "$(id)", "a\nb", "`id`"])
def test_a_name_that_would_leave_its_quotes_is_refused(model):
    with pytest.raises(SparkbookError, match="settings can't hold"):
        Settings(url="http://127.0.0.1:8000", model=model, key_file="/k")


def test_the_prefix_cache_was_measured_for_every_client_that_runs():
    record, head, rows = clients.prefix_rows()
    run_here = {name for name, one in clients.every().items() if one.tried} - {"curl"}
    assert set(record["clients"]) == run_here and [row[0] for row in rows] == [*record["clients"]]
    for name, run_ in record["clients"].items():
        assert run_["package"] == clients.find(name).tried, "record it again"
        assert all(turn["cached"] <= turn["tokens"] for turn in run_["turns"])
    assert len(head) == len(rows[0])


def test_the_list_and_the_errors():
    assert "open-webui" in run("client").stdout
    assert {one["client"] for one in json.loads(run("client", "--json").stdout)["clients"]} == {
        *clients.every()
    }
    assert "Unknown client 'emacs'. There are: open-webui" in run("client", "emacs", check=2).stderr
    assert "need the NAME" in run("client", "--url", "http://127.0.0.1:1", check=2).stderr
    assert "write an address" in run("client", "llm", "--url", "spark:1", check=2).stderr
    assert "does not answer" in run("client", "llm", "--url", "http://127.0.0.1:9", check=2).stderr


def test_a_server_elsewhere_needs_only_its_name():
    line = ("client", "opencode", "--url", "http://127.0.0.1:9", "--model", "qwen3")
    answer = json.loads(run(*line, "--json").stdout)
    assert answer["settings"]["key_file"].endswith("/spark.key")
    (block,) = answer["blocks"]
    assert json.loads(block["text"])["model"] == "spark/qwen3" and block["file"] == "opencode.json"


def test_the_one_server_that_runs_here_is_meant(stand_in_engine, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ENV, "SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert "no server runs here" in run("client", "llm", check=2).stderr
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    launch = Launch(serve=Serve(args={"served-model-name": "small", "max-model-len": 1024}))
    with ProcessEngine(launch, model, name="small") as one:
        one.wait_ready()
        shown = run("client", "openai").stdout
        key = one.key_file.read_text()
        assert key not in shown and str(one.key_file) in shown and f"{one.endpoint.url}/v1" in shown
        assert (
            "serves small, not other"
            in run(
                *("client", "llm", "--url", one.endpoint.url, "--model", "other"), check=2
            ).stderr
        )
        with ProcessEngine(launch, model, name="small2") as two:
            two.wait_ready()
            assert "several servers run here" in run("client", "openai", check=2).stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1"])
@pytest.mark.parametrize(
    "words",
    [
        ("client", "litellm", "--model", "m", "--url"),
        ("check-tools",),
        ("bench",),
        ("equal", "http://127.0.0.1:9"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_no_address_is_one_line(words, url):
    said = run(*words, url, check=2).stderr
    assert "Traceback" not in said and "write an address such as" in said
