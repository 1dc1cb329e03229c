"""Which rank fell first, out of what ranks of a real vLLM 0.32.0 (CPU) printed on two nodes."""

from pathlib import Path

import pytest
from sparkbook.cluster import sighting
from sparkbook.cluster.ranks import RankState, first_fallen
from sparkbook.cluster.rules import FAB

DATA = Path(__file__).parents[1] / "data" / "cluster"


def ranks(name, **head):
    states = [
        (0, "spark-a", "head", head),
        (1, "spark-b", "worker", {"running": False, "exit_status": 1}),
    ]
    return [
        RankState(n, host, (DATA / f"{name}-{end}.log").read_bytes(), **more)
        for n, host, end, more in states
    ]


@pytest.mark.parametrize(
    ("name", "rule", "said"),
    [
        # pipeline parallelism is ready, and fails at the first request: worker 07:37:09, head
        # 07:37:10
        ("pipeline", "FAB401", "Worker_PP1: AssertionError"),
        # the second worker was killed; the head found out at the next request, 7 s later
        ("killed", "FAB402", "vanished first"),
        # GLOO_SOCKET_IFNAME of the second node names a port that it does not have; the head waits
        # on
        ("interface", "FAB401", "network interface"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_first_fallen(name, rule, said, order):
    states = ranks(
        name, running=name == "interface", exit_status=None if name == "interface" else 1
    )[::order]
    found = FAB.judge(sighting.example(ranks=states))
    assert found[0].rule == rule and "spark-b" in found[0].message and said in found[0].message
    assert len([finding for finding in found if finding.rule.startswith("FAB4")]) == 1


def test_healthy_ranks_have_not_fallen():
    up = b"(APIServer pid=1) INFO 11-28 10:00:00 [launcher.py:1] Application startup complete.\n"
    assert first_fallen([RankState(0, "a", up), RankState(1, "b", b"")]) is None


def test_a_cause_of_its_own_comes_before_a_lost_node():
    oom = (
        b"(Worker_TP0 pid=1) ERROR 11-28 10:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of"
        b" memory. Tried to allocate 2.00 GiB\n"
    )
    first = first_fallen(
        [RankState(0, "a", oom, False, 1), RankState(1, "b", b"", unreachable="no route")]
    )
    assert first.state.host == "a"
