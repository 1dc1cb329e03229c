"""RUN: how the container is run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.rules import Edit, Hit

RUN = family("RUN", "how the container is run")

D = "docker run --gpus all --ipc=host "
MULTI = "vllm serve ORG/MODEL -tp 2 --nnodes 2 --node-rank 0 --master-addr 192.0.2.1"


def _ports(case: Case) -> list[tuple[str, int, int, str]]:
    """Published ports: address (empty: all), host, container, as written."""
    found = []
    for text in case.line.values("publish"):
        match = re.fullmatch(r"(?:(\[[^\]]*\]|[\d.]+):)?(\d+):(\d+)(?:/tcp)?", text)
        if match:
            found.append((match[1] or "", int(match[2]), int(match[3]), text))
    return found


@RUN.rule(
    "RUN101",
    "port-not-listened-to",
    "error",
    source="Docker: -p HOST:CONTAINER; vLLM listens on 8000",
    fails=D + "-p 8000:8000 vllm/vllm-openai:v0.28.0 ORG/MODEL --port 8080",
    passes=D + "-p 8000:8080 vllm/vllm-openai:v0.28.0 ORG/MODEL --port 8080",
)
def port(case: Case) -> Iterator[Hit]:
    """Docker publishes one port of the container, and the server listens on another (8000 unless
    `--port` says otherwise): every request is refused although the log looks healthy.
    """
    ports = _ports(case)
    listens = case.number("port") or 8000
    if (
        case.serves
        and ports
        and listens not in [inside for _, _, inside, _ in ports]
        and case.line.option("network") != "host"
    ):
        _, host, inside, text = ports[0]
        yield Hit(
            f"The server listens on {listens:.0f}, and docker publishes {inside}.",
            f"-p {text}",
            f"Use -p 127.0.0.1:{host}:{listens:.0f}.",
        )


@RUN.rule(
    "RUN102",
    "no-shared-memory",
    "warning",
    kind="host-ipc",
    source="vLLM's documentation of its image",
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all --ipc=host vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def shared_memory(case: Case) -> Iterator[Hit]:
    """vLLM's processes talk through shared memory, of which a container has 64 MiB. `--ipc=host`
    gives it the host's; `--shm-size` is the alternative, and one of the two is enough.
    """
    if (
        case.contained
        and case.line.starts
        and case.line.option("ipc") is None
        and case.line.option("shm-size") is None
    ):
        yield Hit(
            "Neither --ipc=host nor --shm-size: the container has 64 MiB of shared memory.",
            None,
            "Add --ipc=host.",
        )


@RUN.rule(
    "RUN103",
    "restarts-for-ever",
    "warning",
    kind="restart-loop",
    source="spark-vllm-docker issue 257, https://github.com/eugr/spark-vllm-docker/issues/257",
    fails=D + "--restart unless-stopped vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D + "--restart on-failure:3 vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def restart(case: Case) -> Iterator[Hit]:
    """A start that fails, with `--restart unless-stopped` or `always`, fails forever. On a Spark
    each crash leaves some memory
    unreclaimed: 35 restarts made a host unreachable until its power was cut. Three attempts are
        enough until the recipe has proven
    itself.
    """
    if (policy := case.line.option("restart")) in ("unless-stopped", "always"):
        edits: tuple[Edit, ...] = ()
        word = next(item.word for item in case.line.docker if item.name == "restart")
        if word.start >= 0:
            at = case.line.text.find(str(policy), word.start)
            edits = (Edit(at, at + len(str(policy)), "on-failure:3"),) if at >= 0 else ()
        yield Hit(
            f"--restart {policy} repeats a failing start without end.",
            f"--restart {policy}",
            "Use --restart on-failure:3, until the recipe has started once.",
            edits=edits,
        )


@RUN.rule(
    "RUN104",
    "open-without-key",
    "warning",
    source="vLLM's security guide",
    fails=D + "-p 8000:8000 vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D + "-p 127.0.0.1:8000:8000 vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def open_port(case: Case) -> Iterator[Hit]:
    """Published without an address, the port is open to the whole network, past the host's
    firewall. Without an API key anyone may use the model. A key guards /v1, /v2 and /inference
    only; /metrics and others stay open, so the loopback address is the better guard.
    """
    keyed = "api-key" in case.options or "VLLM_API_KEY" in case.line.env
    opened = [text for address, _, _, text in _ports(case) if address in ("", "0.0.0.0", "[::]")]
    if (
        case.line.option("network") == "host"
        and case.serves
        and case.value("host") in (None, "0.0.0.0", "::")
    ):
        opened.append("--network host")
    if (
        not case.contained
        and case.serves
        and case.spark
        and case.value("host") in ("0.0.0.0", "::")
    ):
        opened.append(case.shown("host"))
    if opened and not keyed:
        shown = opened[0] if opened[0].startswith("--") else f"-p {opened[0]}"
        yield Hit(
            f"{shown} opens the server to the network, without an API key.",
            shown,
            "Use -p 127.0.0.1:8000:8000, or pass VLLM_API_KEY on.",
        )


@RUN.rule(
    "RUN105",
    "no-gpu",
    "error",
    kind="nvidia-runtime",
    source="NVIDIA container toolkit: a container sees a GPU only if it asks",
    fails="docker run --ipc=host vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all --ipc=host vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def gpu(case: Case) -> Iterator[Hit]:
    """Without `--gpus all` (or the nvidia runtime, or a CDI device) the container sees no GPU, and
    vLLM fails to infer the device type.
    """
    asked = (
        case.line.option("gpus")
        or case.line.option("runtime") == "nvidia"
        or any("nvidia" in d for d in case.line.values("device"))
    )
    if case.contained and case.line.starts and not asked:
        yield Hit("The container is given no GPU.", None, "Add --gpus all.")


@RUN.rule(
    "RUN106",
    "downloads-are-lost",
    "warning",
    source="Docker: what a container writes is lost with it",
    fails=D + "vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D
    + "-v ~/.cache/huggingface:/root/.cache/huggingface vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def no_volume(case: Case) -> Iterator[Hit]:
    """No volume holds the model: tens of gigabytes are downloaded into the container, and again
    into the next one. A volume elsewhere does not help where the launch line names a repository:
    its files go to /root/.cache/huggingface, unless a variable such as HF_HOME says another folder.
    """
    if not (case.contained and case.serves):
        return
    folders = _inside(case)
    if not (folders or "volumes-from" in _elsewhere(case)):
        yield Hit(
            "No volume: the weights are downloaded into the container and lost with it.",
            None,
            "Add -v ~/vllm:/models, and serve from there.",
        )
    elif (cache := _downloads(case)) and not any(
        "$" in one or f"{cache}/".startswith(one) or one.startswith(f"{cache}/") for one in folders
    ):
        yield Hit(
            f"No volume holds {cache}, so what is downloaded of {case.model} is lost with the"
            " container.",
            case.model,
            f"Add -v ~/.cache/huggingface:{cache}.",
        )


def _inside(case: Case) -> list[str]:
    """Return the folders of the container that are volumes, each with a slash at its end."""
    named = []
    for text in case.line.values("volume"):  # C:\\hub:/hub, ${HUB:-/hub}:/hub:ro
        inside = re.search(r":(/[^:]*)(:[\w,]+)?$", text)
        named.append(inside[1] if inside else text)
    for text in case.line.values("mount"):
        named += re.findall(r"(?:^|,)(?:target|dst|destination)=([^,]+)", text)
    return [f"{folder.rstrip('/')}/" for folder in named]


def _downloads(case: Case) -> str | None:
    """Return the folder of the container that vLLM downloads weights to, as far as it is known:
    where a known image runs as root and is given a repository.
    """
    env = case.line.env
    elsewhere = _elsewhere(case) or _NO_DOWNLOAD & env.keys() or "config" in case.options
    if case.info is None or case.forked or elsewhere:
        return None
    model = re.fullmatch(r"([\w-][\w.-]*)/[\w.-]+", case.model)
    if model is None or any(one.endswith(f"/{model[1]}/") for one in _inside(case)):
        return None
    folder = case.value("download-dir")
    for name, below in _CACHES.items():
        if folder is None and name in env:
            folder = (env[name] or "$") + below  # $: the caller's own value
    folder = folder or "/root/.cache/huggingface"
    return folder.rstrip("/") if re.fullmatch(r"/[\w./-]+", folder) else None


def _elsewhere(case: Case) -> set[str]:
    """Return the options with which it is not known where a download goes."""
    service = case.line.foreign.get("service")
    keys = {str(key).replace("_", "-") for key in service} if isinstance(service, dict) else set()
    names = {"user", "workdir", "env-file", "volumes-from"}
    return names & keys | {name for name in names if case.line.option(name)}


_NO_DOWNLOAD = {"HF_HUB_OFFLINE", "VLLM_USE_MODELSCOPE"}
_CACHES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "",
    "XDG_CACHE_HOME": "/huggingface",
    "HOME": "/.cache/huggingface",
}
"""Variables that say where huggingface_hub keeps its files, the first that is set, and the folder
below.
"""


@RUN.rule(
    "RUN107",
    "host-network",
    "info",
    source="Docker: --network host",
    fails=D + "--network host vllm/vllm-openai:v0.28.0 ORG/MODEL --host 127.0.0.1",
    passes=D + "-p 127.0.0.1:8000:8000 vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def host_network(case: Case) -> Iterator[Hit]:
    """`--network host` gives up the container's own network. Several machines need it; one does
    not.
    """
    several = case.ray or any("infiniband" in one for one in case.line.values("device"))
    if case.line.option("network") == "host" and case.nodes == 1 and not several:
        yield Hit(
            "--network host, though one machine serves.",
            "--network host",
            "Publish one port instead: -p 127.0.0.1:8000:8000.",
        )


@RUN.rule(
    "RUN108",
    "privileged",
    "warning",
    source="Docker: --privileged",
    fails=D + "--privileged vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D + "vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def privileged(case: Case) -> Iterator[Hit]:
    """`--privileged` gives the container the host. vLLM needs `--gpus all`, and over several
    machines /dev/infiniband, IPC_LOCK and memlock.
    """
    if case.line.option("privileged") is not None:
        yield Hit(
            "--privileged gives the container the whole host.",
            "--privileged",
            "Take it out; name the devices and capabilities that are needed.",
        )


@RUN.rule(
    "RUN109",
    "plug-in-without-checksum",
    "warning",
    source="a parser plug-in is Python that the server runs",
    fails="nemotron-3-nano-30b-a3b-nvfp4",
    passes="vllm serve ORG/MODEL --reasoning-parser nemotron_v3",
)
def checksum(case: Case) -> Iterator[Hit]:
    """A parser plug-in is a Python file that runs inside the server. Fetched without a checksum it
    is whatever the address holds that day.
    """
    for step in case.recipe.prepare if case.recipe else []:
        if step.do == "fetch" and step.sha256 == "unknown" and (step.to or "").endswith(".py"):
            yield Hit(
                f"{step.to} is fetched without a checksum.",
                step.url,
                "Write its sha256 into the recipe.",
            )
    for command in case.line.before:
        if re.search(r"\b(curl|wget)\b.*\.py\b", command) and "sha256" not in command:
            yield Hit(
                "A Python file is fetched at each start without a checksum.",
                command,
                "Fetch it once, and check it with sha256sum -c.",
            )


@RUN.rule(
    "RUN110",
    "container-of-a-cluster",
    "warning",
    kind="multi-node-docker",
    source=(
        "Nemotron Super on two Sparks, https://corti.com/serving-nemotron-"
        "super-120b-with-a-1m-token-context-on-a-2-node-dgx-spark-cluster/"
    ),
    fails=D + "--network host nvcr.io/nvidia/vllm:26.09-py3 " + MULTI,
    passes=D + "--network host --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1"
    " nvcr.io/nvidia/vllm:26.09-py3 " + MULTI,
)
def cluster(case: Case) -> Iterator[Hit]:
    """Over several machines NCCL talks RDMA: the container needs /dev/infiniband, the capability
    IPC_LOCK and an unlimited memlock, on every node. Without them it falls back to TCP, or fails.

    A recipe for several Sparks says nothing of the kind: `sparkbook cluster serve` adds what each
    Spark has.
    """
    stated = (case.number("nnodes") or 1) > 1 or case.ray
    if case.contained and stated and case.line.option("privileged") is None:
        missing = []
        if not any("infiniband" in device for device in case.line.values("device")):
            missing.append("--device /dev/infiniband")
        if "IPC_LOCK" not in " ".join(case.line.values("cap-add")):
            missing.append("--cap-add IPC_LOCK")
        if not any(limit.startswith("memlock") for limit in case.line.values("ulimit")):
            missing.append("--ulimit memlock=-1")
        if missing:
            yield Hit(
                f"Several machines, and the container lacks {', '.join(missing)}.",
                None,
                f"Add {' '.join(missing)} on every node.",
            )


@RUN.rule(
    "RUN111",
    "ray-kills-workers",
    "warning",
    kind="ray-oom-killer",
    source="vllm-gb10, https://github.com/atcuality2021/vllm-gb10",
    fails="vllm serve ORG/MODEL -tp 2 --distributed-executor-backend ray",
    passes=(
        "RAY_memory_monitor_refresh_ms=0 vllm serve ORG/MODEL -tp 2"
        " --distributed-executor-backend ray"
    ),
)
def ray_monitor(case: Case) -> Iterator[Hit]:
    """Ray counts weights and KV cache as the host's memory, since they are, and kills workers when
    it is 95 % full. Switch its monitor off on every node, the head included.
    """
    if case.ray and case.line.env.get("RAY_memory_monitor_refresh_ms") != "0":
        yield Hit(
            "Ray's memory monitor kills workers at 95 % of the unified memory.",
            case.shown("distributed-executor-backend"),
            "Set RAY_memory_monitor_refresh_ms=0 on every node.",
        )


@RUN.rule(
    "RUN112",
    "fastsafetensors-over-nodes",
    "warning",
    kind="loader-hang",
    source="spark-vllm-docker issue 29, https://github.com/eugr/spark-vllm-docker/issues/29",
    fails=(
        "RAY_memory_monitor_refresh_ms=0 vllm serve ORG/MODEL -tp 2 --distributed-executor-backend"
        " ray --load-format fastsafetensors"
    ),
    passes=(
        "RAY_memory_monitor_refresh_ms=0 vllm serve ORG/MODEL -tp 2 --distributed-executor-backend"
        " ray --load-format safetensors"
    ),
)
def loader_over_nodes(case: Case) -> Iterator[Hit]:
    """fastsafetensors took its device from the global rank, which on machines with one GPU each
    does not exist: loading hangs at 0 %.
    """
    if case.value("load-format") == "fastsafetensors" and (case.ray or case.nodes > 1):
        yield Hit(
            "The loader fastsafetensors has hung at 0 % over several machines.",
            case.shown("load-format"),
            "Use --load-format safetensors.",
        )


@RUN.rule(
    "RUN113",
    "same-on-every-node",
    "info",
    kind="multi-node-interface",
    source="spark-vllm-docker issue 227, https://github.com/eugr/spark-vllm-docker/issues/227",
    fails="NCCL_IB_GID_INDEX=3 " + MULTI,
    passes="NCCL_SOCKET_IFNAME=enp1s0f0np0 " + MULTI,
)
def per_node(case: Case) -> Iterator[Hit]:
    """Interface, adapter, GID index and the node's own address differ from machine to machine:
    index 3 on one pair, 5 on another. A line that is copied to every node carries the first one's.
    """
    for name in ("NCCL_IB_GID_INDEX", "VLLM_HOST_IP", "NCCL_IB_HCA"):
        if (case.nodes > 1 or case.ray) and case.line.env.get(name):
            yield Hit(
                f"{name} belongs to one node, and is fixed on the line.",
                f"{name}={case.line.env[name]}",
                "Find it on each node, or leave it out.",
            )


@RUN.rule(
    "RUN114",
    "root-owned-cache",
    "info",
    kind="cache-permission",
    source="Docker: files that root writes into a volume belong to root",
    fails=D + "-v ~/.cache/huggingface:/root/.cache/huggingface vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D + "-v ~/vllm:/models:ro vllm/vllm-openai:v0.28.0 /models/m",
)
def root_owned(case: Case) -> Iterator[Hit]:
    """The container runs as root, and what it downloads into the mounted cache belongs to root: the
    next download by hand fails.
    """
    for volume in case.line.values("volume"):
        if (
            re.search(r":/root/\.cache(/huggingface)?/?(:rw)?$", volume)
            and case.line.option("user") is None
        ):
            yield Hit(
                "The container writes into the mounted cache as root.",
                f"-v {volume}",
                "Download on the host first, and mount it read-only.",
            )


@RUN.rule(
    "RUN120",
    "file-of-vllm-replaced",
    "warning",
    kind="version-drift",
    source="https://github.com/eugr/spark-vllm-docker/issues/238",
    fails=D
    + "-v ~/m/gemma4.py:/usr/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py"
    " vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D + "-v ~/m/chat.jinja:/chat.jinja:ro vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def replaced_file(case: Case) -> Iterator[Hit]:
    """A file on the host is mounted over one of the image's Python files. It was made for one
    release: with another the start ends in a TypeError or an ImportError, or an old fault is back.
    """
    for volume in case.line.values("volume"):
        inside = volume.partition(":")[2].partition(":")[0]
        if re.search(r"/(?:dist|site)-packages/.+\.py$", inside):
            yield Hit(
                f"A file of the image, {inside.rpartition('/')[2]}, is replaced by a mounted one.",
                f"-v {volume}",
                "Leave the mount out with a release that has the repair, or pin the image that the"
                " file was made for.",
            )


@RUN.rule(
    "RUN115",
    "removed-and-restarted",
    "error",
    kind="restart-policy",
    source="Docker: conflicting options --restart and --rm",
    fails=D + "--rm --restart on-failure:3 vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes=D + "--restart on-failure:3 vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def rm_and_restart(case: Case) -> Iterator[Hit]:
    """Docker refuses `--rm` together with a restart policy: a container that is removed cannot be
    restarted.
    """
    if case.line.option("rm") is not None and case.line.option("restart") not in (None, "no"):
        yield Hit(
            "Docker refuses --rm together with --restart.",
            f"--rm --restart {case.line.option('restart')}",
            "Keep one of them.",
        )


@RUN.rule(
    "RUN116",
    "two-ways-to-start",
    "warning",
    kind="config-drift",
    source=(
        "Blackwellboy minefield, trap 104, https://github.com/Blackwellboy/"
        "model-serving-minefield/blob/main/traps/versioning/104-stale-launch-script-silently-reverts-config.md"
    ),
    fails="vllm serve ORG/MODEL --max-num-seqs 4\nvllm serve ORG/MODEL --max-num-seqs 8",
    passes="vllm serve ORG/MODEL --max-num-seqs 4",
)
def two_ways(case: Case) -> Iterator[Hit]:
    """Two lines start the same model (or a container of the same name) with different settings.
    After a restart by the other one the server is not the one that was tested. One recipe should be
    the only way to start it.
    """
    for other in case.line.others:
        twin = Case(other, case.version)
        same_name = case.line.option("name") is not None and case.line.option(
            "name"
        ) == other.option("name")
        if not same_name and (not case.model or twin.model != case.model):
            continue
        mine = {name: given.shown for name, given in case.options.items()}
        theirs = {name: given.shown for name, given in twin.options.items()}
        differing = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
        if differing:
            yield Hit(
                f"Two lines start {case.model or case.line.option('name')} with different"
                " settings.",
                ", ".join(f"--{n}" for n in differing),
                "Keep one, and start from it only.",
            )


@RUN.rule(
    "RUN117",
    "installed-at-each-start",
    "info",
    kind="dependency",
    source="pip: without a version, the newest one of the day is installed",
    fails=D + "nvcr.io/nvidia/vllm:26.04-py3 bash -c 'pip install scipy && vllm serve ORG/MODEL'",
    passes=D
    + "nvcr.io/nvidia/vllm:26.04-py3 bash -c 'pip install scipy==1.16.0 && vllm serve ORG/MODEL'",
)
def installs(case: Case) -> Iterator[Hit]:
    """A package installed at each start without a version needs a network, and is another one next
    month.
    """
    for command in case.line.before:
        if re.search(r"\b(pip|uv)\b.*\binstall\b", command) and not re.search(
            r"==|-r |--requirement", command
        ):
            yield Hit(
                "A package is installed at each start without a version.",
                command,
                "Pin its version, or build it into an image.",
            )


@RUN.rule(
    "RUN118",
    "node-rank-missing",
    "error",
    kind="multi-node-hang",
    source="vLLM's multi-node options",
    since="0.12.0",
    release="0.32.0",
    fails="vllm serve ORG/MODEL -tp 2 --nnodes 2 --master-addr 192.0.2.1",
    passes="vllm serve ORG/MODEL -tp 2 --nnodes 2 --node-rank 0 --master-addr 192.0.2.1",
)
def node_rank(case: Case) -> Iterator[Hit]:
    """Every machine of a group has a rank of its own and one address to meet at. With the default
    rank of 0 on each, or the default address, they wait for each other.
    """
    if (case.number("nnodes") or 1) > 1:
        for name in ("node-rank", "master-addr"):
            if name not in case.options:
                yield Hit(
                    f"--nnodes without --{name}.",
                    case.shown("nnodes"),
                    (
                        f"Add --{name}, on every machine its own."
                        if name == "node-rank"
                        else f"Add --{name}, the same on every machine."
                    ),
                )


@RUN.rule(
    "RUN119",
    "broken-line",
    "error",
    source="the shell's and Docker's own grammar",
    fails="vllm serve ORG/MODEL\n  --max-num-seqs 4",
    passes="vllm serve ORG/MODEL \\\n  --max-num-seqs 4",
)
def broken(case: Case) -> Iterator[Hit]:
    """The line does not start what it describes: a backslash is missing at the end of a line, a
    placeholder such as `<MODEL>` is left, or a shell gets its script in pieces. `sparkbook convert`
    and `sparkbook plan` refuse such a line.
    """
    for mistake in case.line.mistakes:
        if mistake.code is None:
            yield Hit(mistake.message, fix=mistake.fix)
    last = case.line.serve[-1] if case.line.serve else None
    if last and last.end > 0 and last.text.startswith("--") and last.known:
        rest = re.match(r"\n([\w-]+)", case.line.text[last.end :])
        whole = f"{last.text}{rest[1]}" if rest else ""
        if whole[2:].replace("_", "-") in case.release.options:
            yield Hit(
                f"The line ends inside {whole}, as a terminal breaks a long line.",
                last.text,
                "Join the two lines.",
            )
