"""What the linter reads, and what it makes of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkbook import lint, recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.launch.arguments import parse
from sparkbook.launch.line import Word
from sparkbook.lint import Case, read
from sparkbook.releases import get, newest


def rules(text, **more):
    return {finding.rule for finding in lint.lint(text, **more).findings}


def test_a_docker_line_with_what_a_launch_cannot_keep():
    line = read(
        "sudo docker run --privileged --memory=8g -itp 80:8000 -e A=1 --rm vllm/vllm-openai:v0.28.0"
        " m/x --port 8000 --port 8001"
    )
    assert (
        line.image == "vllm/vllm-openai:v0.28.0"
        and line.option("privileged") == ""
        and line.option("memory") == "8g"
    )
    assert (
        line.values("publish") == ["80:8000"] and line.env == {"A": "1"} and line.option("rm") == ""
    )
    assert [word.text for word in line.serve] == ["m/x", "--port", "8000", "--port", "8001"]


def test_a_script_in_a_shell_is_read_through():
    line = read(
        "docker run nvcr.io/nvidia/vllm:26.04-py3 bash -lc 'export X=1 && pip install scipy && A=2"
        " vllm serve m/x --port 9 # no'"
    )
    assert line.before == ["pip install scipy"] and line.env == {"X": "1", "A": "2"}
    assert [word.text for word in line.serve] == ["m/x", "--port", "9"]


def test_a_script_with_comments_and_other_commands_around_it():
    line = read(
        "# fetch first\nmkdir -p ~/x && cd ~/x\ndocker pull x/y\n\ndocker run"
        " vllm/vllm-openai:v0.28.0 a/b  # go\n"
    )
    assert line.image == "vllm/vllm-openai:v0.28.0" and [word.text for word in line.serve] == [
        "a/b"
    ]


def test_what_a_shell_fills_in_is_not_known_and_not_judged():
    assert "FLAG105" not in rules("vllm serve $MODEL --max-num-seqs $SEQS --port ${PORT:-8000}")
    assert "ENV104" not in rules(
        "docker run --gpus all -e HF_TOKEN=$HF_TOKEN vllm/vllm-openai:v0.28.0 a/b"
    )


def test_the_value_of_a_secret_is_never_shown():
    line = (
        "docker run --gpus all -e HF_TOKEN=hf_geheim -e MY_SECRET=pst vllm/vllm-openai:v0.28.0 a/b"
        " --api-key geheimer"
    )
    text = lint.lint(line).to_dict()
    assert "ENV104" in str(text) and not any(word in str(text) for word in ("geheim", "pst"))


def test_of_several_lines_the_one_that_serves_is_meant():
    line = read(
        "docker run --rm --gpus all nvcr.io/nvidia/cuda:13.0.0-base-ubuntu24.04 nvidia-smi\nvllm"
        " serve a/b"
    )
    assert line.image is None and [word.text for word in line.serve] == ["a/b"]


def test_a_server_behind_something_that_starts_it():
    assert "FLAG102" in rules("uv run vllm serve a/b --swap-space 4")
    assert "FLAG102" in rules("./launch-cluster.sh --solo exec \\\n  vllm serve a/b --swap-space 4")


def test_asking_the_official_image_for_its_version_needs_another_entry_point():
    """`docker run IMAGE vllm --version` runs `vllm serve vllm --version`; that it has no GPU does
    not matter.
    """
    findings = lint.lint("docker run --rm vllm/vllm-openai:v0.28.0 vllm --version").findings
    assert [(f.rule, f.severity) for f in findings if f.severity != "info"] == [("IMG104", "error")]
    assert "--entrypoint vllm" in findings[0].fix
    assert "IMG104" not in rules(
        "docker run --rm --entrypoint vllm vllm/vllm-openai:v0.28.0 --version"
    )


COMPOSE = """
services:
  chat:
    image: vllm/vllm-openai:v0.28.0
    restart: always
    privileged: true
    environment: [VLLM_USE_V1=1, HF_TOKEN]
    ports: ["8000:8000"]
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}}}
    command: [a/b, --port, "8080"]
  web:
    image: nginx
