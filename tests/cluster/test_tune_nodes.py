"""A tuning over two nodes: a server each at a time, started and measured in the node's own network,
and compared with the baseline of that node.
"""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from sparkbook import recipes
from sparkbook.cluster.inventory import Node
from sparkbook.errors import SparkbookError
from sparkbook.tune import crew
from sparkbook.tune import space as spaces
from sparkbook.tune.halving import Tuning
from sparkbook.tune.journal import Journal
from sparkbook.tune.measuring import Plans, Starter

RECIPE = recipes.load("embedded/tiny-mtp-k1")
SPACE = spaces.read()
K3 = "--speculative-config.num_speculative_tokens 3"
WANTED = ("baseline", K3, "--max-num-seqs 16", "--max-num-seqs 32")


def words(node):
    program = [sys.executable, str(Path(__file__).with_name("tune_worker.py")), node.host]
    return [*node.via, *program]


def all_gone(two_nodes):
    """Whether no process is left on either node; what has been ended may take a moment."""
    end = time.monotonic() + 60
    while two_nodes.processes() and time.monotonic() < end:
        time.sleep(0.1)
    return not two_nodes.processes()


def tuned(two_nodes, tmp_path, words=words, **second):
    plans = Plans(RECIPE, SPACE.use("users").load)
    found = {one.key: one for one in spaces.candidates(SPACE, RECIPE, "users")[0]}
    lines = []
    with crew.Nodes(
        two_nodes.inventory(env={"OF_NODE": "b"}, **second), plans, lines.append, words
    ) as nodes:
        journal = Journal(tmp_path / "journal", {"nodes": list(nodes.nodes)})
        starter = Starter(say=lines.append)
        tuning = Tuning([found[key] for key in WANTED], plans, journal, starter, crew=nodes)
        tuning.run()
    return tuning, lines


@pytest.mark.cluster
def test_each_node_measures_against_its_own_baseline(two_nodes, tmp_path, stand_in_engine):
    tuning, lines = tuned(two_nodes, tmp_path)
    assert all_gone(two_nodes)
    assert tuning.best[0].key == K3
    ratios = {key: round(ratio.ratio, 2) for key, ratio in tuning.short().items()}
    assert ratios == {K3: 1.3, "--max-num-seqs 16": 1.0, "--max-num-seqs 32": 1.0}
    outcomes = list(Journal(tmp_path / "journal", tuning.journal.about))
    places = {one.node: one.report.machine for one in outcomes}
    assert (
        places["spark-a"] == str(Path("/proc/thread-self/ns/net").readlink()) != places["spark-b"]
    )
    assert all(one.report.machine == places[one.node] for one in outcomes)
    short = [(one.candidate, one.node) for one in outcomes if one.stage == "short"]
    assert short.count(("baseline", "spark-a")) == short.count(("baseline", "spark-b")) == 1
    assert sorted(key for key, _ in short) == sorted([*WANTED, "baseline"])
    assert {one.node for one in outcomes if one.stage.startswith("final")} == {"spark-a"}
    assert f"spark-a final 0: {K3}" in lines
    again, lines = tuned(two_nodes, tmp_path)
    assert again.best == tuning.best
    assert not lines, "all is in the journal"


@pytest.mark.cluster
def test_ctrl_c_stops_the_servers_of_all_nodes(two_nodes, tmp_path, stand_in_engine, monkeypatch):
    receive = crew.Nodes.receive

    def interrupted(nodes):
        receive(nodes)
        assert two_nodes.processes()
        raise KeyboardInterrupt

    monkeypatch.setattr(crew.Nodes, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuned(two_nodes, tmp_path)
    assert all_gone(two_nodes)


@pytest.mark.cluster
def test_a_node_without_sparkbook_is_named(two_nodes, tmp_path, stand_in_engine):
    def missing(node):
        return words(node) if node.host == "spark-a" else [*node.via, "sh", "-c", "exit 127"]

    with pytest.raises(SparkbookError, match="spark-b: the worker ended with status 127"):
        tuned(two_nodes, tmp_path, missing)
    assert all_gone(two_nodes)


@pytest.mark.cluster
def test_a_node_is_reached_over_ssh(two_nodes, tmp_path, stand_in_engine, sshd):
    """The second node is an sshd of the first; its login has a `sparkbook`."""
    home = tmp_path / "home"
    home.mkdir()
    worker = Path(__file__).with_name("tune_worker.py")
    (home / "sparkbook").write_text(f"#!/bin/sh\nexec {sys.executable} {worker} spark-b\n")
    (home / "sparkbook").chmod(0o755)
    names = ("SPARKBOOK_ENGINE_PYTHON", "SPARKBOOK_CACHE", "PYTHONPATH")
    (home / ".bash_profile").write_text(
        f"export PATH={home}:/usr/bin:/bin\n"
        + "".join(f"export {name}={os.environ[name]}\n" for name in names if name in os.environ)
    )
    port = sshd(HOME=home)

    def over_ssh(node):
        return crew.program(node) if node.ssh else words(node)

    tuning, _ = tuned(two_nodes, tmp_path, over_ssh, ssh=f"root@127.0.0.1:{port}", via=[])
    assert {one.node for one in tuning.journal} == {"spark-a", "spark-b"}
    assert tuning.best[0].key == K3


def test_over_ssh_the_sparkbook_of_a_login_works():
    words = crew.program(Node(host="spark-b", ssh="me@spark-b"))
    assert words[0] == "ssh"
    assert words[-2:] == [
        "me@spark-b",
        "bash -lc 'exec sparkbook tune RECIPE --for USE --worker'",
    ]


def test_every_recipe_reaches_a_worker_as_it_is():
    for recipe in recipes.all():
        sent = json.dumps(recipe.model_dump(mode="json", by_alias=True))
        assert type(recipe).model_validate(json.loads(sent)) == recipe
