"""What a node turns out to be, and what is started on it: all of it that node's own."""

import contextlib
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from sparkbook import cluster, lint
from sparkbook.cluster import cluster_plan, commands, nodes, server
from sparkbook.cluster.inventory import Layout, Node
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.serve import stack
from sparkbook.util.limits import Ran

LOOK = (Path(__file__).parents[1] / "data" / "cluster" / "look-spark.txt").read_text("utf-8")
SPARK = (
    "docker run --gpus all -v ~/vllm:/models -e HF_HOME=/models vllm/vllm-openai:v0.28.0 ORG/MODEL"
    " --max-model-len 4096"
)


def site(host="spark-2", **entry):
    return nodes.read_look(Node(host=host, **entry), LOOK)


def pair(count=2):
    return cluster.Inventory(
        nodes=[
            {"host": f"spark-{n}", **({"ssh": f"spark-{n}"} if n > 1 else {})}
            for n in range(1, count + 1)
        ]
    )


def planned(source, count=2, **choices):
    inventory = pair(count)
    sites = [
        site(node.host).model_copy(update={"address": f"192.168.100.{n}"})
        for n, node in enumerate(inventory.nodes, 1)
    ]
    return cluster_plan.plan(inventory, stack.given(source, "big"), sites, **choices)


def test_a_look_counts_what_uses_the_gpu(tmp_path, monkeypatch):
    assert site().gpu_processes is None  # a node without nvidia-smi
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for printed, count in (
        ("101\n102\n", 2),
        ("", 0),
        ("No running processes found\n", 0),
        ("[N/A]\n", None),
        ("Failed to initialize NVML: Unknown Error\n", None),
    ):
        program.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
        program.chmod(0o755)
        [found] = nodes.look(cluster.Inventory(nodes=[{"host": "spark-1"}]))
        assert found.gpu_processes == count


@pytest.mark.parametrize("line", ["", "   ", "gpuprocesses", "gpuprocesses many", "kernel"])
def test_a_line_that_a_login_script_prints_ends_no_look(line):
    found = nodes.read_look(Node(host="spark-2"), f"Welcome!\n{line}\n{LOOK}")
    assert found.interface == site().interface and found.gpu_processes is None


def test_a_look_finds_the_fast_port_and_its_names():
    found = site()
    assert (found.interface, found.address) == ("enp1s0f0np0", "192.168.100.2")
    assert (
        found.hcas == ["rocep1s0f0", "roceP2p1s0f0"] and found.gid_index == 5
    )  # not 3, as elsewhere
    assert (
        found.link.mtu == 9000
        and found.memlock_bytes == -1
        and found.remove_ipc is False
        and found.pause is False
    )
    assert found.environment() == {
        "VLLM_HOST_IP": "192.168.100.2",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "TP_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "UCX_NET_DEVICES": "rocep1s0f0:1,roceP2p1s0f0:1",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_GID_INDEX": "5",
    }


def test_what_the_inventory_says_goes_first():
    assert site(address="192.168.101.2").interface == "enP2p1s0f0np0"
    assert (
        site(interface="enP7s7").address == "192.168.1.22" and site(interface="enP7s7").hcas == []
    )
    assert site(hca="rocep1s0f1").hcas == ["rocep1s0f1"] and site(gid_index=3).gid_index == 3


def test_a_node_that_does_not_answer_stops_no_look():
    def run(node, words):
        return (
            Ran(255, "", "ssh: connect to host spark-2 port 22: No route to host")
            if node.ssh
            else Ran(0, LOOK, "")
        )

    first, second = nodes.look(pair(), run=run)
    assert (
        first.problem is None
        and second.problem == "ssh: connect to host spark-2 port 22: No route to host"
    )


def test_ssh_words_are_quoted_once():
    words = nodes.words_on(Node(host="b", ssh="me@b:2222"), ["sh", "-c", "echo 'a b'"])
    assert words[0] == "ssh" and words[-4:] == [
        "-p",
        "2222",
        "me@b",
        "sh -c 'echo '\"'\"'a b'\"'\"''",
    ]


def test_native_ranks():
    ranks = planned(SPARK).ranks
    args = [rank.launch.serve.args for rank in ranks]
    assert [rank.name for rank in ranks] == ["big-spark-1", "big-spark-2"]
    assert [a["node-rank"] for a in args] == [0, 1] and {a["master-addr"] for a in args} == {
        "192.168.100.1"
    }
    assert {a["tensor-parallel-size"] for a in args} == {2} and {a["nnodes"] for a in args} == {2}
    assert (
        args[1]["headless"] is True
        and "headless" not in args[0]
        and "port" not in args[1]
        and args[0]["port"] == 8000
    )
    assert [rank.launch.env["VLLM_HOST_IP"] for rank in ranks] == ["192.168.100.1", "192.168.100.2"]
    container = ranks[0].launch.container
    assert (container.network, container.ipc, container.ulimits["memlock"], container.ports) == (
        "host",
        "host",
        "-1",
        [],
    )


