"""What is sent to Docker for a launch, and what the user is told of it: pure, so that every recipe
can be looked at.
"""

import json

import pytest
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats import docker_run
from sparkbook.recipes import Launch, Serve
from sparkbook.recipes.launch import Container
from sparkbook.serve.stack import CAPABILITIES, Choices, given, pinned_reference, request
from sparkbook.serve.watchdog import Limits

KEY = {"VLLM_API_KEY": "the-key-of-the-test"}
CONTAINED = [recipe for recipe in recipes.all() if recipe.image]


def ask(launch, secrets=KEY, choices=None, memory=None, **changes):
    if changes:
        launch = launch.model_copy(
            update={"container": launch.container.model_copy(update=changes)}
        )
    chosen = choices or Choices()
    return request(given(launch, "x"), secrets, home="/home/me", choices=chosen, memory=memory)


def rules(asked):
    return [note.rule for note in asked.notes]


@pytest.fixture
def line():
    return docker_run.read(
        "docker run -d --gpus all --ipc=host --shm-size 16g --ulimit memlock=-1 --ulimit"
        " stack=67108864:67108864 -p 8000:8000 -v ~/vllm:/models -v cache:/root/.cache -v"
        " /srv/tok:/tok:ro -e HF_HOME=/models -e HF_TOKEN -e MODE=fast"
        " nvcr.io/nvidia/vllm:26.04-py3 vllm serve some/model --port 8000"
    )


