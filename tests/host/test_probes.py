"""The probes read what recorded machines answer: commands, files under /proc and /sys, Docker's
API, the hub.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import docker
import httpx
import pytest
from sparkbook import host, recipes
from sparkbook.checkpoint.store import write_cache
from sparkbook.host import docker_probes
from sparkbook.host.access import Access, Ran, run
from sparkbook.host.machine import Docker
from sparkbook.host.probes import look
from sparkbook.host.store_probes import find_token
from sparkbook.host.system_probes import _blocks
from sparkbook.recipes.schema import Recipe
from typer.testing import CliRunner

SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.173.02             Driver Version: 580.173.02     CUDA Version: 13.0     |
"""
ADDRESSES = [{"family": "inet", "local": "192.168.100.1"}, {"family": "inet6", "local": "fe80::1"}]
LISTENS = (
    "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 55555 1"
)
ASK = "nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,temperature.gpu"
COMMANDS = {
    "nvidia-smi": Ran(0, SMI, ""),
    ASK: Ran(0, "NVIDIA GB10, 12.1, 580.173.02, [N/A], 41", ""),
    "nvidia-smi --query-gpu=utilization.gpu,clocks.sm,power.draw,temperature.gpu": Ran(
        0, "96, 513, 14.20, 55", ""
    ),
    "nvidia-smi --query-compute-apps=pid,used_memory": Ran(0, "4711, 104277\n4800, [N/A]", ""),
    "docker --version": Ran(0, "Docker version 28.2.2, build e6534b4", ""),
    "dmesg": Ran(
        0, "[1.0] booted\n[9.0] NVRM: Xid (PCI:000f:01:00): 31, pid=4242, MMU Fault\n", ""
    ),
    "timedatectl show": Ran(0, "yes", ""),
    "ip -j": Ran(0, json.dumps([{"ifname": "enp1s0f0np0", "addr_info": ADDRESSES}]), ""),
    "ibv_devinfo": Ran(0, "hca_id:\trocep1s0f0\n\t\tport:\t1\n\t\t\tactive_mtu:\t\t1024 (3)\n", ""),
}
MEMINFO = host.EXAMPLES["headless"].text
FILES = {
    "proc/meminfo": MEMINFO,
    "proc/sys/vm/min_free_kbytes": "45056\n",
    "proc/sys/kernel/osrelease": "6.17.0-1032-nvidia\n",
    "proc/buddyinfo": "Node 0, zone   Normal " + " ".join(["9"] * 9) + "      7      5\n",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.4 LTS"\n',
    "proc/4711/cmdline": "VLLM::EngineCore\0",
    "proc/4711/status": "Name:\tVLLM::EngineCor\nPPid:\t1\n",
    "proc/1/cmdline": "/usr/lib/systemd/systemd\0--switched-root\0",
    "proc/4800/cmdline": "/usr/bin/python3\0/opt/venv/bin/vllm\0serve\0--api-key\0the-secret-key\0",
    "proc/4800/status": "Name:\tpython3\nPPid:\t4700\n",
    "proc/4700/cmdline": "/bin/bash\0-c\0x\0",
    "proc/900/cmdline": "/usr/bin/earlyoom\0-m\0004\0-s\000100\0",
    "proc/net/tcp": "  sl  local_address rem_address st\n" + LISTENS,
    "proc/net/route": "Iface\tDestination\tGateway\nenP7s7\t00000000\t0101A8C0\n",
    "etc/systemd/logind.conf": "#RemoveIPC=yes\n",
    "etc/systemd/logind.conf.d/10-ipc.conf": "[Login]\nRemoveIPC=no\n",
    "sys/class/net/enp1s0f0np0/operstate": "up\n",
    "sys/class/net/enp1s0f0np0/speed": "200000\n",
    "sys/class/net/enp1s0f0np0/mtu": "1500\n",
    "sys/class/net/lo/operstate": "unknown\n",
    "sys/class/infiniband/rocep1s0f0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/rocep1s0f0/ports/1/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n",
    "sys/class/infiniband/rocep1s0f0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:c0a8:6401\n",
    "sys/class/infiniband/rocep1s0f0/ports/1/gids/4": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    "sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/0": "IB/RoCE v1\n",
    "sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/3": "RoCE v2\n",
    "sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0/mtu": "1500\n",
}


