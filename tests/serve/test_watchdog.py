"""The watchdog's judgement over traces, and that it acts once and in time."""

import threading

import pytest
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.faults import ServeFault
from sparkbook.serve.process import free_port
from sparkbook.serve.watchdog import Eyes, Limits, Sample, Watchdog, guard, judge
from sparkbook.units import GIB

SPARK = Limits.of_host(int(121.69 * GIB))


def memory(*gib: float, every_s: float = 0.5):
    return [Sample(i * every_s, int(size * GIB)) for i, size in enumerate(gib)]


def engine(seconds, tokens, running, power, every_s=5.0):
    """A trace of so many seconds; `tokens` and `power` may be functions of the time."""
    of = lambda value, at: value(at) if callable(value) else value  # noqa: E731
    return [
        Sample(
            at * every_s,
            20 * GIB,
            of(tokens, at * every_s),
            of(running, at * every_s),
            of(power, at * every_s),
        )
        for at in range(int(seconds / every_s) + 1)
    ]


def test_the_floor_of_a_spark():
    assert 6 <= SPARK.floor / GIB < 6.1
    assert Limits.of_host(121 * GIB, 8 * GIB).floor == 8 * GIB


@pytest.mark.parametrize(
    ("trace", "acts"),
    [
        (memory(60, 40, 20, 12, 12, 12), False),  # a large model that fits
        (memory(20, 5.9, 12, 12), False),  # one dip
        (memory(20, 5.9, 5.8), True),
        (memory(29, 2.5), True),  # below half of the floor: no second look
        (
            memory(29, 26.7, 24.4, 22.1, 19.8, 17.5, 15.2, 12.9, 10.6, 8.3, 6.0, 5.9),
            True,
        ),  # 29 to 6 GiB in 5 s, as in vLLM's issue 56824
        ([Sample(0), Sample(1)], False),  # nothing known is nothing bad
        ([], False),
    ],
)
def test_memory(trace, acts):
    found = [judge(trace[: i + 1], SPARK) for i in range(len(trace))]
    assert any(found) is acts
    if acts:
        first = next(filter(None, found))
        assert (first.rule, first.kind) == ("DOCK401", "host-freeze")


def test_the_collapse_is_caught_before_the_host_is_gone():
    """The trace of issue 56824, 2.3 GiB a second, looked at twice a second: acted on with more than
    4 GiB left.
    """
    trace = memory(*(29 - 2.3 * step / 2 for step in range(26)))
    left = next(trace[i].available for i in range(len(trace)) if judge(trace[: i + 1], SPARK))
    assert left > 4 * GIB


@pytest.mark.parametrize(
    ("trace", "acts"),
    [
        (
            engine(400, 1000, 1, 22),
            True,
        ),  # tokens frozen, a request runs, 22 W: the deadlock of vLLM's issue 37729
        (engine(170, 1000, 1, 22), False),  # not long enough yet
        (engine(400, 1000, 1, 71), False),  # a long prefill
        (engine(400, 1000, 0, 8), False),  # nobody asks
        (engine(400, lambda at: at * 14, 4, 25), False),  # slow, but it moves
        (
            engine(400, lambda at: 1000 + (at > 300), 1, 22),
            False,
        ),  # one token came within the window
        (engine(400, 1000, 1, None), False),  # the power is not known: never accused
        (
            engine(400, 1000, lambda at: float(at > 350), 22),
            False,
        ),  # the request has only just begun
        (engine(400, 1000, 1, lambda at: 60 if at == 300 else 20), False),
    ],
)
def test_progress(trace, acts):
    found = judge(trace, SPARK)
    assert bool(found) is acts
    if found:
        assert (
            found.rule == "DOCK402" and found.kind == "hang-health-ok" and "22 W" in found.message
        )


def test_memory_samples_in_between_do_not_hide_a_stall():
    trace = sorted(engine(400, 1000, 1, 22) + memory(*[20] * 800), key=lambda sample: sample.at_s)
    assert judge(trace, SPARK).rule == "DOCK402"


def test_acts_once():
    acted = []
    samples = iter(memory(20, 5, 5, 5, 5))
    dog = Watchdog(lambda: acted.append(True), lambda: next(samples), SPARK)
    found = [dog.step() for _ in range(5)]
    assert [bool(one) for one in found] == [False, False, True, False, False]
    assert acted == [True] and dog.finding.rule == "DOCK401"


def test_a_look_that_fails_does_not_end_the_watch():
    acted = threading.Event()
    looks = iter([*memory(20), OSError("gone"), *memory(2, 2)])

    def read():
        look = next(looks)
        if isinstance(look, Exception):
            raise look
        return look

    with Watchdog(acted.set, read, SPARK, every_s=0.01):
        assert acted.wait(60)


def test_eyes(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n")
    clock = iter(range(100))
    eyes = Eyes(
        Endpoint("http://127.0.0.1:9", "x", "k"),
        meminfo=meminfo,
        power=lambda: 5.0,
        clock=lambda: float(next(clock)),
    )
    assert eyes() == Sample(1.0, 400 * 1024)  # the engine does not answer yet: unknown, not zero
    meminfo.unlink()
    assert eyes() == Sample(2.0)


def test_no_start_below_the_floor():
    with pytest.raises(ServeFault, match="DOCK403"):
        guard(lambda: None, None, floor=1 << 60)
    assert guard(lambda: None, None, floor=1).limits.floor == 1


def test_the_watch_sends_no_key(stranger):
    port = free_port()
    with stranger(port) as requests:
        guard(lambda: None, Endpoint(f"http://127.0.0.1:{port}", "x", "key"), floor=1).step()
    assert requests == [None]
