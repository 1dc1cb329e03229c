"""The life of a server over two nodes, with the stand-in for vLLM: what is lost is named, and every
rank is taken down.
"""

import pytest
import yaml
from sparkbook.cluster import cluster_plan, nodes, server
from sparkbook.serve import stack

pytestmark = pytest.mark.cluster


def started(two_nodes, mode="", host="spark-b"):
    inventory = two_nodes.inventory(env={"STAND_IN_MODE": mode} if host == "spark-b" else {})
    sites = nodes.look(inventory)
    served = server.ClusterServer(
        cluster_plan.plan(inventory, stack.given("embedded/tiny-dense", "two"), sites), sites
    )
    served.start()
    return served


def test_the_link_is_cut_while_it_serves(two_nodes, stand_in_engine):
    served = started(two_nodes)
    try:
        served.wait_ready(deadline_s=240)
        assert served.settled(2) is None, "all is well, and nothing is said"
        two_nodes.cut()
        fault = served.settled(240)
        assert fault.findings[0].rule == "FAB404" and "spark-b" in fault.findings[0].message
        assert list(fault.tails) == ["spark-a (rank 0)", "spark-b (rank 1)"]
    finally:
        left = served.stop()
    assert not left and not two_nodes.processes()


def test_a_rank_that_dies_ends_the_wait(two_nodes, stand_in_engine):
    served = started(two_nodes, "dies")
    with pytest.raises(server.ClusterFault) as fault:
        served.wait_ready(deadline_s=240)
    assert fault.value.findings[0].rule == "FAB401" and "Rank 1 on spark-b fell first" in str(
        fault.value
    )
    assert "the model can't be loaded" in str(fault.value) and not two_nodes.processes()


def test_a_deadline_says_what_every_rank_said_last(two_nodes, stand_in_engine, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "hangs")
    served = started(two_nodes, "hangs")
    with pytest.raises(server.ClusterFault) as fault:
        served.wait_ready(deadline_s=2)
    assert (
        fault.value.findings[0].rule == "FAB405"
        and "INFO stand-in" in fault.value.findings[0].evidence
    )
    assert not two_nodes.processes()


def test_a_start_that_fails_half_way_leaves_nothing(two_nodes, stand_in_engine, monkeypatch):
    from sparkbook.serve.engine import EngineError

    inventory = two_nodes.inventory()
    sites = nodes.look(inventory)
    served = server.ClusterServer(
        cluster_plan.plan(inventory, stack.given("embedded/tiny-dense", "two"), sites), sites
    )
    real = served._engine

    def second_fails(rank):
        if rank.number == 0:
            raise EngineError("the head can't be started")
        return real(rank)

    monkeypatch.setattr(served, "_engine", second_fails)
    with pytest.raises(EngineError):
        served.start()
    assert not two_nodes.processes()


def test_a_step_that_fails_on_another_rank_ends_the_wait(two_nodes, stand_in_engine, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "hangs")
    served = started(two_nodes, "step-fails")
    with pytest.raises(server.ClusterFault) as fault:
        served.wait_ready(deadline_s=240)
    assert fault.value.findings[0].rule == "FAB401", str(fault.value)
    assert "Rank 1 on spark-b" in fault.value.findings[0].message
    assert not two_nodes.processes()


def test_a_firewall_on_the_port_where_they_meet_is_named(two_nodes, stand_in_engine, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "hangs")
    monkeypatch.setattr(server, "_PORT_S", 0.2)
    two_nodes.drop("-p", "tcp", "--dport", "29501")
    served = started(two_nodes, "hangs")
    with pytest.raises(server.ClusterFault) as fault:
        served.wait_ready(deadline_s=240)
    assert fault.value.findings[0].rule == "FAB406"
    assert "spark-b reaches spark-a, but not its port 29501" in str(fault.value)
    assert not two_nodes.processes()


def test_the_ranks_of_a_server_are_not_exchanged_one_by_one(two_nodes, stand_in_engine, tmp_path):
    from sparkbook.cluster import commands
    from sparkbook.errors import SparkbookError

    file = tmp_path / "pair.yaml"
    file.write_text(
        yaml.safe_dump(two_nodes.inventory().model_dump(exclude_defaults=True, mode="json")),
        "utf-8",
    )
    wish = commands.Wish(str(file), "embedded/tiny-dense", "two", replace=True)
    commands.can_replace(wish, two_nodes.inventory(), "two")  # nothing runs: nothing to say
    served = started(two_nodes)
    try:
        served.wait_ready(deadline_s=240)
        before = {name: engine._guard.pid for name, engine in served.engines.items()}
        with pytest.raises(SparkbookError) as refused:
            commands.serve(wish, say=str, show=str)
        assert "can't be exchanged one by one" in str(refused.value)
        assert f"sparkbook cluster stop {file} two && sparkbook cluster serve {file}" in str(
            refused.value
        )
        assert {name: engine._guard.pid for name, engine in served.engines.items()} == before
        assert served.look() is None
    finally:
        served.stop()
    commands.can_replace(wish, two_nodes.inventory(), "two")