def recipe(**more) -> Recipe:
    return Recipe.model_validate(
        {
            "id": "test",
            "title": "T",
            "summary": "S",
            "family": "qwen",
            "sources": [{"id": "s", "title": "S"}],
            "model": {"repo": "org/name", "quantization": {"format": "nvfp4"}, "weights_gb": 23.0},
            "image": {"ref": "vllm/vllm-openai:v0.28.0"},
            "container": {"ipc": "host", "ports": ["127.0.0.1:8000:8000"]},
            "serve": {"args": {"gpu-memory-utilization": 0.8}},
            **more,
        }
    )


def container(name, status="running", **more):
    state = {
        "Status": status,
        "ExitCode": more.get("code", 0),
        "Error": more.get("error", ""),
        "FinishedAt": "2026-11-28T04:00:00.123456789Z",
    }
    return SimpleNamespace(
        name=name,
        attrs={
            "Name": f"/{name}",
            "State": state,
            "RestartCount": more.get("restarts", 0),
            "HostConfig": {
                "RestartPolicy": {
                    "Name": more.get("restart", "no"),
                    "MaximumRetryCount": more.get("most", 0),
                }
            },
            "Config": {
                "Image": more.get("image", "vllm/vllm-openai:v0.28.0"),
                "Labels": {},
                "Env": ["VLLM_API_KEY=the-secret-key"],
            },
            "NetworkSettings": {
                "Ports": {
                    "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(more.get("port", 9999))}]
                }
            },
        },
    )


@pytest.mark.parametrize(
    ("config", "rights"),
    [
        ({"Privileged": True, "CapDrop": ["ALL"]}, "privileged"),
        (
            {},
            "Docker's capabilities, new privileges allowed, seccomp, writable root, no memory limit",
        ),
        (
            {"CapAdd": ["CAP_IPC_LOCK"], "CapDrop": ["NET_RAW"], "Memory": 1 << 33},
            "Docker's capabilities without NET_RAW and IPC_LOCK, new privileges allowed, seccomp,"
            " writable root, memory limit 8.00 GiB without CUDA's",
        ),
        (
            {
                "CapDrop": ["ALL"],
                "SecurityOpt": ["seccomp=x", "no-new-privileges:true"],
                "ReadonlyRootfs": True,
            },
            "capabilities none, no-new-privileges, own seccomp, read-only root, no memory limit",
        ),
        (
            {"SecurityOpt": ["seccomp=unconfined"]},
            "Docker's capabilities, new privileges allowed, no seccomp, writable root,"
            " no memory limit",
        ),
    ],
)
def test_what_a_container_may_do(config, rights):
    assert docker_probes._rights(config) == rights


class FakeDocker:
    """Docker's API as docker-py hands it on, from recorded replies."""

    def __init__(self, *containers, image=None):
        self._containers, self._image = containers, image
        self.containers = self.images = self

    def version(self):
        return {"Version": "28.2.2", "ApiVersion": "1.50", "MinAPIVersion": "1.24"}

    def info(self):
        return {
            "Architecture": "aarch64",
            "Runtimes": {"runc": {}, "nvidia": {}},
            "DockerRootDir": "/nowhere/docker",
        }

    def list(self, **_):
        return list(self._containers)

    def get(self, name):
        if self._image is None:
            raise docker.errors.ImageNotFound(f"No such image: {name}")
        return SimpleNamespace(attrs=self._image)


def refuse():
    raise docker.errors.DockerException(
        "Error while fetching server API version: ('Connection aborted.', PermissionError(13,"
        " 'Permission denied'))"
    )


