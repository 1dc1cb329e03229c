"""The network between two namespaces, measured for real, and its faults: each named, nothing left
behind.
"""

import json
import socket
import subprocess

import pytest
from namespaces import ADDRESSES
from sparkbook.cluster import fabric, nodes, sighting, staging
from sparkbook.cluster.rules import FAB
from sparkbook.errors import SparkbookError

pytestmark = pytest.mark.cluster


def look(two_nodes, **second):
    inventory = two_nodes.inventory(**second)
    return inventory, nodes.look(inventory)


def measured(two_nodes):
    inventory, sites = look(two_nodes)
    pairs = fabric.measure(inventory, sites, seconds=0.2, reduce=False)
    return pairs[0], [
        finding.rule for finding in FAB.judge(sighting.Seen(inventory, sites, pairs=pairs))
    ]


def test_a_link_in_good_order(two_nodes):
    _, sites = look(two_nodes)
    assert [site.interface for site in sites] == [two_nodes.left, two_nodes.right]
    assert sites[1].environment()["GLOO_SOCKET_IFNAME"] == two_nodes.right
    pair, found = measured(two_nodes)
    assert (
        pair.problem is None
        and pair.full
        and pair.full_bytes == 1500
        and pair.tcp_gbit > 1
        and pair.rtt_us < 5000
    )
    assert not {"FAB301", "FAB302", "FAB303"} & set(found)
    assert not two_nodes.processes()


def test_a_cut_link(two_nodes):
    two_nodes.cut()
    pair, found = measured(two_nodes)
    assert pair.problem and "FAB102" in found and "FAB301" in found
    assert not two_nodes.processes()


def test_a_slow_link(two_nodes):
    two_nodes.shape(0.1, 20_000)
    pair, found = measured(two_nodes)
    assert pair.tcp_gbit < 0.4 and "FAB303" in found
    assert pair.rtt_us > 20000 and "FAB304" in found


def test_a_link_that_loses_packets(two_nodes):
    assert measured(two_nodes)[0].lost == 0
    two_nodes.drop("-m", "statistic", "--mode", "random", "--probability", "0.05")
    pair, found = measured(two_nodes)
    assert 0.005 < pair.lost < 0.3 and "FAB308" in found


def test_large_packets_that_are_lost(two_nodes):
    # The ends say 9000, what lies between carries 1500.
    for words in (
        ["link", "set", two_nodes.left, "mtu", "9000"],
        ["-n", two_nodes.b, "link", "set", two_nodes.right, "mtu", "9000"],
    ):
        subprocess.run(["ip", *words], check=True)
    assert measured(two_nodes)[0].full_bytes == 9000
    subprocess.run(
        ["ip", "-n", two_nodes.b, "link", "set", two_nodes.right, "mtu", "1500"], check=True
    )
    _, sites = look(two_nodes)
    inventory = two_nodes.inventory()
    assert "FAB204" in [finding.rule for finding in FAB.judge(sighting.Seen(inventory, sites))]
    claimed = sites[0].link.model_copy(update={"mtu": 9000})
    both = [
        site.model_copy(
            update={
                "network": site.network.model_copy(update={"links": [claimed]}),
                "interface": claimed.name,
            }
        )
        for site in sites
    ]
    pairs = fabric.measure(inventory, both, seconds=0.2, reduce=False)
    assert pairs[0].full is False
    assert "FAB302" in [
        finding.rule for finding in FAB.judge(sighting.Seen(inventory, both, pairs=pairs))
    ]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"interface": "nosuch0"}, "spark-b has no port nosuch0"),
        ({"address": "10.97.0.9"}, "spark-b does not have the address 10.97.0.9"),
        ({"address": None}, None),
    ],
)
def test_a_wrong_interface(two_nodes, second, said):
    inventory, sites = look(two_nodes, **second)
    found = [
        finding.message
        for finding in FAB.judge(sighting.Seen(inventory, sites))
        if finding.rule == "FAB102"
    ]
    assert (said is None and not found) or any(said in message for message in found)


