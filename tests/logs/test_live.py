"""A growing log: the fault is known as soon as its line is, and not before."""

import doctest
from pathlib import Path

import pytest
from sparkbook import logs
from sparkbook.logs import follow

DATA = Path(__file__).parents[1] / "data" / "logs"


@pytest.mark.parametrize("name", ["h100-0.24.0-kv-small", "cpu-0.32.0-gmu", "cpu-0.32.0-badattn"])
@pytest.mark.parametrize("step", [97, 4096])
def test_ends_the_wait_with_the_same_answer(name, step):
    text = (DATA / f"{name}.log").read_bytes()
    follower = logs.Follower()
    found = None
    for begin in range(0, len(text), step):
        found = follower.fault(text[begin : begin + step])
        if found:
            break
    found = found or follower.fault(b"", ended=True)
    assert found.primary.rule == logs.diagnose(text).primary.rule


@pytest.mark.parametrize(
    "name", ["h100-0.24.0-ngram", "cpu-0.32.0-compiled", "cpu-0.32.0-tiny35_mtp3"]
)
def test_a_healthy_start_is_never_interrupted(name):
    text = (DATA / f"{name}.log").read_bytes()
    text = text[: text.index(b"[shutdown]")].rpartition(b"\n")[0]
    follower = logs.Follower()
    for begin in range(0, len(text), 512):
        assert follower.fault(text[begin : begin + 512]) is None
        assert follower.fault(b"") is None
    assert follower.diagnosis().verdict == "healthy"


def test_an_echo_waits_for_the_cause():
    follower = logs.Follower()
    echo = (
        b"(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause"
        b" above.\n"
    )
    assert follower.fault(echo) is None
    assert follower.fault(b"") is None
    assert follower.fault(b"", ended=True).primary.rule == "LOG510"


def test_the_example():
    assert doctest.testmod(follow).failed == 0 and doctest.testmod(follow).attempted
