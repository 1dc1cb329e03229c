"""The part of a recipe that a launch line can say."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sparkbook.recipes import Container, Launch, Serve, entrypoint_of
from sparkbook.recipes.launch import canonical
from sparkbook.recipes.names import SHORT_FLAGS, option_name
from sparkbook.util.secret import is_secret


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("vllm/vllm-openai:nightly", "vllm-serve"),
        ("docker.io/vllm/vllm-openai:v0.19.0", "vllm-serve"),
        ("ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130", "vllm-serve"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "command"),
        ("vllm-node:latest", "command"),
        ("ghcr.io/aeon-7/vllm-dflash:latest", "wrapper"),
        ("avarok/dgx-vllm-nvfp4-kernel:v22", "wrapper"),
        ("vllm-dflash-tq:latest", "wrapper"),
    ],
)
def test_what_an_image_starts(image: str, kind: str) -> None:
    assert entrypoint_of(image) == kind


@pytest.mark.parametrize(
    ("given", "one"),
    [
        ("8", 8),
        ("-1", -1),
        ("0.85", 0.85),
        ("1e-05", 1e-05),
        ("08", "08"),
        ("0.850", "0.850"),
        ("1.", "1."),
        (["a"], "a"),
        (["1", "2"], [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ('{"a"', '{"a"'),
        ("[1]", "[1]"),
        ("", ""),
        (True, True),
        ("nan", "nan"),
    ],
)
def test_one_form_of_a_value(given: Any, one: Any) -> None:
    assert canonical(given) == one and type(canonical(given)) is type(one)


@settings(deadline=None, derandomize=True, database=None)
@given(
    st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
)
def test_the_one_form_is_stable_and_survives_being_a_word(value: Any) -> None:
    once = canonical(value)
    assert canonical(once) == once
    assert isinstance(once, dict) or canonical(str(once)) == once


def test_options_have_one_spelling() -> None:
    serve = Serve(args={"max_model_len": "4096", "tp": 2, "speculative_config.num_x": 1})
    assert serve.args == {
        "max-model-len": 4096,
        "tensor-parallel-size": 2,
        "speculative-config.num_x": 1,
    }
    assert all(option_name(long) == long for long in SHORT_FLAGS.values())


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"--port": 1}, "without dashes"),
        ({"enable-x": False}, "no-enable-x"),
        ({"x": []}, "needs a value"),
        ({"x": ""}, "needs a value"),
        ({"x": [""]}, "needs a value"),
        ({"x": [True, 1]}, "a list holds"),
        ({"max_len": 1, "max-len": 2}, "given twice"),
        ({"api-key": "s3cret"}, "VLLM_API_KEY"),
    ],
)
def test_arguments_are_checked(args: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Serve(args=args)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"ports": ["8000"]}, "ADDRESS:HOST:CONTAINER"),
        ({"ports": ["localhost:8000:8000"]}, "published port"),
        ({"volumes": ["/x"]}, "HOST:CONTAINER"),
        ({"volumes": ["~/x:relative"]}, "HOST:CONTAINER"),
        ({"volumes": ["~/x:/y:rx"]}, "HOST:CONTAINER"),
        ({"ulimits": {"memlock": "unlimited"}}, "SOFT:HARD"),
        ({"ulimits": {"Mem Lock": "1"}}, "SOFT:HARD"),
        ({"shm_size": "big"}, "is not a size"),
        ({"restart": "sometimes"}, "restart"),
        ({"name": "-x"}, "name"),
        ({"network": "host", "ports": ["8000:8000"]}, "nothing to publish"),
    ],
)
def test_containers_are_checked(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Container.model_validate(values)


@pytest.mark.parametrize("env", [{"A B": "1"}, {"": "1"}, {"1A": "1"}, {"É": "1"}])
def test_names_of_variables_are_checked(env: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="environment variable"):
        Launch(env=env)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "NGC_API_KEY", "db_password", "CLIENT_SECRET"]
)
def test_secrets_are_refused(name: str) -> None:
    assert is_secret(name)
    with pytest.raises(ValidationError, match="secret"):
        Launch(env={name: "x"})
    assert Launch(env={name: None}).env == {name: None}


def test_ordinary_names_are_no_secrets() -> None:
    assert not any(
        map(
            is_secret,
            [
                "HF_HOME",
                "MAX_NUM_BATCHED_TOKENS",
                "TOKENIZERS_PARALLELISM",
                "VLLM_ATTENTION_BACKEND",
            ],
        )
    )


@pytest.mark.parametrize(
    ("launch", "port"),
    [
        (Launch(), 8000),
        (Launch(container=Container(ports=["127.0.0.1:9000:8000"])), 9000),
        (Launch(container=Container(ports=["9001:8000/tcp"])), 9001),
        (Launch(container=Container(network="host"), serve=Serve(args={"port": 9002})), 9002),
        (Launch(env={"PORT": "9003"}), 9003),
    ],
)
def test_the_port_of_a_client(launch: Launch, port: int) -> None:
    assert launch.port == port


def test_the_same_start_without_a_container() -> None:
    launch = Launch.model_validate(
        {
            "image": "vllm/vllm-openai:v0.19.0",
            "entrypoint": "vllm-serve",
            "container": {
                "gpus": "all",
                "volumes": ["~/vllm:/models", "~/drafts:/models/drafts:ro"],
            },
            "env": {"HF_HOME": "/models", "HF_TOKEN": None, "MODE": "/modelsx"},
            "serve": {
                "model": "/models/m",
                "args": {
                    "host": "0.0.0.0",
                    "chat-template": "/models/t.jinja",
                    "speculative-config": {"model": "/models/drafts/d", "n": [3, "/models"]},
                },
                "before": ["pip install scipy"],
            },
        }
    )
    here = launch.on_host()
    assert here.image is None and here.container == Container() and here.entrypoint == "command"
    assert here.env == {"HF_HOME": "~/vllm", "MODE": "/modelsx"}
    assert here.serve.model == "~/vllm/m" and here.serve.before == ["pip install scipy"]
    assert here.serve.args == {
        "host": "127.0.0.1",
        "chat-template": "~/vllm/t.jinja",
        "speculative-config": {"model": "~/drafts/d", "n": [3, "~/vllm"]},
    }
    assert here.on_host() == here
    assert launch.serve.args["host"] == "0.0.0.0", "the launch itself stays as it is"


@pytest.mark.parametrize(
    ("host", "bound"), [(None, "127.0.0.1"), ("::", "127.0.0.1"), ("192.0.2.7", "192.0.2.7")]
)
def test_a_process_listens_on_loopback_unless_told_an_address(host: str | None, bound: str) -> None:
    assert (
        Launch(serve=Serve(args={"host": host} if host else {})).on_host().serve.args["host"]
        == bound
    )
