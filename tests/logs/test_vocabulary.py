"""The vocabularies: each form is recognized, each name is one that its program defines, and nothing
is found in healthy logs. What can be had from the program itself is produced here.
"""

import argparse
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook import logs
from sparkbook.logs.places import part_of, parts
from sparkbook.logs.vocabulary import load, vocabularies
from sparkbook.rules import kinds

from tests.logs.test_captures import HEALTHY

DATA = Path(__file__).parents[1] / "data" / "logs"
ALL = vocabularies()
ENTRIES = [(rule, entry) for rule in ALL for entry in rule.entries]
EACH = pytest.mark.parametrize(
    ("rule", "entry"), ENTRIES, ids=[f"{r.code}-{e.forms[0][:40]}" for r, e in ENTRIES]
)
NAMES = json.loads((DATA / "vocabulary_names.json").read_text())


def test_there_are_a_few_hundred_and_no_form_is_given_twice():
    assert len(ENTRIES) > 400
    for rule in ALL:
        forms = [form.lower() for entry in rule.entries for form in entry.forms]
        assert len(forms) == len(set(forms)), rule.code


@EACH
def test_an_entry_is_complete(rule, entry):
    assert entry.kind is None or entry.kind in kinds()
    assert re.match(r"[A-Z][a-z]+\b", entry.do) and entry.do.endswith("."), entry.do
    assert not entry.means.endswith(".")
    used = set(re.findall(r"\{(\w+)\}", f"{entry.means} {entry.do} {entry.spark}"))
    for form, word in zip(entry.forms, entry.words, strict=True):
        assert word, f"{form} has no whole word"
        assert used <= set(re.findall(r"\{(\w+)\}", form)), form


@EACH
def test_a_form_is_recognized_and_not_called_healthy(rule, entry):
    assert entry.search(entry.example) is not None
    diagnosis = logs.diagnose(f"RuntimeError: {entry.example}")
    assert not diagnosis.healthy and diagnosis.primary is not None


def test_the_names_are_the_ones_that_nvidia_defines():
    """Every name of CUDA, cuBLAS, cuDNN and NCCL in a form is in NVIDIA's headers."""
    known = {name for one in NAMES.values() for name in one["names"]}
    said = " ".join(form for _, entry in ENTRIES for form in entry.forms)
    for pattern in (
        r"\bcudaError[A-Z]\w+",
        r"\bCUDA_ERROR_\w+",
        r"\bCUBLAS_STATUS_\w+",
        r"\bCUDNN_STATUS_\w+",
        r"\bnccl\w+(?:Error|Argument|Usage|InProgress|Timeout)\b",
    ):
        named = set(re.findall(pattern, said))
        assert named and named <= known, named - known


def test_every_error_that_a_launch_can_meet_has_an_entry():
    """Of CUDA's runtime errors, those that are left out concern APIs that vLLM does not use."""
    said = " ".join(form for _, entry in ENTRIES for form in entry.forms)
    results = [n for n in NAMES["nccl.h"]["names"] if n in said]
    assert len(results) >= 6
    statuses = NAMES["cublas_api.h"]["names"]
    assert {n for n in statuses if n not in said} <= {"CUBLAS_STATUS_SUCCESS"}


def test_numbers_of_errors_are_the_systems_own():
    """`[Errno N] text` of a form is what this system prints for that number."""
    for _, entry in ENTRIES:
        for form in entry.forms:
            match = re.search(r"\[Errno (\d+)\] ([A-Z][\w -]+)", form)
            if match:
                assert os.strerror(int(match[1])).startswith(match[2].strip()), form
                assert int(match[1]) in errno.errorcode


def output(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1]


def test_what_shells_python_and_argparse_print_is_recognized(tmp_path):
    """The programs are run, and their last line is diagnosed."""
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf7\x00" + bytes(44))
    foreign.chmod(0o755)
    parser = argparse.ArgumentParser(prog="vllm serve", exit_on_error=False)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-num-batched-tokens", type=int)
    with pytest.raises(argparse.ArgumentError) as refused:
        parser.parse_args(["--max-num-seqs", "many"])
    lines = {
        output("bash", "-c", "nosuchprogram"): "LOG900",
        output("bash", "-c", "nvidia-smi-x; echo 'a"): "LOG305",
        output("bash", "-c", str(foreign)): "LOG207",
        output(sys.executable, "-c", "import nosuchpackage"): "LOG224",
        output(sys.executable, "-c", "dict(a=1).pop()"): None,
        output(sys.executable, "-c", "(lambda: 0)(key=1)"): "LOG709",
        output(sys.executable, "-c", "import json; json.loads('')"): "LOG709",
        output(sys.executable, "-c", "import json; json.nosuch"): "LOG709",
        f"vllm serve: error: {refused.value}": "LOG306",
    }
    for line, rule in lines.items():
        diagnosis = logs.diagnose(line)
        assert diagnosis.primary is not None, line
        assert rule is None or diagnosis.primary.rule == rule, (line, diagnosis.primary)


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_of_it_is_in_a_healthy_log(name):
    found = logs.diagnose(DATA / name)
    assert not [f for f in found.findings if f.rule.startswith("LOG7")]


def test_a_file_with_an_unknown_key_is_refused(tmp_path):
    from sparkbook.errors import SparkbookError

    file = tmp_path / "vocabulary.yaml"
    file.write_text(
        "- {code: LOG701, name: x, by: cuda, text: x, source: x, fails: x,"
        " entries: [{says: x, means: xxxxxxxxx, do: Do it now., what: x}]}\n"
    )
    with pytest.raises(SparkbookError, match=r"vocabulary\.yaml"):
        load(file)


def test_two_versions_that_do_not_fit():
    diagnosis = logs.diagnose("TypeError: f() got an unexpected keyword argument 'rope_parameters'")
    assert "different versions" in diagnosis.headline and diagnosis.primary.kind == "dependency"


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("csrc/apis/layout.hpp", "deepgemm"),
        ("/usr/lib/python3.12/dist-packages/vllm/v1/attention/backends/mla/common.py", "attention"),
        ("/x/site-packages/vllm/v1/structured_output/backend_xgrammar.py", "structured-output"),
        ("/x/vllm/v1/spec_decode/eagle.py", "speculation"),
        ("/x/vllm/model_executor/layers/fused_moe/layer.py", "moe"),
        ("/x/vllm/model_executor/layers/quantization/modelopt.py", "quantization"),
        ("/x/vllm/tool_parsers/qwen3coder_tool_parser.py", "tool-parser"),
        ("/x/vllm/model_executor/model_loader/weight_utils.py", "loader"),
        ("/x/huggingface_hub/file_download.py", "download"),
        ("/x/vllm/distributed/device_communicators/pynccl.py", "communication"),
        ("/x/vllm/v1/executor/multiproc_executor.py", "executor"),
        ("/x/nobody/knows.py", None),
    ],
)
def test_a_file_belongs_to_a_part(path, part):
    found = part_of(path)
    assert (found.name if found else None) == part


def test_every_part_says_what_switches_it_off():
    for part in parts():
        assert re.match(r"[A-Z][a-z]+\b", part.switch) and part.switch.endswith(".")
        assert part.kind is None or part.kind in kinds()
