"""Every format: examples that hold each field, round trips up to the loss report, hostile input,
and the pages' examples.
"""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from launches import launches
from sparkbook import formats, recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats import FORMATS, compose, performance
from sparkbook.formats.conversion import Notes, changes, leaves
from sparkbook.formats.from_launch import build
from sparkbook.recipes import Recipe
from sparkbook.recipes.launch import Launch
from sparkbook.util import documents
from sparkbook.util.printable import CONTROL

DATA = Path(__file__).parents[1] / "data/formats"
EXAMPLES = {
    "docker.sh": "docker",
    "compose.yaml": "compose",
    "serve.sh": "shell",
    "recipe.yaml": "recipe",
    "eugr.yaml": "eugr",
    "sparkrun.yaml": "sparkrun",
    "spark-pulse.yaml": "spark-pulse",
    "nvidia-v3.yaml": "nvidia",
    "nvidia-v4.yaml": "nvidia",
    "vllm-recipe.yaml": "vllm-recipes",
    "vllm-hardware.json": "vllm-recipes-json",
    "kubernetes.yaml": "kubernetes",
}
some = settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

KEEPS = {
    "docker": r"image\.(ref|digest)|container\..*|serve\..*|env\..*",
    "compose": r"image\.(ref|digest)|container\..*|serve\..*|env\..*",
    "recipe": r".*",
    "shell": r"serve\.before",  # for the rest see test_round_trip: it says what launch.on_host() is
    "eugr": r"title|summary|model\.repo|image\.(ref|digest)|serve\.(args\..*|model)",
    "sparkrun": (
        r"title|summary|model\.(repo|revision)|image\.(ref|digest)|serve\.(args\..*|model)|container\.(gpus|ipc|shm_size|restart)"
    ),
    "spark-pulse": r"title|summary|model\.repo|image\.(ref|digest)|serve\.(args\..*|model)",
    "nvidia": (
        r"title|model\.repo|image\.(ref|digest)|serve\.(args\..*|model)|container\.(?!entrypoint).*|env\..*"
    ),
    "vllm-recipes": r"title|summary|image\.(ref|digest)|serve\.(args\..*|model)",
    "vllm-recipes-json": r"image\.(ref|digest)|container\..*|serve\..*|env\..*",
    "kubernetes": r"image\.(ref|digest)|serve\..*|container\.(ipc|ports|runtime)",
}
"""What each format can say, so that the loss report may never name it."""


def read(name: str) -> formats.Conversion:
    env = compose.read_env((DATA / "compose.env").read_text()) if name == "compose.yaml" else None
    return formats.read((DATA / name).read_text(), env=env)


@pytest.mark.parametrize(("name", "format"), EXAMPLES.items())
def test_each_example_is_known_by_its_content(name: str, format: str) -> None:
    assert formats.detect((DATA / name).read_text()) == format
    found = read(name)
    assert found.format == format and found.launch.serve.model
    assert not [finding for finding in found.findings if finding.rule in ("CONV202", "CONV210")]


@pytest.mark.parametrize(("name", "format"), EXAMPLES.items())
def test_an_example_comes_back_from_its_own_format(name: str, format: str) -> None:
    """What a recipe has no field for is kept and goes out again."""
    first = read(name).recipe
    again = formats.read(FORMATS[format].write(first)).recipe
    assert again.launch == (first.launch.on_host() if format == "shell" else first.launch)
    assert again.foreign == first.foreign
    assert changes(first, again) == ({"serve.args.host": "added"} if format == "shell" else {}) | (
        {"container.gpus": "changed"}
        if format == "kubernetes" and first.container.gpus == "all"
        else {}
    )