def access(tmp_path: Path, files=None, commands=None, client=None, get=None, **environ) -> Access:
    root = tmp_path / "root"
    for name, text in {**FILES, **(files or {})}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    for folder in ("run/systemd/system", "dev/shm"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    known = {**COMMANDS, **(commands or {})}

    def runner(command):
        for length in (2, 1):
            if (found := known.get(" ".join(command[:length]))) and (
                length == 2 or len(command) == 1
            ):
                return found
        return Ran(127, "", f"{command[0]}: not found")

    ticks = iter(range(10**6))
    return Access(
        runner=runner,
        docker=client or (lambda: FakeDocker()),
        get=get or (lambda url, token: (200, {})),
        root=root,
        home=tmp_path,
        environ={"USER": "spark", **environ},
        clock=lambda: next(ticks) / 10,
        now=lambda: 1_795_838_440.0,
        sleep=lambda seconds: None,
    )


def test_a_spark_is_read(tmp_path):
    machine = look(recipe(), access(tmp_path, VLLM_HOST_IP="192.168.100.1", NCCL_DEBUG="INFO"))
    assert machine.is_spark
    assert (machine.system.kernel, machine.system.os, machine.system.user) == (
        "6.17.0-1032-nvidia",
        "Ubuntu 24.04.4 LTS",
        "spark",
    )
    gpu = machine.gpu
    assert (gpu.capability, gpu.driver, gpu.cuda, gpu.memory, gpu.temperature_c) == (
        "12.1",
        "580.173.02",
        "13.0",
        "[N/A]",
        41,
    )
    assert machine.memory.memory == host.parse_meminfo(MEMINFO)
    assert machine.memory.min_free_kbytes == 45056
    assert machine.system.kernel_messages == [
        "[9.0] NVRM: Xid (PCI:000f:01:00): 31, pid=4242, MMU Fault"
    ]
    assert machine.docker.runtimes == ["nvidia", "runc"]
    assert machine.time.synchronized is True
    assert not machine.unread
    assert set(machine.seconds) >= {"system", "gpu", "memory", "docker", "store", "network"}
    assert all(seconds > 0 for seconds in machine.seconds.values())


def test_what_a_recipe_asks(tmp_path):
    want = look(recipe(), access(tmp_path)).wanted
    assert (want.image, want.port, want.utilization, want.repos, want.ipc_host) == (
        "vllm/vllm-openai:v0.28.0",
        8000,
        0.8,
        {"org/name": None},
        True,
    )
    for one in recipes.all():
        assert host.wanted(one).port > 0


def test_a_busy_gpu_is_watched_and_its_stuck_clock_seen(tmp_path):
    machine = look(None, access(tmp_path))
    assert machine.load is not None
    assert (machine.load.utilization, machine.load.clock_mhz, machine.load.power_w) == (
        96,
        513,
        14.2,
    )
    assert "HOST017" in [finding.rule for finding in host.judge(machine)]


def test_an_idle_gpu_is_not_watched(tmp_path):
    idle = {
        "nvidia-smi --query-gpu=utilization.gpu,clocks.sm,power.draw,temperature.gpu": Ran(
            0, "0, 208, 4.1, 36", ""
        )
    }
    assert look(None, access(tmp_path, commands=idle)).load is None


def test_processes_are_named_without_their_arguments(tmp_path):
    machine = look(None, access(tmp_path))
    assert [(p.pid, p.name, p.parent, p.parent_name, p.gpu_mib) for p in machine.processes] == [
        (4711, "VLLM::EngineCore", 1, "systemd", 104277.0),
        (4800, "vllm", 4700, "bash", None),
    ]
    assert "the-secret-key" not in machine.model_dump_json()
    assert "HOST025" in [finding.rule for finding in host.judge(machine)]


def test_the_driver_that_fails_and_the_one_that_is_not_there(tmp_path):
    broken = look(
        None,
        access(
            tmp_path,
            commands={
                ASK: Ran(
                    9, "", "NVIDIA-SMI has failed because it couldn't communicate with the driver."
                )
            },
        ),
    )
    assert "HOST013" in [finding.rule for finding in host.judge(broken)]
    none = look(None, access(tmp_path, commands={ASK: Ran(127, "", "")}))
    assert (none.gpu.names, none.gpu.error) == ([], None)


@pytest.mark.parametrize(
    ("page", "blocks"), [(4096, 7 + 2 * 5), (65536, 9 + 2 * 9 + 4 * 9 + 8 * 9 + 16 * 7 + 32 * 5)]
)
def test_blocks_of_2_mib_for_both_page_sizes(page, blocks):
    assert _blocks(FILES["proc/buddyinfo"], page) == blocks


def test_buddyinfo_that_says_nothing():
    assert _blocks(None) is None
    assert _blocks("") is None


def test_docker_containers(tmp_path):
    containers = [
        container("vllm", "exited", restart="on-failure", most=3, restarts=2, code=1),
        container("db", image="postgres:17"),
        container("left", "created", error="port is already allocated"),
    ]
    found = look(None, access(tmp_path, client=lambda: FakeDocker(*containers))).docker.containers
    assert [(one.name, one.state, one.restart, one.restarts) for one in found] == [
        ("vllm", "exited", "on-failure:3", 2),
        ("left", "created", "no", 0),
    ]
    assert found[0].stopped_s == 40.0
    assert found[1].error == "port is already allocated"


@pytest.mark.parametrize(
    ("conf", "ufw"), [(None, None), ("ENABLED=no\n", False), ("# x\nENABLED=yes\n", True)]
)
def test_what_docker_publishes_to_others_and_whether_ufw_is_on(tmp_path, conf, ufw):
    def publishing(name, ports):
        one = container(name)
        one.attrs["NetworkSettings"] = ports and {"Ports": ports}
        return one

    def at(address, port="8000"):
        return {"HostIp": address, "HostPort": port}

    containers = [
        publishing("own", {"8000/tcp": [at("127.0.0.1"), at("::1")]}),
        publishing("all", {"80/tcp": [at("0.0.0.0"), at("::")], "81/tcp": None}),
        publishing("old", {"80/tcp": [at("", "80")]}),
        publishing("one", {"80/tcp": [at("192.168.1.20", "90")]}),
        publishing("gone", None),
    ]
    files = {"etc/ufw/ufw.conf": conf}
    docker = look(None, access(tmp_path, files, client=lambda: FakeDocker(*containers))).docker
    assert docker.published == {
        "all": ["0.0.0.0:8000", "[::]:8000"],
        "old": ["0.0.0.0:80"],
        "one": ["192.168.1.20:90"],
    }
    assert docker.ufw is ufw


def test_docker_that_refuses_and_docker_that_is_not_there(tmp_path):
    refused = look(recipe(), access(tmp_path, client=refuse))
    assert refused.docker.version is None
    assert "HOST005" in [finding.rule for finding in host.judge(refused)]
    nothing = look(
        recipe(), access(tmp_path, commands={"docker --version": Ran(127, "", "")}, client=refuse)
    )
    assert nothing.docker == Docker(error=refused.docker.error)
    assert "HOST004" in [finding.rule for finding in host.judge(nothing)]


def test_the_image(tmp_path):
    assert look(recipe(), access(tmp_path)).image.present is False
    attrs = {
        "Architecture": "amd64",
        "RepoDigests": ["vllm/vllm-openai@sha256:" + "1" * 64],
        "Config": {"Env": ["PATH=/bin", "CUDA_VERSION=13.2.0"]},
    }
    machine = look(recipe(), access(tmp_path, client=lambda: FakeDocker(image=attrs)))
    assert (machine.image.architecture, machine.image.cuda) == ("amd64", "13.2.0")
    assert {"HOST041", "HOST014"} <= {finding.rule for finding in host.judge(machine)}


@pytest.mark.parametrize(
    ("config", "logins", "store"),
    [
        (None, [], False),
        (
            {
                "auths": {
                    "nvcr.io": {"auth": "c2VjcmV0"},
                    "https://index.docker.io/v1/": {"auth": "c2VjcmV0"},
                }
            },
            ["index.docker.io", "nvcr.io"],
            False,
        ),
        ({"auths": {"nvcr.io": {}}, "credsStore": "secretservice"}, ["nvcr.io"], True),
        ({"auths": {"nvcr.io": {}}}, [], False),
    ],
)
def test_registry_logins_are_names_only(tmp_path, config, logins, store):
    if config is not None:
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker" / "config.json").write_text(json.dumps(config))
    machine = look(None, access(tmp_path))
    assert (machine.registry.logins, machine.registry.store) == (logins, store)
    assert "c2VjcmV0" not in machine.model_dump_json()


def test_the_port_and_who_has_it(tmp_path):
    assert look(None, access(tmp_path)).port.owner == "another user's program"
    taken = look(None, access(tmp_path, client=lambda: FakeDocker(container("ollama", port=8000))))
    assert taken.port.owner == "the container ollama"
    fd = tmp_path / "root" / "proc" / "4800" / "fd"
    fd.mkdir()
    (fd / "7").symlink_to("socket:[55555]")
    assert look(None, access(tmp_path)).port.owner == "vllm (pid 4800)"
    free = look(None, access(tmp_path, files={"proc/net/tcp": "  sl\n"}))
    assert free.port.owner is None


def test_a_real_listener_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        one = recipe(container={"ports": [f"127.0.0.1:{port}:8000"]})
        here = Access(
            docker=refuse, get=lambda url, token: (200, {}), runner=lambda command: Ran(127, "", "")
        )
        assert f"(pid {os.getpid()})" in (look(one, here).port.owner or "")


def test_limits_and_logind(tmp_path):
    limits = look(None, access(tmp_path)).limits
    assert (limits.remove_ipc, limits.linger, limits.earlyoom) == (False, False, "-m 4 -s 100")
    assert limits.shm_bytes and limits.nofile
    (tmp_path / "root/etc/systemd/logind.conf.d/10-ipc.conf").unlink()
    files = {"etc/systemd/logind.conf.d/10-ipc.conf": None, "var/lib/systemd/linger/spark": ""}
    again = look(None, access(tmp_path, files=files)).limits
    assert (again.remove_ipc, again.linger) == (True, True), "it is on unless it is switched off"


def test_the_network(tmp_path):
    network = look(
        None, access(tmp_path, NCCL_IB_GID_INDEX="5", VLLM_HOST_IP="192.168.1.20")
    ).network
    (link,) = network.links
    assert (link.name, link.up, link.speed, link.mtu, link.addresses) == (
        "enp1s0f0np0",
        True,
        200000,
        1500,
        ["192.168.100.1"],
    )
    (port,) = network.rdma
    assert (port.name, port.active, port.link, port.mtu) == (
        "rocep1s0f0",
        True,
        "enp1s0f0np0",
        1024,
    )
    assert port.gids == {0: "RoCE v1 fe80::1", 3: "RoCE v2 192.168.100.1"}
    assert network.default == "enP7s7"
    assert network.env == {"NCCL_IB_GID_INDEX": "5", "VLLM_HOST_IP": "192.168.1.20"}


def test_the_hub_is_asked_with_the_token_and_says_who_may_read(tmp_path):
    asked = []

    def get(url, token):
        asked.append((url, token))
        return (
            (200, {})
            if url.endswith("whoami-v2")
            else (403, {"date": "Sat, 28 Nov 2026 02:00:40 GMT"})
        )

    machine = look(
        recipe(), access(tmp_path, get=get, HF_TOKEN="hf_secret", HF_ENDPOINT="http://hub/")
    )
    assert asked == [
        ("http://hub/api/whoami-v2", "hf_secret"),
        ("http://hub/api/models/org/name/auth-check", "hf_secret"),
    ]
    assert (machine.hub.token, machine.hub.valid, machine.hub.access) == (
        "HF_TOKEN",
        True,
        {"org/name": 403},
    )
    assert machine.hub.skew_s == 1_795_838_440.0 - 1_795_831_240.0
    assert "hf_secret" not in json.dumps(host.check(machine).to_dict())
    assert {"HOST046", "HOST066"} <= {finding.rule for finding in host.judge(machine)}


def test_a_hub_that_is_not_reached_or_not_to_be_asked(tmp_path):
    def get(url, token):
        raise httpx.ConnectError("no route")

    away = look(recipe(), access(tmp_path, get=get)).hub
    assert away.offline == "https://huggingface.co can't be reached: ConnectError"
    offline = look(recipe(), access(tmp_path, get=get, HF_HUB_OFFLINE="1")).hub
    assert offline.offline == "HF_HUB_OFFLINE is set"
    assert look(None, access(tmp_path, get=get)).hub is None


def test_where_a_token_comes_from(tmp_path):
    assert find_token({}, tmp_path) == (None, None)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "token").write_text("hf_file\n")
    assert find_token({}, tmp_path) == (str(tmp_path / "vllm" / "token"), "hf_file")
    assert find_token({"HF_TOKEN": " hf_env "}, tmp_path) == ("HF_TOKEN", "hf_env")