def test_everything_the_line_says_is_sent(line):
    asked = ask(line, {**KEY, "HF_TOKEN": "hf-secret"})
    body = asked.body
    assert body["Image"] == "nvcr.io/nvidia/vllm:26.04-py3"
    assert body["Cmd"] == [
        *("vllm", "serve", "some/model", "--port", "8000", "--allowed-origins", "[]"),
    ]
    assert body["Env"] == [
        "HF_HOME=/models",
        "HF_TOKEN=hf-secret",
        "MODE=fast",
        "VLLM_API_KEY=the-key-of-the-test",
    ]
    config = body["HostConfig"]
    assert config["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]}
    assert [(mount["Type"], mount["Source"], mount["ReadOnly"]) for mount in config["Mounts"]] == [
        ("bind", "/home/me/vllm", False),
        ("volume", "cache", False),
        ("bind", "/srv/tok", True),
    ]
    assert (
        config["DeviceRequests"][0] | {"Count": -1, "Capabilities": [["gpu"]]}
        == config["DeviceRequests"][0]
    )
    assert (config["IpcMode"], config["ShmSize"], config["Privileged"]) == ("host", 16 << 30, False)
    assert (config["CapDrop"], config["CapAdd"]) == (["ALL"], list(CAPABILITIES))
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert config["Ulimits"] == [
        {"Name": "memlock", "Soft": -1, "Hard": -1},
        {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
    ]


def test_only_the_folder_of_a_cache_is_made(line):
    store, cache, _ = ask(line).body["HostConfig"]["Mounts"]
    assert "BindOptions" not in store and "BindOptions" not in cache
    store, cache = ask(recipes.load("qwen3.6-35b-a3b-nvfp4").launch).body["HostConfig"]["Mounts"]
    assert (store["Target"], cache["Target"]) == ("/models", "/cache")
    assert "BindOptions" not in store and cache["BindOptions"] == {"CreateMountpoint": True}


@pytest.mark.parametrize(
    ("args", "chats"), [({}, True), ({"runner": "pooling"}, False), ({"task": "embed"}, False)]
)
def test_a_line_of_ones_own_is_asked_to_chat_unless_it_pools(args, chats):
    launch = Launch(image="a/b:1", entrypoint="vllm-serve", serve=Serve(model="m", args=args))
    assert given(launch, "x").claims.chat is chats


def test_no_secret_is_shown(line):
    asked = ask(line, {**KEY, "HF_TOKEN": "hf-secret"})
    shown = json.dumps(asked.calls()) + repr(asked) + str(list(asked.notes))
    assert "hf-secret" not in shown and "the-key-of-the-test" not in shown
    assert "HF_TOKEN=***" in shown and "MODE=fast" in shown


def test_the_callers_other_variables_stay_at_home(line):
    asked = ask(line, {**KEY, "AWS_SECRET_ACCESS_KEY": "x", "MODE": "slow"})
    assert not [
        entry for entry in asked.body["Env"] if entry.startswith("AWS") or entry == "MODE=slow"
    ]
    assert "DOCK207" in rules(asked)  # HF_TOKEN is not set


@pytest.mark.parametrize(
    ("ports", "choices", "host", "port", "rule"),
    [
        (["8000:8000"], Choices(), "127.0.0.1", 8000, "DOCK202"),
        (["192.168.1.7:8080:8000"], Choices(), "127.0.0.1", 8080, "DOCK202"),
        (["8000:8000"], Choices(expose=True), "0.0.0.0", 8000, "DOCK203"),
        (["127.0.0.1:8080:8000"], Choices(), "127.0.0.1", 8080, None),
        (["127.0.0.1:8080:8000"], Choices(port=9000), "127.0.0.1", 9000, None),
        ([], Choices(), "127.0.0.1", 8000, None),
    ],
)
def test_published_on_loopback_unless_asked(line, ports, choices, host, port, rule):
    asked = ask(line, choices=choices, ports=ports)
    assert asked.body["HostConfig"]["PortBindings"] == {
        "8000/tcp": [{"HostIp": host, "HostPort": str(port)}]
    }
    assert (asked.host, asked.port) == (host, port)
    assert [found for found in rules(asked) if found in ("DOCK202", "DOCK203")] == (
        [rule] if rule else []
    )


def test_host_network_is_said_and_bound_to_loopback(line):
    asked = ask(line, ports=[], network="host")
    assert "DOCK201" in rules(asked) and "PortBindings" not in asked.body["HostConfig"]
    assert asked.body["Cmd"][-2:] == ["--host", "127.0.0.1"]
    script = line.serve.model_copy(update={"before": ["pip install scipy"]})
    shell = ask(line.model_copy(update={"serve": script}), ports=[], network="host")
    assert shell.body["Cmd"][-1].endswith("--host 127.0.0.1")
    own = ask(
        Launch(image="avarok/x:1", entrypoint="wrapper", serve=Serve(command=[])),
        ports=[],
        network="host",
    )
    assert "DOCK203" in rules(own) and "DOCK202" not in rules(
        own
    )  # nothing can be promised of an image's own script
    wide = ask(line, ports=[], network="host", choices=Choices(expose=True))
    assert wide.body["Cmd"][-2:] == ["--host", "0.0.0.0"] and "DOCK203" in rules(wide)
    with pytest.raises(SparkbookError, match="change that one"):
        ask(line, ports=[], network="host", choices=Choices(port=9))


def test_restart_policy_is_earned():
    launch = Launch(
        image="a/b:1",
        entrypoint="vllm-serve",
        container=Container(restart="unless-stopped"),
        serve=Serve(model="m"),
    )
    first = ask(launch)
    assert first.body["HostConfig"]["RestartPolicy"] == {"Name": "no"}  # while it is waited for
    assert first.restart == {"Name": "on-failure", "MaximumRetryCount": 3} and "DOCK208" in rules(
        first
    )
    assert first.calls()[-1] == ("POST /containers/x/update", {"RestartPolicy": first.restart})
    kept = ask(launch, choices=Choices(restart_always=True))
    assert kept.restart == {"Name": "unless-stopped"} and "DOCK208" not in rules(kept)
    assert (
        ask(launch, choices=Choices(watched=False)).body["HostConfig"]["RestartPolicy"]
        == first.restart
    )


def test_offline_makes_the_store_read_only(line):
    asked = ask(line, choices=Choices(offline=True))
    assert [mount["ReadOnly"] for mount in asked.body["HostConfig"]["Mounts"]] == [
        True,
        False,
        True,
    ]
    assert "HF_HUB_OFFLINE=1" in asked.body["Env"] and "DOCK205" not in rules(asked)
    assert "DOCK205" in rules(ask(line))


@pytest.mark.parametrize(
    ("gpus", "count", "devices"),
    [
        ("all", -1, None),
        ("2", 2, None),
        ("device=0,1", 0, ["0", "1"]),
        ("device=GPU-3a2", 0, ["GPU-3a2"]),
    ],
)
def test_gpus(line, gpus, count, devices):
    (wanted,) = ask(line, gpus=gpus).body["HostConfig"]["DeviceRequests"]
    assert (wanted["Count"], wanted["DeviceIDs"]) == (count, devices)


def test_gpus_that_make_no_sense(line):
    with pytest.raises(SparkbookError, match="device=0,1"):
        ask(line, gpus="first")


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ("vllm/vllm-openai:v0.28.0", "vllm/vllm-openai:v0.28.0"),
        ("vllm/vllm-openai", "vllm/vllm-openai:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        (f"localhost:5000/a:1@sha256:{'0' * 64}", f"localhost:5000/a@sha256:{'0' * 64}"),
    ],
)
def test_what_is_pulled(image, pulled):
    assert pinned_reference(image) == pulled


def test_the_fingerprint_tells_stacks_apart_and_no_secret(line):
    one = ask(line)
    assert (
        one.stack
        == ask(line, {"VLLM_API_KEY": "another"}).stack
        == ask(line, choices=Choices(watched=False)).stack
    )
    others = [
        ask(line, choices=Choices(port=1)),
        ask(line, gpus="2"),
        ask(line, {**KEY, "HF_TOKEN": "x"}),
        ask(line.model_copy(update={"image": "other:1"})),
        ask(line, choices=Choices(restart_always=True)),
    ]
    assert len({one.stack, *(other.stack for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("recipe", CONTAINED, ids=lambda recipe: recipe.id)
def test_every_recipe_can_be_asked_for(recipe):
    asked = request(given(recipe), KEY, home="/home/me")
    inside = recipe.serve.args.get("port", 8000) if recipe.serve.command is None else asked.port
    assert asked.body["HostConfig"]["PortBindings"][f"{inside}/tcp"] == [
        {"HostIp": "127.0.0.1", "HostPort": str(recipe.launch.port)}
    ]
    assert asked.body["HostConfig"]["DeviceRequests"] and not asked.body["HostConfig"]["Privileged"]
    assert "DOCK206" in rules(asked) and ("DOCK204" in rules(asked)) is (
        recipe.image.digest is None
    )
    assert "~" not in json.dumps(asked.body["HostConfig"])


def test_what_can_be_given(tmp_path):
    file = tmp_path / "line.sh"
    file.write_text(
        "docker run --name mine -p 8000:8000 vllm/vllm-openai:v0.28.0 --model some/model\n"
    )
    assert given(str(file)).name == "mine"
    assert given("vllm serve some/model --port 9").launch.port == 9
    assert given("gpt-oss-20b").recipe.id == "gpt-oss-20b"
    assert given("vllm serve a/b", "other").name == "other"
    with pytest.raises(SparkbookError, match="no launch line in this text"):
        given("rm -rf /")
    with pytest.raises(SparkbookError, match="there is no recipe"):
        given("nosuch")
    with pytest.raises(SparkbookError, match="can't be a container's name"):
        given("gpt-oss-20b", "a b")


def test_no_web_page_may_read_what_a_server_answers():
    line = "docker run -p 8000:8000 vllm/vllm-openai:v0.28.0 --model some/model"
    assert ask(docker_run.read(line)).body["Cmd"][-2:] == ["--allowed-origins", "[]"]
    own = ask(docker_run.read(line + " --allowed-origins '[\"http://my.page\"]'")).body["Cmd"]
    assert own.count("--allowed-origins") == 1 and own[-1] == '["http://my.page"]'


@pytest.mark.parametrize("memory", [None, 128 << 30])
def test_the_memory_limit_leaves_what_the_watchdog_keeps_free(memory):
    line = docker_run.read("docker run vllm/vllm-openai:v0.28.0 --model a/b")
    asked = ask(line, memory=memory)
    limit = asked.body["HostConfig"].get("Memory")
    assert limit == (memory - Limits.of_host(memory).floor if memory else None)
    assert ("DOCK209" in rules(asked)) == (memory is not None)
    assert asked.stack == ask(line).stack