def test_what_the_examples_say() -> None:
    """One value of each that only a right reading gives."""
    assert read("docker.sh").launch.serve.args == {
        "max-model-len": 32768,
        "chat-template": "/models/a b.jinja",
        "port": 8000,
    }
    assert read("docker.sh").launch.port == 9000 and read("docker.sh").recipe.foreign["docker"] == {
        "--cap-add": ["IPC_LOCK"]
    }
    assert read("compose.yaml").launch.env == {
        "VLLM_LOGGING_LEVEL": "INFO",
        "HF_TOKEN": None,
        "NAME": "orchid",
    }
    assert read("compose.yaml").launch.container.ports == ["127.0.0.1:9000:8000", "8001:8001"]
    assert read("serve.sh").launch.serve.before == ["pip install scipy"]
    assert read("eugr.yaml").launch.serve.args["speculative-config"] == {
        "method": "mtp",
        "num_speculative_tokens": 3,
    }
    assert read("eugr.yaml").launch.container.volumes == [
        "~/.cache/huggingface:/root/.cache/huggingface"  # launch-cluster.sh
    ]
    assert read("eugr.yaml").recipe.foreign["eugr"]["mods"] == ["mods/fix-orchid-dtype"]
    assert read("sparkrun.yaml").recipe.model.revision == "0123456789abcdef0123456789abcdef01234567"
    assert (
        read("sparkrun.yaml").recipe.topology.nodes == 2
        and read("sparkrun.yaml").recipe.model.total_params_b == 8
    )
    assert read("sparkrun.yaml").launch.serve.args["block-size"] == "{block_size}"
    assert read("spark-pulse.yaml").launch.serve.args["kv-cache-dtype"] == "fp8"
    assert read("nvidia-v4.yaml").launch.container.volumes == [
        "~/.cache/huggingface:/root/.cache/huggingface"
    ]
    assert [remark.level for remark in read("nvidia-v3.yaml").recipe.remarks] == [
        "warning",
        "caution",
        "note",
    ]
    assert read("nvidia-v3.yaml").recipe == read("nvidia-v4.yaml").recipe
    vllm = read("vllm-recipe.yaml")
    assert (
        vllm.recipe.model.repo == "example/Orchid-8B-NVFP4"
        and vllm.launch.serve.args["max-num-seqs"] == 8
    )
    assert (
        vllm.launch.serve.args["speculative-config"]["num_speculative_tokens"] == 3
        and "enforce-eager" not in vllm.launch.serve.args
    )
    assert read("vllm-hardware.json").launch.serve.args == {"gpu-memory-utilization": 0.5}
    kubernetes = read("kubernetes.yaml").launch
    assert (
        kubernetes.serve.args["served-model-name"] == "orchid"
        and kubernetes.env["HF_TOKEN"] is None
    )
    assert kubernetes.container.volumes == ["/srv/models:/models:ro", "hf-cache:/root/.cache"]


def check_round_trip(recipe: Recipe, name: str) -> bool:
    """Writes and reads again; False where the format says that it can't."""
    try:
        written = formats.write(recipe, name)
    except SparkbookError as error:
        assert str(error)
        return False
    back = formats.read(written.text, name)
    assert formats.detect(written.text) == name
    assert set(changes(recipe, back.recipe)) == set(written.lost)
    told = " ".join(f"{finding.message} {finding.evidence}" for finding in written.findings)
    values = leaves(recipe)
    for place in written.lost:
        if place in values or place.startswith(("image", "container", "serve", "env")):
            assert place in told, place
        if recipe.image is None and place.startswith("env."):
            continue  # a process inherits its caller's environment: nothing to pass on
        assert (
            place not in values or not re.fullmatch(KEEPS[name], place) or place in back.guessed
        ), place
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_recipe_of_the_catalogue(name: str) -> None:
    assert sum(check_round_trip(recipe, name) for recipe in recipes.all()) >= (
        3 if name == "shell" else 25
    )


