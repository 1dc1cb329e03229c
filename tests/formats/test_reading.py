"""Lines as people write them, and what is said about those that cannot be read."""

import pytest
from sparkbook import formats
from sparkbook.errors import SparkbookError
from sparkbook.formats import FORMATS, docker_run
from sparkbook.formats import compose as line_compose
from sparkbook.formats import shell as line_shell
from sparkbook.recipes import Launch

docker, compose, shell = docker_run.read, line_compose.read, line_shell.read


def test_a_docker_line_of_the_wild() -> None:
    launch = docker("""
# start it
sudo docker run -dit --rm --name=gptoss --ipc=host --shm-size 16g --restart unless-stopped \\
  --gpus all -p 8000:8000 -p127.0.0.1:9000:9000 --ulimit memlock=-1:-1 --ulimit=stack=67108864 -u 1000:1000 \\
  -e HF_TOKEN="$HF_TOKEN" -e HF_HOME=/models --env=A="b c" --env X -e VLLM_API_KEY=${VLLM_API_KEY:?set it} \\
  -v ~/vllm:/models --volume "$HOME/my cache":/cache:ro --net=my-net --runtime nvidia \\
  nvcr.io/nvidia/vllm:26.04-py3 \\
  vllm serve openai/gpt-oss-120b -tp 1 --max_model_len=131072 --gpu-memory-utilization 0.85 \\
    --served-model-name a b --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}' \\
    --trust-remote-code -O3 --seed -1 --speculative-config.model_x y  # and so on
""")
    assert launch == Launch.model_validate(
        {
            "image": "nvcr.io/nvidia/vllm:26.04-py3",
            "container": {
                "name": "gptoss",
                "ipc": "host",
                "shm_size": "16g",
                "restart": "unless-stopped",
                "gpus": "all",
                "user": "1000:1000",
                "ports": ["8000:8000", "127.0.0.1:9000:9000"],
                "ulimits": {"memlock": "-1:-1", "stack": "67108864"},
                "network": "my-net",
                "volumes": ["~/vllm:/models", "~/my cache:/cache:ro"],
                "runtime": "nvidia",
            },
            "env": {
                "HF_TOKEN": None,
                "HF_HOME": "/models",
                "A": "b c",
                "X": None,
                "VLLM_API_KEY": None,
            },
            "serve": {
                "model": "openai/gpt-oss-120b",
                "args": {
                    "tensor-parallel-size": 1,
                    "max-model-len": 131072,
                    "gpu-memory-utilization": 0.85,
                    "served-model-name": ["a", "b"],
                    "speculative-config": {"method": "mtp", "num_speculative_tokens": 1},
                    "trust-remote-code": True,
                    "optimization-level": 3,
                    "seed": -1,
                    "speculative-config.model_x": "y",
                },
            },
        }
    )


@pytest.mark.parametrize("words", ["m --port 1", "vllm serve m --port 1", "--port 1 --model m"])
def test_an_image_that_serves_by_itself(words: str) -> None:
    launch = docker(f"docker run vllm/vllm-openai:v0.19.0 {words}")
    assert (
        launch.entrypoint == "vllm-serve"
        and launch.serve.model == "m"
        and launch.serve.args == {"port": 1}
    )
    assert launch.serve.model_option == ("--model" in words)
    assert "vllm serve" not in FORMATS["docker"].write(launch)


@pytest.mark.parametrize(
    "command",
    [
        (
            "docker run nvcr.io/nvidia/vllm:1 python3 -m vllm.entrypoints.openai.api_server --model"
            " m --port 1"
        ),
        (
            "docker run --entrypoint python3 nvcr.io/nvidia/vllm:1 -m"
            " vllm.entrypoints.openai.api_server --model m --port 1"
        ),
        "docker container run nvcr.io/nvidia/vllm:1 /usr/bin/vllm serve m --port 1",
        "docker run nvcr.io/nvidia/vllm:1 bash -c 'exec vllm serve m --port 1'",
        "docker run nvcr.io/nvidia/vllm:1 vllm serve --enable-log-requests m --port=1",
    ],
)
def test_other_ways_to_start_the_server(command: str) -> None:
    serve = docker(command).serve
    assert (
        serve.model == "m"
        and serve.args["port"] == 1
        and not serve.model_option
        and not serve.before
    )


def test_an_unknown_image_that_is_given_a_model() -> None:
    assert docker("docker run my/own:1 org/model --port 1").entrypoint == "vllm-serve"
    assert docker("docker run my/own:1 vllm serve m").entrypoint == "command"
    assert docker("docker run my/own:1 /start.sh a").serve.command == ["/start.sh", "a"]


def test_commands_before() -> None:
    line = (
        'docker run {} bash -lc "pip install --no-cache-dir scipy && \\\n  vllm serve m \\\n'
        ' --port 1"'
    )
    launch = docker(line.format("nvcr.io/nvidia/vllm:1"))
    assert launch.serve.before == ["pip install --no-cache-dir scipy"] and launch.serve.args == {
        "port": 1
    }
    official = docker(
        'docker run --entrypoint bash vllm/vllm-openai:v0.19.0 -lc "pip install scipy && vllm'
        ' serve m"'
    )
    assert official.serve.before == ["pip install scipy"] and official.container.entrypoint is None
    assert "--entrypoint bash" in FORMATS["docker"].write(official)
    assert compose(FORMATS["compose"].write(official)) == official