"""


def test_a_compose_file_with_a_second_service():
    found = rules(COMPOSE)
    assert {"RUN103", "RUN108", "RUN101", "ENV102"} <= found and "RUN105" not in found


@pytest.mark.parametrize(
    "value", ["5", "text", "[1, 2]", "{a: 1}", "true", "[{a: 1}]", "[[1]]", "[null]", "'\"'"]
)
@pytest.mark.parametrize(
    "key",
    [
        "ports",
        "volumes",
        "environment",
        "ulimits",
        "command",
        "entrypoint",
        "deploy",
        "restart",
        "devices",
    ],
)
def test_a_compose_file_with_a_value_of_another_kind(key, value):
    try:
        lint.lint(f"services:\n  a:\n    image: vllm/vllm-openai:v0.28.0\n    {key}: {value}\n")
    except SparkbookError as error:
        assert "object has no" not in str(error)


def test_python_minus_m_is_vllm_serve():
    assert "FLAG102" in rules(
        "python3 -m vllm.entrypoints.openai.api_server --model a/b --swap-space 4"
    )


def test_a_recipe_reads_as_the_line_that_it_is_written_as():
    """Judged as a recipe or as the docker line written from it, a line's findings are the same, but
    for what only a recipe's facts tell.
    """
    from sparkbook.formats import FORMATS

    recipe = recipes.load("gpt-oss-20b")
    written = FORMATS["docker"].write(recipe.launch)
    by_facts = {"MEM104", "MEM109", "MEM110", "RUN109"}
    assert rules(written) - by_facts == {f.rule for f in lint.lint(recipe).findings} - by_facts
    assert {f.rule for f in lint.lint(recipe.launch).findings} == rules(written)


@pytest.mark.parametrize(
    "text",
    [
        "echo hello",
        "docker run",
        "docker run --name",
        "vllm serve 'x",
        "no-recipe",
        "services:\n  a: 1\n x",
    ],
)
def test_what_cannot_be_read_is_one_error(text):
    with pytest.raises(SparkbookError):
        lint.lint(text)


def test_arguments_are_taken_as_argparse_takes_them():
    text = (
        "--port 8000 a/b --enable-prefix-caching -tp 1 --lora-modules x=1 y=2 --max-model-len=64k z"
    )
    words = [Word(word) for word in text.split()]
    args = parse(words, get("0.32.0"))
    assert args.model.text == "a/b" and [word.text for word in args.extra] == ["z"]
    assert [(g.name, [v.text for v in g.values]) for g in args.options] == [
        ("port", ["8000"]),
        ("enable-prefix-caching", []),
        ("tp", ["1"]),
        ("lora-modules", ["x=1", "y=2"]),
        ("max-model-len", ["64k"]),
    ]


def test_the_speculative_config_from_every_spelling():
    for text in (
        """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'""",
        "--spec-method mtp --spec-tokens 2",
        "--speculative_config.method mtp --speculative-config.num_speculative_tokens 2",
    ):
        case = Case(read(f"vllm serve a/b {text}"), "0.32.0")
        assert (case.method, case.draft_tokens, case.mtp) == ("mtp", 2, True)


@pytest.mark.parametrize(
    ("source", "version", "assumed"),
    [
        ("docker run vllm/vllm-openai:v0.28.0 a/b", "0.28.0", None),
        ("docker run nvcr.io/nvidia/vllm:26.04-py3 vllm serve a/b", "0.19.0", None),
        ("docker run eugr/spark-vllm:nightly-20260704 vllm serve a/b", "0.23.0", "nearest"),
        ("docker run vllm/vllm-openai:gemma4-cu130 a/b", "0.19.1", "newest known that"),
        ("docker run example.org/x:1 a/b", "0.33.0", "nothing says"),
        ("vllm serve a/b", "0.33.0", "no image"),
    ],
)
def test_the_release_is_that_of_the_image(source, version, assumed):
    report = lint.lint(source)
    assert report.release == version and (
        assumed in report.assumed if assumed else report.assumed is None
    )
    assert lint.lint(source, release="0.21.0").release == "0.21.0"


