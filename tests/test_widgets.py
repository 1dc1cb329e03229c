"""The planner: what it says to a choice, and that the controls change it."""

import re

import pytest
from sparkbook import widgets
from sparkbook.errors import SparkbookError
from sparkbook.formats import FORMATS
from sparkbook.recipes import load
from sparkbook.widgets import Choice, answer

QWEN = "qwen3.6-27b-nvfp4-mtp"


def test_four_sequences_of_qwen():
    # 16 layers of 4 heads of 256 in BF16 are 64 KiB a token; states of 48 layers and whole blocks
    # come on top.
    found = answer(Choice(QWEN, context=32768, sequences=4))
    assert found.needed_gib.exact
    assert 4 * 32768 * 65536 / 2**30 < found.needed_gib.low < 1.2 * 4 * 32768 * 65536 / 2**30
    assert found.fits
    assert found.verdict.startswith(
        "Fits: 4 × 32,768 tokens need 9.2 GiB of KV cache, and there are "
    )


@pytest.mark.parametrize(
    ("choice", "verdict"),
    [
        (Choice(QWEN, fraction=0.1), "Does not fit: weights and working memory take at least"),
        (
            Choice(QWEN, fraction=0.95),
            "Does not fit: --gpu-memory-utilization 0.95 asks for 115.5 GiB",
        ),
        (Choice(QWEN, others_gib=60.0), "Does not fit: the engines hold 157.3 GiB together"),
        (
            Choice(QWEN, context=262144, sequences=16),
            "Fits with fewer or shorter sequences: 16 × 262,144 tokens need",
        ),
    ],
)
def test_what_does_not_fit_says_what_would(choice, verdict):
    found = answer(choice)
    assert not found.fits
    assert found.verdict.startswith(verdict)


def test_what_hangs_on_the_host_may_fit():
    found = answer(Choice(QWEN, fraction=0.9))
    assert found.fits
    assert found.verdict.startswith("May fit: ")


def test_a_narrower_cache_needs_half_and_a_draft_more():
    wide, narrow, drafting = (
        answer(Choice(QWEN, **more)) for more in ({}, {"kv": "fp8"}, {"drafted": 3})
    )
    assert narrow.needed_gib.low < wide.needed_gib.low < drafting.needed_gib.low
    assert drafting.speed.length > wide.speed.length == 1


def test_the_launch_line_says_what_was_chosen():
    found = answer(Choice(QWEN, context=65536, sequences=2, kv="fp8", fraction=0.5, drafted=2))
    args = FORMATS["docker"].read(found.launch).launch.serve.args
    assert args["max-model-len"] == 65536
    assert args["max-num-seqs"] == 2
    assert args["gpu-memory-utilization"] == 0.5
    assert args["kv-cache-dtype"] == "fp8"
    assert args["speculative-config"]["num_speculative_tokens"] == 2
    assert (
        "speculative-config"
        not in FORMATS["docker"].read(answer(Choice(QWEN)).launch).launch.serve.args
    )


@pytest.mark.parametrize("name", widgets.models())
def test_every_model_can_be_planned(name):
    found = answer(Choice(name))
    assert found.launch
    assert widgets.bar_html(found)
    assert found.speed is None or found.speed.low < found.speed.tok_s < found.speed.high
    assert ("No estimate" in widgets.verdict_html(found)) is (found.speed is None)


def test_each_model_stands_once():
    repos = [load(name).model.repo for name in widgets.models()]
    assert len(repos) == len(set(repos)) >= 15


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("no-such-recipe"), "no-such-recipe"),
        (Choice("gpt-oss-120b", drafted=2), "has no draft"),
    ],
)
def test_impossible_choices_are_refused(choice, message):
    with pytest.raises(SparkbookError, match=message):
        answer(choice)


def test_the_bar_is_read_aloud_and_fills_the_width():
    text = widgets.bar_html(answer(Choice(QWEN)))
    assert 'role="img" aria-label="Memory in GiB: weights ' in text
    assert sum(float(width) for width in re.findall(r"width:([\d.]+)%", text)) == pytest.approx(
        100, abs=0.1
    )
    assert "http" not in text


def test_controls_change_the_answer():
    box = widgets.planner(Choice(QWEN), [QWEN, "gpt-oss-120b"])
    *controls, bar, verdict, launch = box.children
    by_name = {control.description: control for control in controls}
    assert "✓ Fits" in verdict.value
    before = bar.value
    by_name["others hold, GiB"].value = 60
    assert "✗ Does not fit: the engines hold" in verdict.value
    assert bar.value != before
    by_name["others hold, GiB"].value = 0
    by_name["model"].value = "gpt-oss-120b"
    assert "openai/gpt-oss-120b" in launch.value
    by_name["drafted tokens"].value = 3
    assert "has no draft" in verdict.value
    assert not launch.value