def plain(value: Any) -> Any:
    """A value without control characters."""
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return CONTROL.sub("?", value)
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in FORMATS if name not in ("docker", "compose", "shell")]
)
@some
@given(launch=launches())
def test_random_recipes(name: str, launch) -> None:
    # A recipe holds no control characters, and several formats name its model by what is served.
    launch = Launch.model_validate(plain(launch.model_dump()))
    if launch.serve.model and not re.fullmatch(r"[\w./~-]+", launch.serve.model, re.ASCII):
        launch.serve.model = "org/served"
    recipe = build(
        ("docker", "docker run line"), "", launch, Notes(), {"model": {"repo": "org/model"}}
    ).recipe
    try:
        written = FORMATS[name].write(recipe)
    except SparkbookError:
        return
    back = formats.read(written, name)
    differing = {place for place in changes(recipe, back.recipe) if place.startswith("serve.args.")}
    assert not differing, differing
    assert set(formats.write(recipe, name).lost) == set(changes(recipe, back.recipe))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("words", [["~"], ["run", "~/a b"], ["~a", "x~", "{~}"]])
def test_the_home_folder_among_the_words_of_an_image_of_its_own(
    name: str, words: list[str]
) -> None:
    given = {
        "image": "ghcr.io/aeon-7/vllm-dflash:latest",
        "entrypoint": "wrapper",
        "serve": {"command": words},
    }
    recipe = build(
        ("docker", "docker run line"),
        "",
        Launch.model_validate(given),
        Notes(),
        {"model": {"repo": "org/model"}},
    ).recipe
    assert check_round_trip(recipe, name) is (
        name not in ("shell", "vllm-recipes", "vllm-recipes-json")
    )  # which have no such words


HOSTILE = {
    "huge": "a: " + "x" * 10_000_000,
    "huge line": "vllm serve m " + "--x " * 3_000_000,
    "deep flow": "services: " + "[" * 5000,
    "deep closed": "services: " + "[" * 5000 + "]" * 5000,
    "deep block": "\n".join(" " * i + "a:" for i in range(300)),
    "deep json": '{"recommended_command": ' + "[" * 100_000,
    "anchor bomb": (
        "services: &a0 {image: x}\n"
        + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12))
    ),
    "anchor in itself": "services: &a [*a]",
    "surrogate": "vllm serve \ud800",
    "surrogate in yaml": "services: {a: {image: '\ud800'}}",
    "surrogate by an escape in yaml": 'services: {a: {image: "\\ud800"}}',
    "surrogate by an escape in json": (
        '{"recommended_command": "vllm serve m", "hardware": "\\ud800"}'
    ),
    "nul": "docker run a\0b",
    "tag": "services: !!python/object/apply:os.system ['true']",
    "tag of compose": "services: {a: {image: x, ports: !reset []}}",
    "key twice": "services: {a: {image: x, image: y}}",
    "networks": "services: {a: {image: x, command: vllm serve m, networks: 5}}",
    "list key": "? [a]\n: services",
    "variables that double": "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "vllm serve $A",
    "variables of kubernetes": (
        "kind: Deployment\nspec: {template: {spec: {containers: [{image: x, env: ["
        + ", ".join(
            f"{{name: A{i}, value: {f'$(A{i - 1})' * 9 if i else 'x' * 99}}}" for i in range(20)
        )
        + "]}]}}}"
    ),
    "many openings": "vllm serve " + "$(" * 200_000,
    "many quotes": "vllm serve m " + "\\ " * 300_000,
    "many colons": "vllm serve A=" + ":" * 300_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_gets_a_clear_error(name: str) -> None:
    for format in [None, *FORMATS]:
        try:
            formats.read(HOSTILE[name], format)
            assert name in ("tag of compose",) or name.startswith("many"), (
                f"{name} was read as {format}"
            )
        except SparkbookError as error:
            assert 10 < len(str(error)) < 2000


