"""kernels/Dockerfile, built by a real Docker engine on a stand-in for vLLM's image: what is in it,
as whom it runs, what it finds.
"""

import io
import json
import sys
import tarfile
import tomllib
from pathlib import Path

import docker
import pytest
from sparkbook.kernels import build

pytestmark = pytest.mark.docker
ROOT = Path(__file__).parents[3]
LOOK = """
import importlib.metadata, json, os, sys
from sparkbook.kernels import build
(point,) = [p for p in importlib.metadata.entry_points(group="vllm.general_plugins") if p.name == "sparkbook_nvfp4"]
register = point.load()
register()
quiet = "sparkbook.kernels.library" not in sys.modules and "vllm" not in sys.modules
os.environ["SPARKBOOK_VLLM_NVFP4"] = "1"
import logging
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("vllm.sparkbook").addHandler(handler)
register()
try:
    open("/opt/sparkbook/kernels/written", "w")
    fixed = False
except OSError:
    fixed = True
open(os.path.expanduser("~/written"), "w").close()
print(json.dumps({"uid": os.getuid(), "home": os.getcwd(), "library": build.library_path("sm_121f").is_file(), "quiet": quiet,
                  "said": said, "fixed": fixed, "file": sys.modules["sparkbook"].__file__}))
"""


def context() -> io.BytesIO:
    """What the Dockerfile copies, with a stand-in for the compiled library under the name that the
    sources' hash gives it.
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for pattern in (
            "kernels/*.cu",
            "kernels/*.cuh",
            "kernels/*.h",
            "kernels/Dockerfile",
            "lib/sparkbook/kernels/*.py",
        ):
            for path in sorted(ROOT.glob(pattern)):
                tar.add(path, arcname=str(path.relative_to(ROOT)))
        for name in ("__init__.py", "errors.py", "util/__init__.py", "util/shell_text.py"):
            tar.add(ROOT / "lib" / "sparkbook" / name, arcname=f"lib/sparkbook/{name}")
        for suffix in (".so", ".log"):
            entry = tarfile.TarInfo(
                f"_build/kernels/{build.library_path('sm_121f').with_suffix(suffix).name}"
            )
            tar.addfile(entry, io.BytesIO())
    data.seek(0)
    return data


def make(engine, **arguments: str):
    return engine.client.images.build(
        fileobj=context(),
        custom_context=True,
        dockerfile="kernels/Dockerfile",
        buildargs={"IMAGE": "test/vllm:1", **arguments},
        rm=True,
        forcerm=True,
    )


def test_an_image_by_tag_is_refused(engine, vllm_image):
    with pytest.raises(docker.errors.BuildError) as error:
        make(engine)
    assert any("name it by digest" in str(line.get("stream", "")) for line in error.value.build_log)


def test_the_layer(engine, vllm_image, borrowed_volumes):
    image, _ = make(engine, UNPINNED="yes", REVISION="abc123")
    config = image.attrs["Config"]
    assert config["User"] == "10001:10001" and config["Cmd"] == [
        "sleep",
        "600",
    ], "the image's own command stays"
    assert config["Labels"]["org.opencontainers.image.revision"] == "abc123"
    assert config["Labels"]["org.opencontainers.image.base.name"] == "test/vllm:1"
    assert not any(line.startswith("SPARKBOOK_VLLM_NVFP4") for line in config["Env"]), (
        "the switch is the user's to set"
    )
    command = [str(Path(sys.executable).resolve()), "-c", LOOK]
    said = engine.client.containers.run(image.id, command, volumes=borrowed_volumes, remove=True)
    seen = json.loads(said.splitlines()[-1])
    assert (seen["uid"], seen["home"], seen["quiet"], seen["fixed"]) == (
        10001,
        "/home/sparkbook",
        True,
        True,
    )
    assert seen["library"], "the library built from these sources is the one that is looked for"
    assert seen["file"].startswith("/opt/sparkbook/lib/"), "the layer's own package, not another's"
    assert len(seen["said"]) == 1 and "not used: ModuleNotFoundError" in seen["said"][0], (
        "the stand-in has no vLLM, and says so"
    )


def test_the_entry_point_is_the_packages():
    """The layer writes its own entry point, because nothing is installed in it: it has to be the
    package's.
    """
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "kernels" / "Dockerfile").read_text()
    for name, value in points["entry-points"]["vllm.general_plugins"].items():
        assert f"[vllm.general_plugins]\\n{name} = {value}\\n" in text
    assert (
        f"Version: {points['version']}\\n" in text
        and f"sparkbook-{points['version']}.dist-info" in text
    )


@pytest.fixture
def vllm_image(engine, tmp_path):
    """A root with a shell and the few programs that the build calls; the rest is borrowed from the
    host when it runs.
    """
    import shutil

    root = tmp_path / "root"
    for name in (
        "etc",
        "tmp",
        "proc",
        "sys",
        "dev",
        "root",
        "var",
        "bin",
        "usr",
        "opt",
        "home",
        "lib64",
    ):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    shutil.copy(shutil.which("busybox"), root / "bin")
    for name in ("sh", "mkdir", "chown", "sleep"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "lib").symlink_to("usr/lib")
    (root / "lib64").rmdir()
    (root / "lib64").symlink_to("usr/lib64")
    engine.load("test/vllm:1", root, ["sleep", "600"])
