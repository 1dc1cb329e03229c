"""The CUDA sources: three targets compile, and what came out is what was meant. No GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build


@pytest.fixture(scope="module", params=build.TARGETS)
def built(request) -> build.Built:
    return build.build(request.param)


@pytest.mark.nvcc
def test_nothing_spills_to_local_memory(built):
    assert built.kernels > 20
    assert built.spills == 0


@pytest.mark.nvcc
def test_the_machine_code_is_what_was_meant(built):
    found = build.instructions(built.path)
    names = set(found)
    assert not {name for name in names if re.match(r"LDL|STL", name)}, "local memory"
    assert not {
        name for name in names if re.match(r"D(ADD|MUL|FMA|SETP)|F2F\.F64|I2F\.F64|.*\.F64", name)
    }, "double precision"
    assert (
        sum(
            count
            for name, count in found.items()
            if name.startswith(("LDG", "LDGSTS")) and ".128" in name
        )
        > 50
    )
    assert any(name.startswith("HMMA.16816.F32.BF16") for name in names)
    assert any(name.startswith("HMMA.SP.16832.F32") for name in names)
    native = {name for name in names if "E2M1" in name}
    if built.target.endswith("f"):
        assert any(name.startswith("F2FP.SATFINITE.E2M1.F32") for name in native), (
            "no native FP4 encoding"
        )
        assert any(name.startswith("F2FP.F16.E2M1.UNPACK") for name in native), (
            "no native FP4 decoding"
        )
    else:
        assert not native


@pytest.mark.nvcc
def test_the_library_loads_without_a_gpu_or_torch(built):
    code = f"""
import sys
from pathlib import Path
from sparkbook.kernels.library import Library
library = Library(Path({str(built.path)!r}))
assert 'torch' not in sys.modules
try:
    library.quantize([1.0], None, None, None)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SparkbookError x is a list; expected a torch tensor")


@pytest.mark.nvcc
def test_the_plain_target_rejects_the_instruction_that_the_family_target_has(tmp_path):
    source = tmp_path / "one.cu"
    source.write_text(
        '__global__ void k(unsigned char* y, float a, float b) { asm("{.reg .b8 t;'
        ' cvt.rn.satfinite.e2m1x2.f32 t, %1, %2; st.global.b8 [%0], t;}" :: "l"(y), "f"(a),'
        ' "f"(b)); }'
    )
    chain = build.find_toolchain()
    says = {}
    for target in ("121", "121f", "120", "120f", "90"):
        command = [
            str(chain.nvcc),
            *chain.flags(),
            "-cubin",
            "-gencode",
            f"arch=compute_{target},code=sm_{target}",
            "-o",
            str(tmp_path / "o"),
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        says[target] = done.returncode == 0
        if target == "121":
            assert "not supported on .target 'sm_121'" in done.stderr
    assert says == {"121": False, "121f": True, "120": False, "120f": True, "90": False}


def test_the_sources_never_take_the_architecture_number_for_the_feature():
    for path in sorted(build.sources().glob("*.cu*")):
        text = re.sub(r"//.*", "", path.read_text("utf-8"))
        assert not re.search(r"__CUDA_ARCH__\s*==", text), path.name


def test_without_a_compiler_the_message_says_how_to_get_one(monkeypatch):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(
        SparkbookError,
        match=r"no CUDA compiler.*pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm",
    ):
        build.find_toolchain()
    with pytest.raises(SparkbookError, match="no cuobjdump"):
        build.find_disassembler()


def test_a_wrong_cuda_home_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(SparkbookError, match=r"CUDA_HOME is .* no bin/nvcc"):
        build.find_toolchain()


def test_cuda_home_comes_before_the_path(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert build.find_toolchain().origin == "CUDA_HOME"


def test_a_wheel_without_its_front_end_is_named(monkeypatch, tmp_path):
    root = tmp_path / "nvidia" / "cu13"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "nvcc").touch()
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(SparkbookError, match="lacks nvvm/bin/cicc"):
        build.find_toolchain()


def test_an_unknown_target_is_refused():
    with pytest.raises(SparkbookError, match="targets are sm_90, sm_120f, sm_121f"):
        build.build("sm_121")


def test_what_does_not_compile_is_told_in_the_compilers_words(monkeypatch, tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'gemv.cu(3): error: it is broken' >&2\nexit 2\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "library_path", lambda target: tmp_path / "out" / "x.so")
    chain = build.Toolchain(nvcc, "PATH", tmp_path)
    with pytest.raises(
        SparkbookError, match=r"could not compile sm_90:\ngemv.cu\(3\): error: it is broken"
    ):
        build.build("sm_90", toolchain=chain)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("printf '\\377\\376 broken' >&2; exit 1", "broken"),
        ("kill -9 $$", "ended by signal 9: is there enough memory"),
        ("exit 0", "can't be written: No such file"),
    ],
)
def test_a_compiler_that_fails_oddly_is_told(monkeypatch, tmp_path, script: str, told: str):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{script}\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(build, "library_path", lambda target: tmp_path / "out" / "x.so")
    with pytest.raises(SparkbookError, match=told):
        build.build("sm_90", toolchain=build.Toolchain(nvcc, "PATH", tmp_path))
    assert not list((tmp_path / "out").iterdir())