def test_staging_makes_another_revision_the_same(two_nodes, tmp_path):
    from sparkbook.checkpoint.store import write_cache

    old, new = "1" * 40, "2" * 40
    here, there = tmp_path / "a", tmp_path / "b"
    write_cache(
        here / "hub", "org/model", {new: {"config.json": b"{}", "model.safetensors": b"new"}}, new
    )
    write_cache(
        there / "hub", "org/model", {old: {"config.json": b"{}", "model.safetensors": b"old"}}, old
    )
    inventory = two_nodes.inventory(store=str(there))
    inventory = inventory.model_copy(
        update={
            "nodes": [inventory.head.model_copy(update={"store": str(here)}), inventory.nodes[1]]
        }
    )
    place = "{store}/hub/models--org--model"
    sites = nodes.look(inventory, model=place)
    found = [
        finding
        for finding in FAB.judge(sighting.Seen(inventory, sites))
        if finding.rule == "FAB202"
    ]
    assert (
        len(found) == 1
        and "spark-b has other model files" in found[0].message
        and old in found[0].evidence
        and new in found[0].evidence
    )
    said = []
    sites, left = staging.stage(inventory, None, place, say=said.append)
    assert not left and sites[0].model == sites[1].model and sites[1].revision == new
    assert said == ["copying the model from spark-a to spark-b"]
    said.clear()
    assert not staging.stage(inventory, None, place, say=said.append)[1] and not said


@pytest.mark.parametrize(
    "place",
    [
        *("~", "/", "~/.ssh", "~/vllm", "~/vllm/", "~/vllm/../.ssh", "/etc", "{store}", "{store}/"),
        *("{store}/hub", "{store}/hub/x", "~/vllm/hub/models--a/..", "{store}/token", "x"),
    ],
)
def test_a_copy_that_would_empty_another_folder_is_refused(two_nodes, place):
    inventory = two_nodes.inventory()
    with pytest.raises(SparkbookError, match=r"refused|outside the model store"):
        staging.copy(inventory.head, inventory.nodes[1], nodes.Site(host="spark-b"), place)


def test_a_file_that_was_changed_has_another_hash(two_nodes, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("same size")
    (tmp_path / "b" / "model.safetensors").write_text("same siZe")
    inventory = two_nodes.inventory(store=str(tmp_path / "b"))
    inventory = inventory.model_copy(
        update={
            "nodes": [
                inventory.head.model_copy(update={"store": str(tmp_path / "a")}),
                inventory.nodes[1],
            ]
        }
    )
    quick, full = (nodes.look(inventory, model="{store}", quick=quick) for quick in (True, False))
    assert quick[0].model == quick[1].model and full[0].model != full[1].model


def test_the_command(two_nodes, tmp_path):
    from sparkbook.cli import app
    from typer.testing import CliRunner

    file = tmp_path / "two.yaml"
    file.write_text(two_nodes.inventory(interface="nosuch0").model_dump_json())
    ran = CliRunner().invoke(app, ["cluster", "serve", str(file), "embedded/tiny-dense"])
    assert (
        ran.exit_code == 1
        and "spark-b has no port nosuch0" in ran.output
        and not two_nodes.processes()
    )
    file.write_text(two_nodes.inventory().model_dump_json())
    ran = CliRunner().invoke(
        app, ["cluster", "serve", str(file), "embedded/tiny-dense", "--dry-run", "--json"]
    )
    ranks = json.loads(ran.output)["ranks"]
    assert (
        ran.exit_code == 0
        and "--master-addr 10.97.0.1" in ranks[1]["command"]
        and f"GLOO_SOCKET_IFNAME={two_nodes.right}" in ranks[1]["command"]
    )
    for words in (["status"], ["stop", "two"], ["logs", "two"]):
        ran = CliRunner().invoke(app, ["cluster", words[0], str(file), *words[1:]])
        assert ran.exit_code == 0 if words == ["status"] else ran.exception


@pytest.mark.engine
def test_a_rank_that_fails_does_not_keep_the_other_waiting(two_nodes):
    inventory, sites = look(two_nodes)
    with socket.create_server((ADDRESSES[0], inventory.master_port)):
        pair = fabric.measure(inventory, sites, seconds=0.2)[0]
    assert pair.reduce_us is None and "address already in use" in pair.reduce_problem
    assert not two_nodes.processes()