def test_the_container_gets_rdma():
    shown = server.shown(planned(SPARK))
    for step in shown:
        host = step["calls"][1]["body"]["HostConfig"]
        assert (
            host["Devices"][0]["PathOnHost"] == "/dev/infiniband" and "IPC_LOCK" in host["CapAdd"]
        )
        assert {"Name": "memlock", "Soft": -1, "Hard": -1} in host["Ulimits"]
    command = shown[0]["calls"][1]["body"]["Cmd"]
    assert command[command.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize("backend", cluster_plan.BACKENDS)
def test_a_printed_line_keeps_the_rules(backend):
    """What is typed by hand gets what `cluster serve` gives: the RDMA devices too."""
    source = SPARK.replace(" vllm/", " -e VLLM_API_KEY --ipc host vllm/")
    source += " --max-num-seqs 4 --gpu-memory-utilization 0.8 --host 127.0.0.1"
    for rank in planned(source, backend=backend).ranks:
        line = rank.docker_line()
        assert (
            "--device /dev/infiniband" in line
            and "--cap-add IPC_LOCK" in line
            and "--ulimit memlock=-1" in line
        )
        assert not {"RUN104", "RUN110", "MEM101", "MEM105"} & {
            finding.rule for finding in lint.lint(line).findings
        }


def test_replicas_run_without_a_common_engine():
    args = [rank.launch.serve.args for rank in planned(SPARK, layout=Layout(data=2)).ranks]
    assert all(
        "nnodes" not in a and a["data-parallel-size"] == 2 and a["data-parallel-size-local"] == 1
        for a in args
    )
    assert args[1]["data-parallel-start-rank"] == 1 and args[1]["headless"]


def test_ray_in_containers():
    head, worker = planned(SPARK, backend="ray").ranks
    assert head.launch.serve.args["distributed-executor-backend"] == "ray"
    assert (
        head.launch.serve.before[0]
        == "ray start --head --node-ip-address=192.168.100.1 --port=6379 --include-dashboard=false"
    )
    assert (
        "ray start --address=192.168.100.1:6379 --node-ip-address=192.168.100.2 --block"
        in worker.launch.serve.command[1]
    )
    assert {rank.launch.env["RAY_memory_monitor_refresh_ms"] for rank in (head, worker)} == {"0"}
    assert int(worker.launch.env["RAY_NUM_REDIS_GET_RETRIES"]) * 2 >= 300, "it waits for the head"


@pytest.mark.parametrize(
    ("recipe", "order"),
    [
        # Nothing waits for all nodes before all are started: the head's container does, by itself.
        (SPARK, ["big-spark-1", "big-spark-2"]),
        (
            "embedded/tiny-dense",
            ["big-spark-1-ray", "big-spark-2-ray", "all joined", "big-spark-1"],
        ),
    ],
)
def test_ray_is_whole_before_the_server_starts(monkeypatch, recipe, order):
    found = []
    monkeypatch.setattr(server.ClusterServer, "_engine", lambda self, rank: found.append(rank.name))
    monkeypatch.setattr(
        server.ClusterServer, "_joined", lambda self, say: found.append("all joined")
    )
    monkeypatch.setattr(server.ClusterServer, "_watch", lambda self: None)
    server.ClusterServer(planned(recipe, backend="ray"), []).start()
    assert found == order


@pytest.mark.parametrize("ready", [False, True])
def test_ctrl_c_is_an_interruption_of_a_start_and_the_end_of_a_watch(monkeypatch, ready):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    served = MagicMock(readiness="it answers" if ready else None, fall=None)
    served.wait_ready.side_effect = None if ready else interrupted
    served.stop.return_value = []
    plan = planned("embedded/tiny-dense")
    monkeypatch.setattr(commands, "read", lambda _file: plan.inventory)
    monkeypatch.setattr(commands, "plan", lambda _wish: (plan, [], Findings()))
    monkeypatch.setattr(commands.server, "ClusterServer", lambda *_: served)
    monkeypatch.setattr(commands.time, "sleep", interrupted)
    said = []
    with contextlib.nullcontext() if ready else pytest.raises(KeyboardInterrupt):
        wish = commands.Wish(file="two.yaml", source="embedded/tiny-dense")
        commands.serve(wish, say=said.append, show=lambda _facts: None)
    assert ("stopping" in said) == ready
    served.stop.assert_called_once()


def test_ray_as_processes():
    ranks = planned("embedded/tiny-dense", backend="ray").ranks
    assert [rank.instead and rank.instead[:2] for rank in ranks] == [
        None,
        ("ray", "start"),
        ("ray", "start"),
    ]
    assert ranks[0].launch.env["RAY_ADDRESS"] == "192.168.100.1:6379"


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"layout": Layout(tensor=4)}, "TP=4 needs 4 GPUs and cluster has 2 on 2 nodes"),
        ({"layout": Layout(data=2), "backend": "ray"}, "replicas need no Ray"),
        ({"backend": "slurm"}, "choose native or ray"),
        ({"count": 1}, "has one node"),
        ({"count": 4, "layout": Layout(tensor=2, data=2)}, "each must fill one node"),
    ],
)
def test_what_can_not_be_spread(choices, said):
    with pytest.raises(SparkbookError, match=said):
        planned(SPARK, **choices)


def test_the_launch_line_has_a_say():
    assert planned(SPARK + " -pp 2").layout == Layout(pipeline=2)
    assert planned(SPARK, count=4, layout=cluster_plan.parse_layout("tp=2,pp=2")).layout == Layout(
        tensor=2, pipeline=2
    )
    for text in ("tp=0", "tp2", "tp=2,tp=2", "", "xp=2"):
        with pytest.raises(SparkbookError, match="is no layout"):
            cluster_plan.parse_layout(text)
