"""One table of launch lines as people write them: convert, lint and plan read each alike."""

import pytest
from sparkbook import formats, lint
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import given, of_launch
from sparkbook.launch.docker import ON_SWITCHES, SWITCHES
from sparkbook.lint.case import Case
from sparkbook.plan import request
from sparkbook.util.secret import is_secret

IMAGE = "vllm/vllm-openai:v0.28.0"
NGC = "nvcr.io/nvidia/vllm:26.04-py3"
MODEL = "openai/gpt-oss-20b"
ARGS = f"{MODEL} --max-model-len 8192 --max-num-seqs 4"
RUN = f"docker run --gpus all {IMAGE} {ARGS}"
SERVE = f"vllm serve {ARGS}"
PYTHON = f"python3 -m vllm.entrypoints.openai.api_server --model {ARGS}"

CONTAINED = {"image": IMAGE, "docker": {"gpus": ["all"]}}
ON_NGC = {"image": NGC, "docker": {"gpus": ["all"]}}
BARE: dict[str, object] = {}


def with_options(*words: str, **docker: list[str]) -> tuple[str, dict]:
    """A docker line with more options, and what it says."""
    names = {name.replace("_", "-"): values for name, values in docker.items()}
    text = f"docker run --gpus all {' '.join(words)} {IMAGE} {ARGS}"
    return text, {"image": IMAGE, "docker": {"gpus": ["all"], **names}}


def compose(service: str) -> str:
    return f"services:\n  a:\n    image: {IMAGE}\n    gpus: all\n{service}"


