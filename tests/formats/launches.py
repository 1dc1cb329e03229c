"""Random launches, with the strings that quoting gets wrong."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from sparkbook.recipes import Launch
from sparkbook.util.secret import by_name

NASTY = [
    "a b",
    "it's",
    'say "hi"',
    "$HOME/x",
    "${X}",
    "$(id)",
    "`id`",
    "~",
    "~/x",
    "~/x y",
    "~x",
    "a~/b",
    "a:~/b",
    "\\",
    "a\\ b",
    "\\n",
    "{a,b}",
    "{",
    "[1]",
    "a#b",
    "#c",
    "!x",
    "*",
    "&&",
    ";",
    "|",
    "<x>",
    "é",
    "日本",
    "-",
    "-x",
    "--y",
    "a=b",
    "a\nb",
    "\t",
    "%s",
    "yes",
    "null",
    "1e5",
    "0x1f",
    "1:30",
    "on",
    "~/it's $x",
    "'",
    '"',
    "''",
    "$$",
    "0o14",
    "01",
    "true",
    "{x: y}",
    ": ",
    "- a",
    "@",
    "\u2028",
    "\x85",
    "\x01",
    "a\r\nb",
]
text = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12),
)
number = st.one_of(st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False))
json_value: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), number, text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=6,
)
mapping = st.dictionaries(text, json_value, max_size=3)
# In a list a word that begins with a dash would be an option of its own: no line can say it, and
# the writer refuses it.
listed = st.lists(
    st.one_of(text.filter(lambda word: not word.startswith("-")), st.integers(0, 99), mapping),
    min_size=2,
    max_size=3,
)
value = st.one_of(st.just(True), number, text, mapping, listed)
option = st.from_regex(r"\A[a-z]{2,9}(-[a-z0-9]{1,6}){1,2}(\.[a-z]{2,5})?\Z").filter(
    lambda name: not name.startswith(("no-", "enable-", "disable-"))
)
arguments = st.dictionaries(option.filter(lambda name: not by_name(name)), value, max_size=5)
model = text.filter(lambda word: not word.startswith("-"))
commands = st.lists(
    st.sampled_from(
        [
            "pip install scipy",
            "echo 'a b' \"$X\" {c,d}",
            "cp a ~/b",
            "~/setup",
            "test -f x || touch x",
            "a; b",
        ]
    ),
    max_size=2,
)
variables = st.dictionaries(
    st.from_regex(r"\A[A-Z_][A-Za-z0-9_]{0,7}\Z").filter(lambda name: not by_name(name)),
    st.one_of(st.none(), st.just(""), text),
    max_size=4,
)
containers = st.fixed_dictionaries(
    {},
    optional={
        "name": st.from_regex(r"\A[a-zA-Z0-9][a-zA-Z0-9_.-]{0,8}\Z"),
        "gpus": st.sampled_from(["all", "1", "device=0", "device=0,1"]),
        "runtime": text,
        "ipc": st.sampled_from(["host", "private"]),
        "shm_size": st.sampled_from(["16g", "64gb", "1073741824"]),
        "network": st.sampled_from(["bridge", "none", "my-net", "container:x"]),
        "restart": st.sampled_from(["no", "always", "unless-stopped", "on-failure:3"]),
        "ports": st.lists(
            st.sampled_from(["127.0.0.1:8000:8000", "8000:8000", "80:22", "[::1]:80:80/tcp"]),
            max_size=2,
        ),
        "volumes": st.lists(
            st.sampled_from(
                ["~/vllm:/models", "~/a b:/b", "named:/n", "/x$y:/z:ro", "./r:/r", "~:/home"]
            ),
            max_size=3,
            unique=True,
        ),
        "ulimits": st.dictionaries(
            st.sampled_from(["memlock", "stack"]),
            st.sampled_from(["-1", "-1:-1", "67108864", "1:2"]),
        ),
        "user": st.sampled_from(["1000:1000", "root", "0"]),
    },
)


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    """A launch in an image of any kind."""
    image, entrypoint = draw(
        st.sampled_from(
            [
                ("vllm/vllm-openai:v0.19.0", "vllm-serve"),
                ("nvcr.io/nvidia/vllm:26.04-py3", "command"),
                ("ghcr.io/aeon-7/vllm-dflash:latest", "wrapper"),
                (f"vllm/vllm-openai:nightly@sha256:{'a' * 64}", "vllm-serve"),
            ]
        )
    )
    container = draw(containers)
    if entrypoint == "wrapper":
        serve = {"command": draw(st.lists(text, max_size=3))}
    else:
        serve = {
            "model": draw(model),
            "args": draw(arguments),
            "before": draw(commands),
            "model_option": draw(st.booleans()),
        }
        if not serve["before"] and draw(st.booleans()):
            container["entrypoint"] = draw(st.sampled_from(["", "bash", "vllm", "/opt/start"]))
    return Launch.model_validate(
        {
            "image": image,
            "entrypoint": entrypoint,
            "container": container,
            "env": draw(variables),
            "serve": serve,
        }
    )


EXAMPLE = Launch.model_validate(
    {
        "image": "nvcr.io/nvidia/vllm:26.04-py3",
        "container": {
            "name": "x",
            "gpus": "device=0,1",
            "volumes": ["~/my models:/models"],
            "ports": ["127.0.0.1:8000:8000"],
            "ulimits": {"memlock": "-1:-1"},
        },
        "env": {
            "HF_HOME": "/models",
            "NOTE": "it's $5 \\ {a,b}",
            "CACHE": "~/c d",
            "COLON": "a:~/b",
            "HF_TOKEN": None,
        },
        "serve": {
            "model": "/models/m",
            "args": {
                "served-model-name": ["a", "b c"],
                "speculative-config": {"model": "/models/d", "k": [1, "~/e"]},
                "enforce-eager": True,
                "seed": -1,
                "suffix": "-x",
                "chat-template": "~/t'e",
            },
        },
    }
)
"""A launch with each thing that quoting can get wrong."""
