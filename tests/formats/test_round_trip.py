"""What is written is read back as the same launch."""

import json
import re

import pytest
from hypothesis import given, settings
from launches import EXAMPLE, NASTY, arguments, launches, model
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats import FORMATS, compose, docker_run, shell
from sparkbook.formats.words import serve_groups
from sparkbook.recipes import Launch, Serve

LINES = {"docker": docker_run, "compose": compose, "shell": shell}
"""The formats that hold a whole launch and nothing else."""
some = settings(deadline=None, derandomize=True, max_examples=80, database=None)


def expected(name: str, launch: Launch) -> Launch:
    return launch.on_host() if name == "shell" else launch


@pytest.mark.parametrize("name", ["docker", "compose"])
@some
@given(launch=launches())
def test_random_launch_in_a_container(name: str, launch: Launch) -> None:
    text = LINES[name].write(launch)
    assert LINES[name].read(text) == launch


@some
@given(launch=launches().filter(lambda launch: launch.entrypoint != "wrapper"))
def test_random_launch_on_the_host(launch: Launch) -> None:
    assert shell.read(shell.write(launch)) == launch.on_host()


@some
@given(model=model, args=arguments)
def test_option_order_is_kept(model: str, args: dict) -> None:
    launch = Launch(image="nvcr.io/nvidia/vllm:26.04-py3", serve=Serve(model=model, args=args))
    for name in LINES:
        read = LINES[name].read(LINES[name].write(launch))
        assert [key for key in read.serve.args if key != "host"] == list(launch.serve.args)


@pytest.mark.parametrize("name", LINES)
def test_every_recipe_of_the_catalogue(name: str) -> None:
    checked = 0
    for recipe in recipes.all():
        launch = recipe.launch
        if (name == "shell" and launch.entrypoint == "wrapper") or (
            name != "shell" and launch.image is None
        ):
            with pytest.raises(SparkbookError, match="write it as"):
                LINES[name].write(launch)
            continue
        text = LINES[name].write(launch)
        assert LINES[name].read(text) == expected(name, launch), recipe.id
        checked += 1
    assert checked > 0


@pytest.mark.parametrize("name", LINES)
def test_example(name: str) -> None:
    assert LINES[name].read(LINES[name].write(EXAMPLE)) == expected(name, EXAMPLE)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("word", NASTY)
def test_each_nasty_string(name: str, word: str) -> None:
    serve = Serve(model="m", args={"x": word, "y": {"z": word}, "chat-template": word})
    launch = Launch(
        image="nvcr.io/nvidia/vllm:26.04-py3", env={"A": word, "B": f"x{word}"}, serve=serve
    )
    assert LINES[name].read(LINES[name].write(launch)) == expected(name, launch)


@pytest.mark.parametrize(
    "word",
    [
        "8000",
        "0.85",
        "1e5",
        "0o14",
        "0x1f",
        "1:30",
        "y",
        "no",
        "on",
        "true",
        "null",
        "-1",
        ".5",
        ".inf",
        "2026-01-01",
    ],
)
def test_compose_quotes_what_some_reader_takes_for_something_else(word: str) -> None:
    text = FORMATS["compose"].write(Launch(image="i", env={"A": word}, serve=Serve(model="m")))
    assert re.search(rf"""A: (["']){re.escape(word)}\1$""", text, re.MULTILINE)


def test_rendering_of_values() -> None:
    serve = Serve(
        model="m",
        args={
            "flag": True,
            "mapping": {"a": [1, "é"]},
            "several": ["x", "y z"],
            "negative": -1,
            "dashed": "-x",
            "number": 0.85,
            "middleware": ["a", "b"],
        },
    )
    assert serve_groups(serve) == [
        ["m"],
        ["--flag"],
        ["--mapping", '{"a":[1,"é"]}'],
        ["--several", "x", "y z"],
        ["--negative", "-1"],
        ["--dashed=-x"],
        ["--number", "0.85"],
        ["--middleware", "a"],
        ["--middleware", "b"],
    ]


def test_words_that_no_line_can_say_are_refused() -> None:
    for args, complaint in [
        ({"x": ["a", "--b"]}, "option of its own"),
        ({"x": {"a": float("inf")}}, "JSON"),
        ({"x": "a\0"}, "NUL"),
    ]:
        with pytest.raises(SparkbookError, match=complaint):
            FORMATS["docker"].write(Launch(image="i", serve=Serve(model="m", args=args)))


@pytest.mark.parametrize("command", ["", "a &&", "a && b", "echo 'x", "true # so", "a;", "\0"])
def test_commands_before_have_to_be_whole(command: str) -> None:
    with pytest.raises(SparkbookError, match="before"):
        FORMATS["docker"].write(Launch(image="i", serve=Serve(model="m", before=[command])))


def test_formats_are_named() -> None:
    assert list(FORMATS)[:3] == list(LINES)
    assert all(format.name == name and format.title for name, format in FORMATS.items())


def test_a_process_has_no_container_line() -> None:
    for name in ("docker", "compose"):
        with pytest.raises(SparkbookError, match="shell"):
            LINES[name].write(Launch(serve=Serve(model="m")))


def test_a_wrapper_has_no_bare_line() -> None:
    launch = Launch(image="avarok/x:1", entrypoint="wrapper", serve=Serve(command=["serve", "m"]))
    with pytest.raises(SparkbookError, match=r"docker or compose"):
        FORMATS["shell"].write(launch)
    assert FORMATS["docker"].write(launch).endswith("avarok/x:1 \\\n  serve \\\n    m\n")


def test_a_wrapper_is_not_given_arguments_it_would_not_see() -> None:
    with pytest.raises(SparkbookError, match=r"serve\.command"):
        FORMATS["docker"].write(
            Launch(image="avarok/x:1", entrypoint="wrapper", serve=Serve(model="m"))
        )


def test_json_survives_as_json() -> None:
    text = FORMATS["docker"].write(
        Launch(image="i", serve=Serve(model="m", args={"x": {"a": "b"}}))
    )
    assert json.dumps({"a": "b"}, separators=(",", ":")) in text