TABLE: list[tuple[str, dict]] = [
    # engines and their verbs
    *(
        (f"{engine} {verb} --gpus all {IMAGE} {ARGS}", CONTAINED)
        for engine in ("docker", "podman", "nerdctl", "sudo docker", "/usr/bin/docker")
        for verb in ("run", "create", "container run", "container create")
    ),
    (f"docker --context spark run --gpus all {IMAGE} {ARGS}", CONTAINED),
    (f"nerdctl -n k8s.io run --gpus all {IMAGE} {ARGS}", CONTAINED),
    (f"HF_TOKEN=x docker run --gpus all {IMAGE} {ARGS}", CONTAINED),
    (f"if ! docker run --gpus all {IMAGE} {ARGS}; then exit 1; fi", CONTAINED),
    # switches of docker, podman and nerdctl
    with_options("--disable-content-trust", disable_content_trust=[""]),
    with_options("--use-api-socket", use_api_socket=[""]),
    with_options("--replace", "--env-host", replace=[""], env_host=[""]),
    with_options("--tls-verify=false", tls_verify=["false"]),
    with_options("--sig-proxy=false", sig_proxy=["false"]),
    with_options("--privileged=false", "--init=true", init=[""]),
    with_options("--rootfs", "--no-hosts", rootfs=[""], no_hosts=[""]),
    with_options("--rm -it -d --quiet", quiet=[""]),
    with_options("-dit --pull always", pull=["always"]),
    with_options("--"),
    # unknown switches: the next word that looks like an image is the image
    with_options("--frobnicate", frobnicate=[""]),
    with_options("--frobnicate=5", frobnicate=["5"]),
    with_options("--frobnicate 5", frobnicate=["5"]),
    with_options("--frobnicate --ipc host", frobnicate=[""], ipc=["host"]),
    with_options("--frobnicate some/thing --ipc host", frobnicate=["some/thing"], ipc=["host"]),
    with_options("--frobnicate some/thing", frobnicate=["some/thing"]),
    with_options("-Z", Z=[""]),
    (
        f"docker run --gpus all --frobnicate my.registry:5000/own:1 vllm serve {ARGS}",
        {
            "image": "my.registry:5000/own:1",
            "docker": {"gpus": ["all"], "frobnicate": [""]},
        },
    ),
    # options with values
    with_options("--ipc=host --shm-size 16g", ipc=["host"], shm_size=["16g"]),
    with_options("-p8000:8000 -p 127.0.0.1:9:9", publish=["8000:8000", "127.0.0.1:9:9"]),
    with_options("-dp 8000:8000", publish=["8000:8000"]),
    with_options("-v ~/m:/m:ro --volume=$HOME/x:/x", volume=["~/m:/m:ro", "~/x:/x"]),
    with_options("--net host --restart=no", network=["host"], restart=["no"]),
    with_options(
        "--ulimit memlock=-1 --cap-add IPC_LOCK", ulimit=["memlock=-1"], cap_add=["IPC_LOCK"]
    ),
    with_options("--memory 100g -w /x", memory=["100g"], workdir=["/x"]),
    with_options("--detach-keys ctrl-a --cpu-quota 5", detach_keys=["ctrl-a"], cpu_quota=["5"]),
    (
        f"""docker run --gpus '"device=0,1"' {IMAGE} {ARGS}""",
        {"image": IMAGE, "docker": {"gpus": ["device=0,1"]}},
    ),
    # environment
    *(
        (f"docker run --gpus all {words} {IMAGE} {ARGS}", {**CONTAINED, "env": env})
        for words, env in (
            ("-e A=1", {"A": "1"}),
            ("-eA=1 --env=B='x y'", {"A": "1", "B": "x y"}),
            ("-e=A=1", {"A": "1"}),
            ("-e HF_TOKEN", {"HF_TOKEN": None}),
            ("-e HF_TOKEN=$HF_TOKEN -e X=${X:?set it}", {"HF_TOKEN": None, "X": None}),
            ("-e HF_HOME=$HOME/hf", {"HF_HOME": "~/hf"}),
            ("-e A=", {"A": ""}),
            ("-e A=1 -e A=2", {"A": "2"}),
        )
    ),
    # entry points
    (f"docker run --gpus all {IMAGE} vllm serve {ARGS}", CONTAINED),
    (f"docker run --gpus all --entrypoint vllm {IMAGE} serve {ARGS}", CONTAINED),
    (f"docker run --gpus all --entrypoint /usr/bin/vllm {IMAGE} serve {ARGS}", CONTAINED),
    (f"docker run --gpus all --entrypoint bash {IMAGE} -c '{SERVE}'", CONTAINED),
    (f"docker run --gpus all --entrypoint=python3 {IMAGE} {PYTHON[8:]}", CONTAINED),
    (f'podman run --gpus all --entrypoint \'["vllm","serve"]\' {IMAGE} {ARGS}', CONTAINED),
    (f"docker run --gpus all --entrypoint /opt/entry.sh {NGC} {SERVE}", ON_NGC),
    (f"docker run --gpus all {NGC} {SERVE}", ON_NGC),
    (f"docker run --gpus all {NGC} {PYTHON}", ON_NGC),
    (f"docker run --gpus all {NGC} python3 -u {PYTHON[8:]}", ON_NGC),
    (f"docker run --gpus all {NGC} env A=1 {SERVE}", {**ON_NGC, "env": {"A": "1"}}),
    (f"docker run --gpus all {NGC} bash -lc 'exec {SERVE}'", ON_NGC),
    (f"docker run --gpus all {NGC} bash -euo pipefail -c '{SERVE}'", ON_NGC),
    (
        f"docker run --gpus all {NGC} bash -lc 'export A=1; pip install scipy && B=2 {SERVE}'",
        {**ON_NGC, "env": {"A": "1", "B": "2"}, "before": ["pip install scipy"]},
    ),
    (
        f"docker run --gpus all --entrypoint bash avarok/dgx-vllm:1 -c '{SERVE}'",
        {"image": "avarok/dgx-vllm:1", "docker": {"gpus": ["all"]}},
    ),
    (f"docker run --gpus all my/own:1 {ARGS}", {"image": "my/own:1", "docker": {"gpus": ["all"]}}),
    # quoting, lines and the scripts around them
    (RUN.replace(" --max", " \\\n  --max"), CONTAINED),
    (f"# start it\n{RUN}  # and so on\n", CONTAINED),
    (f"{RUN} > log.txt 2>&1", CONTAINED),
    (f"{RUN} | tee log", CONTAINED),
    (f"docker pull {IMAGE}\n{RUN}", CONTAINED),
    (f"docker run --rm --gpus all {NGC} nvidia-smi\n{RUN}", CONTAINED),
    (f"docker run --rm --gpus all {NGC} nvidia-smi\n{SERVE}", BARE),
    (f"docker run redis:7\n{RUN}", CONTAINED),
    (f'IMAGE={IMAGE}\nARGS=(--gpus all)\ndocker run "${{ARGS[@]}}" $IMAGE {ARGS}', CONTAINED),
    (f"docker run --gpus all ${{IMAGE:-{IMAGE}}} {ARGS}", CONTAINED),
    (f'docker run --gpus all ${{KEY:+-e KEY="$KEY"}} {IMAGE} {ARGS}', CONTAINED),
    (f"cat > run.sh <<'EOF'\n{RUN}\nEOF\nbash run.sh", CONTAINED),
    (f"ssh spark '{RUN}'", CONTAINED),
    (SERVE, BARE),
    (PYTHON, BARE),
    (f"vllm serve --enable-log-requests {ARGS}", {"options": {"enable-log-requests": []}}),
    (f"vllm serve --seed 1 {ARGS}", {"options": {"seed": ["1"]}}),
    (
        f"{SERVE} --max_num_batched_tokens=2048 -tp 1",
        {"options": {"max-num-batched-tokens": ["2048"], "tensor-parallel-size": ["1"]}},
    ),
    (f"{SERVE} --served-model-name a b", {"options": {"served-model-name": ["a", "b"]}}),
    (
        f'{SERVE} --speculative-config \'{{"method": "ngram"}}\'',
        {"options": {"speculative-config": ['{"method":"ngram"}']}},
    ),
    (f"A=1 {SERVE}", {"env": {"A": "1"}}),
    (f"export A=1\n{SERVE}", {"env": {"A": "1"}}),
    (f"uv run {SERVE}", BARE),
    (f"nohup {SERVE} > log &", BARE),
    (f"({SERVE})", BARE),
    (f"LEN=8192\nvllm serve {MODEL} --max-model-len $LEN --max-num-seqs ${{SEQS:-4}}", BARE),
    (f'M="${{1:-{MODEL}}}"\nvllm serve $M --max-model-len 8192 --max-num-seqs 4', BARE),
    (f"{SERVE}\n{SERVE} --port 9000", BARE),
    # compose
    (compose(f"    command: {ARGS}\n"), CONTAINED),
    (compose(f"    command: [{ARGS.replace(' ', ', ')}]\n"), CONTAINED),
    (compose(f"    command: vllm serve {ARGS}\n"), CONTAINED),
    (compose(f"    entrypoint: [vllm, serve]\n    command: {ARGS}\n"), CONTAINED),
    (compose(f"    entrypoint: vllm serve {ARGS}\n"), CONTAINED),
    (compose(f"    entrypoint: bash\n    command: [-c, '{SERVE}']\n"), CONTAINED),
    (compose(f"    entrypoint: ''\n    command: {SERVE}\n"), CONTAINED),
    (
        compose(f"    command: {ARGS}\n    environment: [A=1, HF_TOKEN, 'B=${{B}}']\n"),
        {**CONTAINED, "env": {"A": "1", "HF_TOKEN": None, "B": None}},
    ),
    (
        compose(f"    command: {ARGS}\n    environment: {{A: 1, C: true}}\n"),
        {**CONTAINED, "env": {"A": "1", "C": "true"}},
    ),
    (
        compose(f"    command: {ARGS} --port ${{PORT:-8000}}\n"),
        {**CONTAINED, "options": {"port": ["8000"]}},
    ),
    (
        compose(
            f"    command: {ARGS}\n    ipc: host\n    ulimits: {{memlock: -1}}\n    ports: [{{target: 8000, published: 80, host_ip: 127.0.0.1}}]\n"
        ),
        {
            "image": IMAGE,
            "docker": {
                "gpus": ["all"],
                "ipc": ["host"],
                "ulimit": ["memlock=-1"],
                "publish": ["127.0.0.1:80:8000"],
            },
        },
    ),
    (compose(f"    command: {ARGS}\n  web:\n    image: nginx\n"), CONTAINED),
    (compose(f"    command: {ARGS}\n    restrat: always\n"), CONTAINED),
]
BASIC = {"max-model-len": ["8192"], "max-num-seqs": ["4"]}
OF_THE_MOMENT = {"detach", "rm", "interactive", "tty", "entrypoint"}