def test_builds_at_once_leave_each_other_alone_and_old_ones_go(monkeypatch, tmp_path):
    """A damaged record of the build is no reason to fail, nor to say that nothing was compiled."""
    nvcc, out = tmp_path / "nvcc", tmp_path / "out"
    nvcc.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && : >"$2"; shift; done\n'
        "echo \"Compiling entry function 'one'\"; echo 'Used 7 registers' >&2\n"
    )
    nvcc.chmod(0o755)
    chain = build.Toolchain(nvcc, "PATH", tmp_path)
    path = out / "sparkbook-sm_90-new.so"
    monkeypatch.setattr(build, "library_path", lambda target: path)
    out.mkdir()
    for name in (
        "sparkbook-sm_90-new.77.part",
        "sparkbook-sm_90-old.so",
        "sparkbook-sm_90-old.log",
    ):
        (out / name).touch()
    made = build.build("sm_90", toolchain=chain)
    assert made.fresh and made.kernels == 1
    log = path.with_suffix(".log")
    assert set(out.iterdir()) == {path, log, out / "sparkbook-sm_90-new.77.part"}
    assert not build.build("sm_90", toolchain=chain).fresh
    for damaged in (b"\xff\xfe", b""):
        log.write_bytes(damaged)
        made = build.build("sm_90", toolchain=chain)
        assert made.fresh and made.kernels == 1


def test_the_command_says_what_is_missing(tmp_path):
    """Neither torch nor a GPU: one line and exit code 2."""
    for verb in ("test", "bench"):
        done = subprocess.run(
            [Path(sys.executable).with_name("sparkbook"), "kernels", verb],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert re.search(r"torch|GPU", done.stderr)


def test_committed_results_say_where_they_come_from():
    results = sorted((build.sources() / "results").glob("*.json"))
    assert results
    for path in results:
        report = json.loads(path.read_text("utf-8"))
        assert {"gpu", "driver", "date", "kernels"} <= report["machine"].keys()
        assert (
            1 <= report["machine"]["kernels"]["version"] <= build.VERSION
            and report["machine"]["kernels"]["sources"]
        )
        copy = report.get("ceilings_gb_s", {}).get("copy")
        for row in report.get("rows", ()):  # a whole model's speeds have none
            if row["mb"] > 1:  # smaller ones are rounded too much
                assert row["gb_s"] == pytest.approx(row["mb"] * 1e3 / row["us"], rel=0.02)
            assert row["of_copy"] == pytest.approx(row["gb_s"] / copy, abs=0.002)


def test_sources_are_looked_for_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARKBOOK_KERNELS", str(tmp_path))
    with pytest.raises(SparkbookError, match="has no CUDA sources"):
        build.sources()
    assert Path(build.__file__).is_file()