def test_the_store(tmp_path):
    assert look(recipe(), access(tmp_path)).store.exists is False
    good = (8).to_bytes(8, "little") + b'{"a":1}\n'
    shard = (
        (66).to_bytes(8, "little")
        + json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})
        .ljust(66)
        .encode()
        + b"1234"
    )
    commit = "a" * 40
    write_cache(
        tmp_path / "vllm" / "hub",
        "org/name",
        {commit: {"config.json": good, "model.safetensors": shard}},
        commit,
    )
    store = look(recipe(), access(tmp_path)).store
    assert (store.path, store.writable, store.foreign, store.broken, store.revisions) == (
        "~/vllm",
        True,
        0,
        [],
        {"org/name": commit},
    )
    blob = (
        tmp_path / "vllm/hub/models--org--name/snapshots" / commit / "model.safetensors"
    ).resolve()
    blob.write_bytes(shard + b"!")
    (blob.parent / "x.incomplete").write_bytes(b"")
    torn = look(recipe(), access(tmp_path)).store
    assert (torn.broken, torn.unfinished) == (["model.safetensors"], 1)
    assert torn.digest != store.digest
    assert "HOST055" in [finding.rule for finding in host.judge(look(recipe(), access(tmp_path)))]


def test_a_store_in_a_folder_of_its_own_and_behind_hf_home(tmp_path):
    own = recipe(prepare=[{"do": "download", "why": "w", "repo": "org/name", "to": "~/vllm/name"}])
    (tmp_path / "vllm" / "name").mkdir(parents=True)
    (tmp_path / "vllm" / "name" / "config.json").write_text("{}")
    assert look(own, access(tmp_path)).store.revisions == {"org/name": "unknown"}
    assert look(None, access(tmp_path, HF_HOME="/nowhere/else")).store.path == "/nowhere/else"