def test_nothing_is_executed_or_included(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for text in (
        f"vllm serve $(touch {mark}) m",
        f"A=`touch {mark}`\ndocker run x vllm serve m",
        f"docker run $(touch {mark}) m",
        (
            f"services: {{a: {{image: x, command: vllm serve m, env_file: {mark}, extends: {{file:"
            f" {mark}}}}}}}"
        ),
    ):
        with contextlib.suppress(SparkbookError):
            formats.read(text)
    assert not mark.exists()


def test_performance_both_ways() -> None:
    text = (DATA / "performance.yaml").read_text()
    value = performance.read(text)
    assert (
        value.profiles[0].results == performance.Results(1000.5, 34.39, 8840.14)
        and not value.foreign
    )
    assert documents.parse(performance.write(value)) == documents.parse(text)
    strange = text + "extra: 1\n"
    assert (
        performance.read(strange).foreign == {"extra": 1}
        and performance.read(performance.write(performance.read(strange))).foreign
    )
    row = performance.speeds(value, "nvidia")[0]
    assert (row.decode_tok_s, row.prompt_tokens, row.machine, row.on_spark) == (
        34.39,
        8192,
        "NVIDIA DGX Spark",
        True,
    )
    for bad in ("a: 1", "schema_version: 2\nprofiles: []", text.replace("34.39", "fast")):
        with pytest.raises(SparkbookError):
            performance.read(bad)


def test_resolve_takes_what_a_user_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        formats.resolve("gpt-oss-120b").recipe.id == "gpt-oss-120b"
        and not formats.resolve("gpt-oss-120b").findings
    )
    file = tmp_path / "anything.at-all"
    file.write_text((DATA / "eugr.yaml").read_text())
    assert formats.resolve(str(file)).format == "eugr"
    own = tmp_path / "mine.yaml"
    own.write_text((DATA / "recipe.yaml").read_text())
    assert formats.resolve(str(own)).recipe.serve.args["max-num-seqs"] == 2
    for bad in ("no-such-recipe", "x" * 5000, str(tmp_path), "some words of nothing", "\0"):
        with pytest.raises(SparkbookError):
            formats.resolve(bad)
    big = tmp_path / "big.yaml"
    big.write_bytes(b"a" * 10_000_000)
    with pytest.raises(SparkbookError, match="more than 1 MB"):
        formats.resolve(str(big))
    big.write_bytes(b"\xff\xfe")
    with pytest.raises(SparkbookError, match="UTF-8"):
        formats.resolve(str(big))


def test_on_host_takes_the_published_port() -> None:
    launch = formats.read("docker run -p 9000:8000 vllm/vllm-openai:v0.19.0 m").launch
    assert launch.port == 9000 and launch.on_host().serve.args["port"] == 9000
    assert (
        "port"
        not in formats.read("docker run -p 8000:8000 vllm/vllm-openai:v0.19.0 m")
        .launch.on_host()
        .serve.args
    )


def test_an_env_file_is_lines_of_names_and_values() -> None:
    assert compose.read_env("# c\n\nA=1\nexport B='x y'\nC=\nD=a#b\nE=a # b\n") == {
        "A": "1",
        "B": "x y",
        "C": "",
        "D": "a#b",
        "E": "a",
    }
    with pytest.raises(SparkbookError, match="line 1"):
        compose.read_env("what is this")
    with pytest.raises(SparkbookError, match=r"line 2: ARGS is a bash array.*one value in quotes"):
        compose.read_env("A=1\nARGS=(\n  --max-model-len 8192\n)\n")


def test_json_of_the_site_is_json() -> None:
    text = formats.write(recipes.load("gpt-oss-120b"), "vllm-recipes-json").text
    assert json.loads(text)["docker_argv"][:2] == ["docker", "run"]


def test_a_deployment_whose_model_is_left_open_is_called_a_template() -> None:
    text = (
        "kind: Deployment\nspec: {template: {spec: {containers: [{image: vllm/vllm-openai:v0.32.0,"
        ' args: [--model, "${MODEL}"]}]}}}'
    )
    with pytest.raises(SparkbookError, match=r"the model is \$\{MODEL\}.*envsubst"):
        formats.read(text)