def facts(line, foreign=None) -> dict:
    """What a line says, in the words of the table."""
    case = Case(line, "0.28.0")
    docker: dict[str, list[str]] = {}
    for option in line.docker:
        if option.name not in OF_THE_MOMENT:
            docker.setdefault(option.name, []).append(option.value)
    for option, values in (foreign or {}).items():
        docker.setdefault(option.lstrip("-"), []).extend(values)
    options = {}
    for item in case.args.options:
        if item.name != "model":
            options[item.option.name] = [word.value.replace(": ", ":") for word in item.values]
    return {
        "image": line.image,
        "model": case.model,
        "options": options,
        "env": {name: None if is_secret(name) else value for name, value in line.env.items()},
        "docker": docker,
        "before": line.before,
    }


@pytest.mark.parametrize(("text", "told"), TABLE)
def test_the_three_verbs_read_alike(text, told):
    expected = {"image": None, "model": MODEL, "env": {}, "docker": {}, "before": [], **told}
    expected["options"] = BASIC | told.get("options", {})
    line, _ = given(text)
    assert facts(line) == expected
    conversion = formats.resolve(text)
    assert facts(of_launch(conversion.launch), conversion.recipe.foreign.get("docker")) == expected
    setup = request.read(text)
    assert (setup.context, setup.sequences) == (8192, 4)
    assert (setup.checkpoint.name, lint.lint(line).text) == (MODEL, line.text)


