"""The numbers of a line, as vLLM's own parser reads them: one that is none is an error of the line
in lint and in plan, and never an option that was not given.
"""

import pytest
from sparkbook import lint
from sparkbook.errors import SparkbookError
from sparkbook.launch.arguments import converted
from sparkbook.plan import request

LINE = "vllm serve openai/gpt-oss-20b"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8192", 8192),
        ("10_000_000", 10_000_000),
        ("64k", 64_000),
        ("64K", 65_536),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("1M", 2**20),
        (" 8k ", 8000),
    ],
)
def test_a_context_is_read_as_vllm_reads_it(text, number):
    assert converted(text, "human_int_or_auto") == number
    setup = request.read(f"{LINE} --max-model-len '{text}'")
    assert setup.context == number


@pytest.mark.parametrize("text", ["auto", "AUTO", "-1"])
def test_an_automatic_context_is_not_denied(text):
    setup = request.read(f"{LINE} --max-model-len {text}")
    assert setup.context == 131_072
    assert any(fact.startswith("--max-model-len auto") for fact in setup.assumed)
    assert not any("no --max-model-len" in fact for fact in setup.assumed)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        *((f"--max-model-len {word}", "FLAG105") for word in ("abc", "0x10", "1.5", "nan", "1.5K")),
        *((f"--max-model-len={word}", "FLAG121") for word in ("0", "-5")),
        ("--max-model-len 1 2", "FLAG111"),
        ("--max-num-seqs 0", "FLAG121"),
        ("--max-num-seqs 64k", "FLAG105"),
        ("--max-num-batched-tokens 0", "FLAG121"),
        ("--max-num-batched-tokens lots", "FLAG105"),
        ("--tensor-parallel-size 0", "FLAG121"),
        ("--block-size -16", "FLAG121"),
        ("--kv-cache-memory-bytes 5GiB", "FLAG105"),
        *(
            (f"--gpu-memory-utilization {word}", "FLAG121")
            for word in ("nan", "-1", "inf", "1.01", "0")
        ),
        ("--gpu-memory-utilization 80%", "FLAG105"),
        ("--max-num-seqs", "FLAG106"),
        (f"--max-model-len {'9' * 400}k", "FLAG105"),
    ],
)
def test_what_is_no_number_is_an_error_of_the_line(words, rule):
    findings = lint.lint(f"{LINE} {words}").findings
    assert [finding.rule for finding in findings if finding.severity == "error"] == [rule]
    if rule != "FLAG111":
        with pytest.raises(SparkbookError, match=words.partition(" ")[0].partition("=")[0]):
            request.read(f"{LINE} {words}")


def test_a_number_that_the_command_line_replaces_is_not_asked():
    setup = request.read(f"{LINE} --max-model-len abc", request.Override(context=4096))
    assert setup.context == 4096


def test_a_number_that_only_a_shell_knows_is_asked_for():
    with pytest.raises(SparkbookError, match=r"\$LEN: only your shell"):
        request.read(f"{LINE} --max-model-len $LEN")
    assert (
        request.read(f"{LINE} --max-model-len $LEN", request.Override(context=4096)).context == 4096
    )


def test_the_variables_of_a_script_of_an_image_are_read_alike():
    line = "docker run -e MODEL=openai/gpt-oss-20b -e MAX_MODEL_LEN={} avarok/dgx-vllm:1"
    assert request.read(line.format("8k")).context == 8000
    with pytest.raises(SparkbookError, match="MAX_MODEL_LEN abc: expected a whole number"):
        request.read(line.format("abc"))
    with pytest.raises(SparkbookError, match="MAX_MODEL_LEN 0: expected 1 or more"):
        request.read(line.format("0"))