def test_vllm_without_a_container(tmp_path):
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text("#!/opt/venv/bin/python\n")
    command.chmod(0o755)
    said = {"packages": {"vllm": "0.16.0", "torch": "2.9.1+cu128"}, "error": None}
    commands = {
        "/opt/venv/bin/python -c": Ran(0, json.dumps(said), ""),
        "nvcc --version": Ran(0, "Cuda compilation tools, release 13.0, V13.0.88", ""),
    }
    machine = look(None, access(tmp_path, commands=commands, PATH=str(command.parent)))
    assert (machine.python.vllm, machine.python.nvcc) == ("0.16.0", "13.0")
    assert "HOST072" in [finding.rule for finding in host.judge(machine)]


def test_a_probe_that_fails_stops_none_of_the_others(tmp_path):
    machine = look(
        None,
        access(
            tmp_path,
            files={"proc/meminfo": "MemTotal: 1 kB"},
            commands={"ip -j": Ran(0, "no json", "")},
        ),
    )
    assert set(machine.unread) == {"memory", "network"}
    by_name = {result.name: result for result in host.check(machine).results}
    assert by_name["memory"].verdict == "not judged"
    assert machine.docker.version == "28.2.2"


class GpuDocker(FakeDocker):
    """An engine that hands out the GPU; the container answers as the image's torch would."""

    def __init__(self, output, code=0, fails=None):
        super().__init__(image={"Architecture": "arm64", "RepoDigests": [], "Config": {}})
        self.output, self.code, self.fails, self.removed, self.status, self.asked = (
            output,
            code,
            fails,
            False,
            "running",
            {},
        )

    def create(self, image, **options):
        self.asked = options
        return self

    def start(self):
        if self.fails:
            raise docker.errors.APIError("500 Server Error", explanation=self.fails)

    def reload(self):
        self.reloads = getattr(self, "reloads", 0) + 1
        self.status = "running" if self.reloads < 4 else "exited"

    def wait(self, timeout):
        return {"StatusCode": self.code}

    def logs(self, tail):
        return self.output.encode()

    def remove(self, force):
        self.removed = True