def test_commands_before_that_may_fail_still_may() -> None:
    assert docker("docker run x/y:1 bash -c 'a; b && c\nvllm serve m'").serve.before == [
        "a; b",
        "c; true",
    ]


def test_wrapper_words_are_kept_as_they_are() -> None:
    launch = docker("docker run -e MODEL=m avarok/dgx-vllm:1 serve --x=1 --x 2")
    assert launch.serve.command == ["serve", "--x=1", "--x", "2"] and launch.env == {"MODEL": "m"}


def test_a_shell_line_of_the_wild() -> None:
    launch = shell(
        "export A=1 HF_TOKEN=$HF_TOKEN\nuv pip install vllm &&\nB='x y' vllm serve m \\\n "
        " --api-key $VLLM_API_KEY\n"
    )
    assert launch.env == {"A": "1", "HF_TOKEN": None, "B": "x y", "VLLM_API_KEY": None}
    assert (
        launch.serve.model == "m"
        and launch.serve.args == {}
        and launch.serve.before == ["uv pip install vllm"]
    )
    assert shell("exec env C=~/z vllm serve ~/m").env == {"C": "~/z"}


def test_a_repeated_option_that_vllm_collects() -> None:
    assert shell("vllm serve m --middleware a --middleware b").serve.args == {
        "middleware": ["a", "b"]
    }


def test_a_compose_file_of_the_wild() -> None:
    launch = compose("""
version: "3"
services:
  vllm:
    image: vllm/vllm-openai:v0.19.0
    command: --model m --max-model-len 4096 --chat-template '{{ x }}' --note $$5
    environment:
      - HF_TOKEN=${HF_TOKEN}
      - A=b=c
      - CACHE=${HOME}/c
      - X
    network_mode: host
    ulimits: {stack: 67108864, memlock: {soft: -1, hard: -1}}
    volumes: ["~/vllm:/models", "${HOME}/x:/x", "store:/s"]
    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["0", "1"], capabilities: [gpu]}]}}}
volumes: {store: {}}
""")
    assert launch.env == {"HF_TOKEN": None, "A": "b=c", "CACHE": "~/c", "X": None}
    assert launch.serve.model == "m" and launch.serve.args == {
        "max-model-len": 4096,
        "chat-template": "{{ x }}",
        "note": "$5",
    }
    assert (
        launch.container.volumes == ["~/vllm:/models", "~/x:/x", "store:/s"]
        and launch.container.gpus == "device=0,1"
    )
    assert (
        launch.container.ulimits == {"stack": "67108864", "memlock": "-1:-1"}
        and launch.container.network == "host"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "nothing"),
        ("ls -l", "expected docker run"),
        ("docker ps", "expected docker run"),
        ("docker run", "image is missing"),
        ("docker run -e", "-e lacks its value"),
        ("docker run -e A='x", "line 1 is not closed"),
        ('docker run \\\n  -e "A x', "line 2 is not closed"),
        ("docker run \\ \n x", "blanks"),
        ("docker run x \\", "nothing follows"),
        ("docker run x vllm serve m\n --port 1", "line 1 ends the command"),
        ("docker run x vllm serve <MODEL>", "placeholder"),
        ("docker run -p 8000:$PORT x", r"\$PORT"),
        ("docker run -v $(pwd):/x y", r"\$\(pwd\)"),
        ("docker run -v `pwd`:/x y", "`pwd`"),
        ("docker run -v '~/m:/m' x", "not expanded"),
        ("docker run -v ~bob/m:/m x", "~bob"),
        ("docker run x vllm serve --download-dir=~/x", "not expanded"),
        ("docker run x vllm bench", "vllm serve MODEL"),
        ("docker run x vllm serve m extra --x", None),
        ("docker run x vllm serve m -zz 1", "-zz"),
        ("docker run x bash -c 'vllm serve m' more", "one script"),
        ("docker run x bash -c 'vllm serve $M'", r"\$M"),
        ("docker run x bash -c 'vllm serve ~/m'", "~"),
        ("docker run x bash -c 'a && && vllm serve m'", "missing"),
        ("docker run <IMAGE> vllm serve m", "placeholder"),
        ("docker run ./x y", "not the name"),
        ("a\0b", "NUL"),
        (r"docker run -e A=$'\cx' y", r"\$'\\cx'"),
        ("docker run -e A=$'x y", "not closed"),
        ("docker run x \\\r\n y", "CR LF"),
        ("docker run ${X y", r"\$\{ in line 1"),
    ],
)
def test_docker_lines_that_cannot_be_read(text: str, complaint: str | None) -> None:
    if complaint is None:
        text, complaint = "docker run vllm/vllm-openai:1 m extra", "'extra' is not an option"
    with pytest.raises(SparkbookError, match=complaint):
        docker(text)


