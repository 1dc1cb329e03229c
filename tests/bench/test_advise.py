"""Advice on speculation: from invented measurements whose answer is known, and from acceptance and
costs.
"""

import math

import pytest
from sparkbook.bench import advise as module
from sparkbook.bench.advise import Costs, _report, advise, expected, fit, tokens_per_step
from sparkbook.bench.equality import Answer, compare
from sparkbook.errors import SparkbookError


def codes(advice):
    return [finding.rule for finding in advice.findings()]


def test_the_smallest_k_that_is_as_good_as_the_fastest():
    found = advise(
        [_report(20)], {1: [_report(28, 1)], 3: [_report(40, 3)], 5: [_report(40.02, 5)]}
    )
    assert found.best == {("code", 1): 3}
    assert "ADV101" in codes(found) and "ADV102" not in codes(found)


def test_a_gain_that_could_be_luck_is_no_gain():
    # 6 % in the mean, and an interval that reaches below 5 %: off.
    found = advise([_report(20)], {2: [_report(20.9, 2)]})
    assert found.best == {("code", 1): 0} and "ADV102" in codes(found)


def test_classes_are_judged_one_by_one():
    off = [_report(20), _report(20, name="prose")]
    on = [_report(40, 3), _report(18, 3, name="prose")]
    found = advise(off, {3: on})
    assert found.best == {("code", 1): 3, ("prose", 1): 0}
    assert found.classes == ["code", "prose"]


def test_the_schedule_covers_every_batch_size_once():
    off = [_report(20, c=c) for c in (1, 4, 16)]
    on = {
        1: [_report(24, 1, c) for c in (1, 4, 16)],
        3: [_report(40, 3, 1), _report(22, 3, 4), _report(10, 3, 16)],
    }
    found = advise(off, on, most=64)
    assert found.schedule == ((1, 3, 3), (4, 64, 1))
    fix = next(f.fix for f in found.findings() if f.rule == "ADV104")
    assert '"num_speculative_tokens_per_batch_size": [[1, 3, 3], [4, 64, 1]]' in fix


@pytest.mark.engine
def test_vllm_takes_the_schedule_as_it_is_written():
    import json
    import subprocess

    from sparkbook.serve.paths import engine_python

    off, on = [_report(20), _report(20, c=8)], {3: [_report(40, 3), _report(15, 3, c=8)]}
    schedule = json.dumps([list(entry) for entry in advise(off, on).schedule])
    code = (
        "from vllm.v1.spec_decode.dynamic.utils import validate_and_normalize_dynamic_sd_schedule"
        f" as check\nprint(check({schedule}))"
    )
    done = subprocess.run(
        [str(engine_python()), "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.strip().splitlines()[-1] == "[(1, 7, 3), (8, 256, 0)]"


def test_a_release_without_the_schedule_is_told_so():
    off, on = [_report(20), _report(20, c=8)], {3: [_report(40, 3), _report(15, 3, c=8)]}
    assert (
        "num_speculative"
        not in next(
            f for f in advise(off, on, release="0.19.0").findings() if f.rule == "ADV104"
        ).fix
    )
    assert (
        "num_speculative"
        in next(f for f in advise(off, on, release="0.32.0").findings() if f.rule == "ADV104").fix
    )
    assert (
        next(f for f in advise(off, on, release="99.0").findings() if f.rule == "ADV104").confidence
        == "medium"
    )


def test_a_k_that_changes_the_output_is_not_advised():
    a = [Answer(f"p{i}", ("1",), ({"1": -0.1, "2": -4.0},)) for i in range(12)]
    b = [Answer(x.prompt, ("2",), x.tops) for x in a]
    found = advise(
        [_report(20)],
        {1: [_report(30, 1)], 3: [_report(60, 3)]},
        equality={3: compare(a, b, a), 1: compare(a, a, a)},
    )
    assert found.best == {("code", 1): 1}
    assert codes(found)[0] == "ADV202"


def test_a_machine_that_changed_is_named():
    found = advise([_report(20), _report(15)], {3: [_report(40, 3)]})
    assert "the machine changed" in next(f for f in found.findings() if f.rule == "ADV201").message


@pytest.mark.parametrize("arms", [{}, {0: [_report(20)]}, {3: [_report(20, name="prose")]}])
def test_what_cannot_be_advised_on_is_said(arms):
    with pytest.raises(SparkbookError):
        advise([_report(20)], arms)


def test_tokens_per_step():
    assert tokens_per_step((0.8, 0.6, 0.4), 0) == 1
    assert tokens_per_step((0.8, 0.6, 0.4), 2) == pytest.approx(2.4)
    # p, p², p³ continue as p⁴: the geometric series goes on as it began.
    assert tokens_per_step((0.5, 0.25), 4) == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625)
    assert tokens_per_step((0.5, 0.0), 5) == 1.5
    for wrong in ((1.2,), (0.4, 0.6), (-0.1,)):
        with pytest.raises(SparkbookError):
            tokens_per_step(wrong, 1)


def test_the_best_k_follows_the_cost_of_a_draft():
    vector = tuple(0.8**i for i in range(1, 9))
    best = {
        cost: max(expected(vector, Costs(draft=cost, verify=0.0), 8), key=lambda row: row[2])[0]
        for cost in (0.01, 0.1, 0.3, 0.9)
    }
    assert list(best.values()) == sorted(best.values(), reverse=True) and best[0.9] == 0


def test_costs_from_measured_steps():
    costs = fit({0: 10.0, 1: 12.0, 3: 14.0, 5: 16.0})
    assert (costs.draft, costs.once) == (pytest.approx(0.1), pytest.approx(0.1))
    assert [costs.step(k) * 10 for k in (0, 1, 5)] == pytest.approx([10, 12, 16])
    assert fit({0: 10.0, 4: 12.0}).draft == pytest.approx(0.05)
    with pytest.raises(SparkbookError):
        fit({1: 3.0, 2: 4.0})


def test_the_published_classes_of_one_dflash_container_share_a_step_time():
    # tok/s and accepted drafts as published for DFlash with K = 15
    # (https://github.com/AEON-7/vllm-dflash): one step serves all classes.
    steps = [(1 + accepted) / speed for speed, accepted in ((64.0, 5.5), (38.4, 3.0), (29.5, 2.0))]
    assert max(steps) / min(steps) < 1.06
    assert math.isclose(sum(steps) / 3, 0.102, rel_tol=0.02)
    assert module.WORTH > 1