def test_a_recipe_states_its_release():
    assert lint.lint("gpt-oss-20b").release == "0.19.0"
    assert lint.lint("embedded/tiny-dense").release == "0.32.0"
    assert Case(of_launch(recipes.load("gpt-oss-20b").launch)).version == "0.19.0"


COMMENT = """exec docker run --rm --gpus all \\
  --network host   # vLLM needs the host's network \\
  vllm/vllm-openai:v0.27.1 a/b
"""
SPREAD = """docker run --gpus all "${envs[@]}" ${mounts[@]+"${mounts[@]}"} -p 8000:8000 \\
  vllm/vllm-openai:v0.28.0 "$MODEL" "$@"
"""


def test_a_comment_before_a_backslash_ends_the_command():
    """github.com/luongnv89/dgx-spark-llm-lab, configs/qwen3.8-27b-nvfp4-dspark.sh, 2026-08-20."""
    with pytest.raises(SparkbookError, match="comment in line 2 ends the command"):
        read(COMMENT)
    line = read("vllm serve a/b --port 8001 # ours \\\n  --max-num-seqs 4\n")
    assert line.broken is not None
    assert "comment in line 1" in line.broken.message


def test_words_of_any_number_are_neither_the_image_nor_an_argument():
    """github.com/bytebunkerlabs/dgx-spark-serve, scripts/launch-solo.sh, 2026-08-06, and
    github.com/Sunderrrr/dgx-spark-llm-platform, ocr/ocr-recreate.sh, 2026-08-22.
    """
    line = read(SPREAD)
    assert line.image == "vllm/vllm-openai:v0.28.0"
    assert len(line.spreads) == 2
    case = Case(line)
    assert case.args.model.shown == "$MODEL" and not case.args.extra
    assert rules(SPREAD).isdisjoint({"FLAG111", "MEM101", "MEM105"})


def test_what_is_empty_before_a_file_is_sourced_is_not_known():
    line = read('ARGS=()\nsource ./recipe.env\nvllm serve a/b "${ARGS[@]}"\n')
    assert len(Case(line).args.spreads) == 1


def test_what_a_shell_fills_in_keeps_its_quotes_in_a_quoted_script():
    """github.com/mARTin-B78/dgx-spark_lite-llm_llama-swap_vllm_llama-cpp_ollama, the script
    launch-qwen35-122b-hybrid.sh, 2026-06-25.
    """
    awk = "GMEM=$(awk 'BEGIN { print \"0.8\" }' /proc/meminfo)"
    script = "exec vllm serve a/b --gpu-memory-utilization '${GMEM}' --max-num-seqs 4"
    case = Case(read(f'{awk}\ndocker run --gpus all vllm-node bash -c "{script}"\n'))
    assert not case.args.extra and case.options["max-num-seqs"].value == "4"
    assert case.options["gpu-memory-utilization"].value is None


@pytest.mark.parametrize("image", ["avarok/vllm-dgx-spark:v11", "me/img:1"])
def test_an_image_that_is_given_serve_runs_vllm(image):
    """github.com/jdaln/dgx-spark-inference-stack, compose/models-llama.yml, 2026-04-28."""
    line = read(f"docker run --gpus all {image} serve --model a/b --max-num-seqs 4")
    assert line.starts and Case(line).args.model.text == "a/b"


def test_a_compose_file_without_vllm_is_refused():
    """github.com/Sunderrrr/dgx-spark-llm-platform, docker-compose.yml, 2026-08-22."""
    services = "services: {db: {image: 'postgres:15'}, web: {image: 'nginx:1'}}"
    with pytest.raises(SparkbookError, match=r"no service .* starts vLLM: db, web"):
        read(services)