SECRETS = [
    "docker run -e HF_TOKEN=hf_abc x vllm serve m",
    "docker run x vllm serve m --api-key hf_abc",
    "docker run x vllm serve m --api-key $KEY",
    "docker run -e HF_TOKEN=hf_abc$Y x vllm serve m",
    "HF_TOKEN=hf_abc\ndocker run -e HF_TOKEN=$HF_TOKEN x vllm serve m",
    "HF_TOKEN=hf_abc vllm serve m",
    "export VLLM_API_KEY=hf_abc\nvllm serve m",
    "services: {a: {image: x, command: vllm serve m, environment: {HF_TOKEN: hf_abc}}}",
    "services: {a: {image: x, command: vllm serve m --api-key hf_abc}}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_left_out_and_not_repeated(text: str) -> None:
    read = formats.read(text)
    assert "CONV206" in [finding.rule for finding in read.findings]
    assert None in read.launch.env.values()
    assert "hf_abc" not in read.recipe.model_dump_json() + str(read.findings.to_dict())


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("docker run --privileged x vllm serve m", "CONV203", "--privileged"),
        ("docker run -h name x vllm serve m", "CONV203", "--hostname"),
        ("docker run --frobnicate x vllm serve m", "CONV202", "--frobnicate"),
        ("docker run x vllm serve m | tee log", "CONV209", "joined"),
        ("docker run -p 8000 x vllm serve m", "CONV210", "published port"),
        ("docker run --ulimit memlock x vllm serve m", "CONV210", "limit"),
        ("docker run --network host -p 80:80 x vllm serve m", "CONV210", "host's network"),
        ("docker run x vllm serve m --port 1 --port 2", "CONV207", "--port"),
        ("docker run x vllm serve m --x ''", "CONV210", "--x"),
        ("docker run x vllm serve m --model n", "CONV207", "model"),
        ("docker run x bash -c 'vllm serve m & sleep 5'", "CONV209", "joined"),
        ("vllm serve m &\nsleep 5", "CONV209", "something else"),
        (
            "services: {a: {image: x, command: vllm serve m}, b: {image: y}}",
            "CONV205",
            "2 services",
        ),
        (
            "services: {a: {image: x, command: vllm serve m, privileged: true}}",
            "CONV203",
            "privileged",
        ),
        ("services: {a: {image: x, command: vllm serve m, comand: 1}}", "CONV202", "comand"),
        (
            "services: {a: {image: x, command: vllm serve m, deploy: {ressources: {}}}}",
            "CONV202",
            "deploy.ressources",
        ),
        (
            "secrets: {a: {file: x}}\nservices: {a: {image: x, command: vllm serve m}}",
            "CONV203",
            "secrets",
        ),
        (
            "services: {a: {image: x, command: vllm serve m, ports: [{target: 1}]}}",
            "CONV210",
            "published port",
        ),
        (
            "services: {a: {image: x, command: vllm serve m, deploy: {replicas: 2}}}",
            "CONV203",
            "replicas",
        ),
        (
            "services: {a: {image: x, command: vllm serve m, networks: [a, b]}}",
            "CONV210",
            "one network",
        ),
        (
            "services: {a: {image: x, command: 'vllm serve m --port ${PORT:-8000}'}}",
            "CONV208",
            "PORT",
        ),
    ],
)
def test_what_a_recipe_cannot_keep_is_told(text: str, code: str, part: str) -> None:
    assert part in " ".join(
        finding.message for finding in formats.read(text).findings if finding.rule == code
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no services"),
        ("a: [", "not YAML in line"),
        ("services: {}", "no services"),
        ("services: {a: {build: .}}", "no image"),
        ("services: {a: {image: x, user: $UID}}", r"services\.a\.user.*\$UID"),
        ("services: {a: {image: x, ports: 80}}", "expected a list"),
        ("services: {a: {image: x, command: 'a && b'}}", "joins commands"),
        ("services: {a: {image: x, environment: {A: ~/x}}}", "not expanded"),
        ("a: !!python/object:os.system 1", "tags are not read"),
        ("services: {a: {image: x, environment: [[1]]}}", "environment"),
    ],
)
def test_compose_files_that_cannot_be_read(text: str, complaint: str) -> None:
    with pytest.raises(SparkbookError, match=complaint) as caught:
        compose(text)
    assert "hf_abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "nothing"),
        ("pip install vllm", "vllm serve …"),
        ("vllm serve 'm", "not closed"),
        ("vllm serve $MODEL", r"\$MODEL"),
        ("A=$B vllm serve m", r"\$B"),
    ],
)
def test_shell_lines_that_cannot_be_read(text: str, complaint: str) -> None:
    with pytest.raises(SparkbookError, match=complaint):
        shell(text)


def test_compose_cannot_say_every_gpu_request() -> None:
    with pytest.raises(SparkbookError, match="gpus"):
        FORMATS["compose"].write(
            Launch.model_validate(
                {
                    "image": "x",
                    "container": {"gpus": "capabilities=utility"},
                    "serve": {"command": []},
                }
            )
        )