def test_a_container_on_the_gpu_is_started_watched_and_removed(tmp_path):
    said = 'SPARKBOOK {"torch": "13.0", "archs": ["sm_120"], "gpu": "NVIDIA GB10", "ptxas": "12.8"}'
    engine = GpuDocker(f"a warning\n{said}\n")
    machine = look(recipe(), access(tmp_path, client=lambda: engine), run=True)
    assert machine.smoke.model_dump() == {
        "ok": True,
        "output": "GPU 0: NVIDIA GB10",
        "ptxas": "12.8",
        "torch_cuda": "13.0",
        "archs": ["sm_120"],
    }
    assert machine.load.by == "a short load"
    assert engine.removed
    assert (engine.asked["network_mode"], engine.asked["device_requests"][0]["Capabilities"]) == (
        "none",
        [["gpu"]],
    )
    assert "HOST037" in [finding.rule for finding in host.judge(machine)]


def test_a_container_that_gets_no_gpu_is_removed_as_well(tmp_path):
    engine = GpuDocker("", fails='could not select device driver "" with capabilities: [[gpu]]')
    machine = look(recipe(), access(tmp_path, client=lambda: engine), run=True)
    assert engine.removed
    (finding,) = [finding for finding in host.judge(machine) if finding.rule == "HOST035"]
    assert finding.kind == "nvidia-runtime"