@pytest.mark.parametrize(
    "text",
    [
        f"docker run --gpus all --frobnicate {IMAGE} {ARGS}",
        compose(f"    command: {ARGS}\n    restrat: always\n"),
    ],
)
def test_an_unknown_option_is_a_mistake_for_all_three(text):
    (mistake,) = given(text)[0].mistakes
    for findings in (formats.resolve(text).findings, lint.lint(text).findings):
        assert mistake.message in [
            finding.message for finding in findings if finding.rule == "CONV202"
        ]
    assert mistake.message in request.read(text).assumed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{SERVE}\n  --port 9000", "line 1 ends the command"),
        (f"{RUN}\n  --port 9000", "line 1 ends the command"),
        (f"vllm serve <MODEL> --port 9000 {ARGS[19:]}", "<MODEL> in line 1 is a placeholder"),
        (f"docker run --gpus all {NGC} bash -c vllm serve {ARGS}", None),
        (f"docker run --gpus all {NGC} bash -c '{SERVE}' more", "one script"),
        (f"&& {SERVE}", "a command is missing before &&"),
        (compose(f"    command: '{SERVE} && x'\n"), "joins commands"),
    ],
)
def test_a_broken_line_is_an_error_for_all_three(text, complaint):
    for read in (formats.resolve, request.read):
        with pytest.raises(SparkbookError, match=complaint):
            read(text)
    if complaint:
        broken = [finding for finding in lint.lint(text).findings if finding.rule == "RUN119"]
        assert complaint.lower() in broken[0].message.lower() and broken[0].severity == "error"


@pytest.mark.parametrize("text", ["echo hello", "docker ps", "", "pip install vllm"])
def test_no_launch_line_is_one_error_for_all_three(text):
    for read in (formats.read, lint.lint, request.read):
        with pytest.raises(SparkbookError, match="no launch line"):
            read(text + "\n# no line")


@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_a_switch_takes_no_value(switch):
    line, _ = given(f"docker run --{switch} --gpus all {IMAGE} {ARGS}")
    assert line.image == IMAGE and (line.option(switch) == "" or switch in ON_SWITCHES)
    back = formats.resolve(f"docker run --{switch}=false --gpus all {IMAGE} {ARGS}")
    written = formats.write(back.recipe, "docker")
    assert written.lost == () or switch not in " ".join(written.lost)
    assert formats.read(written.text).recipe.foreign == back.recipe.foreign