def test_of_several_servers_the_one_that_is_judged_is_named():
    """github.com/jdaln/dgx-spark-inference-stack, compose/models-gpt.yml, 2026-04-28."""
    one = "{image: 'vllm-node', command: [vllm, serve, a/b]}"
    report = lint.lint(f"services: {{small: {one}, large: {one}}}")
    choice = next(f for f in report.findings if f.rule == "CONV205")
    assert "small was taken" in choice.message and "large" in choice.evidence


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("scitrera/dgx-spark-vllm:0.13.0-t4", "0.13.0"),  # github.com/LePhanFF/MyOpenclawAgent
        ("me/vllm-gb10:v0.28", "0.28.0"),
        ("anemll/dspark-vllm-gx10:0.1.1", newest()),
        ("me/server:0.13.0", newest()),
    ],
)
def test_the_tag_of_somebodys_image_names_its_release(image, release):
    case = Case(read(f"docker run --gpus all {image} vllm serve a/b"))
    assert case.version == release and case.assumed


PIECES = st.sampled_from(
    [
        "docker",
        "run",
        "vllm",
        "serve",
        "vllm/vllm-openai:nightly",
        "nvcr.io/nvidia/vllm:26.04-py3",
        "avarok/dgx-vllm-nvfp4-kernel:v22",
        "a/b",
        "-p",
        "8000:8000",
        "-p8000",
        "--gpus",
        "all",
        "-e",
        "A=1",
        "HF_TOKEN",
        "--speculative-config",
        '\'{"method":"mtp"}\'',
        "'{'",
        "'[]'",
        "'1'",
        "--speculative-config.method",
        "mtp",
        "-tp",
        "-O3",
        "-O",
        "--max-num-seqs",
        "--",
        "-",
        "=",
        "--=",
        "--x=",
        "--.a",
        "-.a",
        "--max-model-len",
        "64k",
        "-1",
        "bash",
        "-lc",
        "'vllm serve a/b'",
        "&&",
        "\\\n",
        "\n",
        "#",
        "$X",
        "~",
        "--entrypoint",
        "--shm-size",
        "x",
        "--restart",
        "--rm",
        "--kv-cache-dtype",
        "fp8",
        "--nnodes",
        "2",
        "--load-format",
        "fastsafetensors",
        "--gpu-memory-utilization",
        "0.8",
        "é",
        "--hf-overrides",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(PIECES, min_size=1, max_size=14),
    st.sampled_from(["", "vllm serve ", "docker run --gpus all vllm/vllm-openai:v0.28.0 "]),
)
def test_whatever_is_pasted_is_judged_or_refused(pieces, start):
    text = start + " ".join(pieces) + " "
    try:
        report = lint.lint(text)
    except SparkbookError:
        return
    lint.repair(report)
    assert report.to_dict()["summary"]["release"] == report.release


def test_a_text_with_very_many_lines_is_refused() -> None:
    with pytest.raises(SparkbookError, match="starts more than 1,000 servers"):
        read("vllm serve a/b --port 8000\n" * 1001)
    assert read("vllm serve a/b\n" * 1000).serve[0].text == "a/b"


@pytest.mark.parametrize(
    "text",
    [
        'docker exec -d node sh -c "vllm serve a/b --port 8000 > /tmp/vllm.log 2>&1"',
        "docker exec -it node bash -lc 'cd /w && vllm serve a/b --port 8000'",
        'kubectl exec pod -- bash -c "vllm serve a/b --port 8000"',
    ],
)
def test_a_server_that_a_shell_in_a_running_container_starts(text: str) -> None:
    """eugr/spark-vllm-docker, issue 193."""
    line = read(f"./launch-cluster.sh -d start\n{text}\n./launch-cluster.sh stop")
    assert [word.text for word in line.serve] == ["a/b", "--port", "8000"]
    with pytest.raises(SparkbookError, match="no launch line"):
        read('docker exec node bash -c "nvidia-smi"')