def test_nothing_is_started_unless_it_is_asked_for(tmp_path):
    engine = GpuDocker("")
    assert look(recipe(), access(tmp_path, client=lambda: engine)).smoke is None
    assert engine.asked == {}


def test_a_real_command_and_one_that_is_not_there():
    assert run(["true"]).code == 0
    assert run(["sparkbook-no-such-command"]).code == 127


# ---- the command


def _sparkbook(*words):
    from sparkbook import cli

    return CliRunner().invoke(cli.app, ["check", *words])


def test_the_command_judges_probes_of_other_machines(tmp_path):
    healthy = host.recorded("healthy")
    files = []
    for name, change in {
        "spark-1": {},
        "spark-2": {"system": {"kernel": "6.11.0-1016-nvidia"}},
    }.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(host.check(healthy.changed({"name": name, **change})).to_dict()))
        files += ["--probes", str(file)]
    assert _sparkbook(*files[:2]).exit_code == 0
    both = _sparkbook(*files)
    assert both.exit_code == 0, "slow is no reason not to start"
    assert "HOST092" in both.output
    assert "HOST010" in both.output
    answer = json.loads(_sparkbook(*files, "--json").output)
    assert answer["summary"]["verdict"] == "slow"
    assert {"name", "verdict", "saw", "todo", "seconds"} <= set(answer["checks"][0])


def test_the_command_blocks_with_1(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text(
        host.recorded("healthy").changed({"port": {"owner": "python3 (pid 1)"}}).model_dump_json()
    )
    answer = _sparkbook("--probes", str(file))
    assert answer.exit_code == 1
    assert "Port 8000 is taken by python3 (pid 1)." in answer.output


def test_a_hub_that_redirects_gets_the_token_and_nobody_else(servers):
    from sparkbook.host.access import get

    home, stranger = servers.urls
    servers.redirects["/api"] = f"{stranger}/there"
    assert get(f"{home}/api", "hf_secret")[0] == 200
    assert servers.tokens == ["Bearer hf_secret", None]


def test_a_password_in_the_hubs_address_is_not_sent_and_not_shown(tmp_path):
    from sparkbook.host.access import get

    address = "https://me:hunter2@hub.example"
    found = look(recipe(), access(tmp_path, get=get, HF_TOKEN="hf_x", HF_ENDPOINT=address)).hub
    assert "name or password" in found.offline
    assert "hunter2" not in found.model_dump_json()
