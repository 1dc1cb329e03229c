"""What each node is: commands run on it, and one look at its ports, adapters, limits, image and
model files.

A look is one POSIX shell script, so that a node needs nothing but a shell, and a look over SSH is
one connection.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Sequence

from pydantic import Field

from sparkbook.cluster.inventory import Inventory, Node
from sparkbook.errors import SparkbookError
from sparkbook.host.machine import Link, Network, Rdma
from sparkbook.recipes.launch import Strict
from sparkbook.util import limits
from sparkbook.util.limits import Ran
from sparkbook.util.shell_text import mark_home, script_line

Runner = Callable[[Node, Sequence[str]], Ran]
"""Runs words on a node and waits for them."""

SSH_OPTIONS = (
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=8",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=2",
)
UNREACHABLE = 255
"""Exit code of ssh where it reached nothing."""


def words_on(node: Node, words: Sequence[str]) -> list[str]:
    """Return the words that run a command on a node, from here."""
    if node.ssh is None:
        return [*node.via, *words]
    target, _, port = node.ssh.partition(":")
    return ["ssh", *SSH_OPTIONS, *(["-p", port] if port else []), target, script_line(*words)]


def run_on(node: Node, words: Sequence[str], timeout_s: float = 60) -> Ran:
    """Run a command on a node; code 127 where there is none, 124 where it gave no answer, 125 where
    it printed without end, 255 where the node can't be reached.
    """
    return limits.run(words_on(node, words), timeout_s=timeout_s)


class Site(Strict):
    """What a node turned out to be; every field is this node's own. None is unknown.

    Attributes:
        problem: why the node could not be read; then nothing else is known.
        network: its ports and adapters.
        interface, address: the port of the fast network, and its IP.
        hcas, gid_index: the RDMA devices that are active on it, and the index of the address among
            the first one's GIDs.
        memlock_bytes: limit of a login there; -1 is unlimited.
        cma_total_kb, cma_free_kb: the kernel's reserve for contiguous memory.
        pause: whether the port honors and sends pause frames (`ethtool -a`).
        gpu_processes: how many use its GPU.
        image, model: digest of the image, and of the names and contents of the model's files.
        revision: commit of the model's files.
    """

    host: str
    problem: str | None = None
    network: Network = Field(default_factory=Network)
    interface: str | None = None
    address: str | None = None
    hcas: list[str] = Field(default_factory=list)
    gid_index: int | None = None
    kernel: str | None = None
    memlock_bytes: int | None = None
    remove_ipc: bool | None = None
    infiniband: bool | None = None
    cma_total_kb: int | None = None
    cma_free_kb: int | None = None
    available_kb: int | None = None
    pause: bool | None = None
    gpu_processes: int | None = None
    image: str | None = None
    model: str | None = None
    revision: str | None = None

    @property
    def link(self) -> Link | None:
        """The port of the fast network."""
        return next((link for link in self.network.links if link.name == self.interface), None)

    @property
    def rails(self) -> list[Rdma]:
        """The RDMA devices that are active and fast: one QSFP port of a Spark shows as two, each on
        a PCIe link of its own.
        """
        return [port for port in self.network.rdma if port.active]

    def environment(self) -> dict[str, str]:
        """Return the variables that lead vLLM, Gloo, NCCL, UCX and Ray to the fast network."""
        env = {}
        if self.address:
            env["VLLM_HOST_IP"] = self.address
        if self.interface:
            env |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), self.interface)
            env["NCCL_SOCKET_IFNAME"] = (
                f"={self.interface}"  # NCCL alone takes a name for the beginning of one
            )
            env["UCX_NET_DEVICES"] = ",".join(f"{hca}:1" for hca in self.hcas) or self.interface
        if self.hcas:
            env["NCCL_IB_HCA"] = "=" + ",".join(self.hcas)
            if self.gid_index is not None:
                env["NCCL_IB_GID_INDEX"] = str(self.gid_index)
        return env


_SCRIPT = r"""
ip -o link show 2>/dev/null | while read -r i n flags rest; do
  n=${n%:}; n=${n%%@*}; [ "$n" = lo ] && continue
  mtu=${rest#*mtu }; mtu=${mtu%% *}; state=${rest#*state }; state=${state%% *}
  speed=$(cat /sys/class/net/$n/speed 2>/dev/null) || speed=-1
  echo "link $n $state $speed $mtu"
done
ip -o addr show 2>/dev/null | while read -r i n f a rest; do echo "addr ${n%%@*} $f $a"; done
echo "default $(ip route show default 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)"
for d in /sys/class/infiniband/*; do [ -e "$d/ports/1/state" ] || continue; n=${d##*/}
  echo "hca $n $(cut -d: -f2 < $d/ports/1/state | tr -d ' ') $(ls $d/device/net 2>/dev/null | head -n 1)"
  for g in $d/ports/1/gids/*; do
    v=$(cat $g 2>/dev/null) && t=$(cat $d/ports/1/gid_attrs/types/${g##*/} 2>/dev/null) && echo "gid $n ${g##*/} $v $t"
  done
done
ibv_devinfo 2>/dev/null | awk '/hca_id:/ {d=$2} /active_mtu:/ {print "ibmtu", d, $2}'
echo "kernel $(uname -r)"
echo "memlock $(ulimit -H -l)"
echo "removeipc $(sed -n 's/^ *RemoveIPC *= *//p' /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf 2>/dev/null | tail -n 1)"
[ -d /dev/infiniband ] && echo "infiniband yes" || echo "infiniband no"
awk '/^(CmaTotal|CmaFree|MemAvailable):/ {print "mem", $1, $2}' /proc/meminfo
apps=$(timeout -k 1 10 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null) &&
  ! echo "$apps" | grep -qv '^ *[0-9]* *$\|^No running' && echo "gpuprocesses $(echo "$apps" | grep -c '[0-9]')"
for n in $(ip -o link show 2>/dev/null | cut -d: -f2 | cut -d@ -f1); do
  ethtool -a "$n" 2>/dev/null | awk -v n="$n" '/^(RX|TX):/ {print "pause", n, $1, $2}'
done
"""  # noqa: E501 - a script sent to a node, in one piece


def look(
    inventory: Inventory,
    *,
    image: str | None = None,
    model: str | None = None,
    run: Runner = run_on,
    quick: bool = False,
) -> list[Site]:
    """Look at every node, each by itself.

    Args:
        inventory: the nodes.
        image: reference of an image, whose digest is asked.
        model: folder of the model's files, or of its repository in a Hugging Face cache; `{store}`
            is each node's own model store.
        run: the way to a node.
        quick: compare names and sizes of the model's files instead of their contents.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(inventory.nodes)) as pool:
        return list(pool.map(lambda node: _site(node, image, model, run, quick), inventory.nodes))


def _site(node: Node, image: str | None, model: str | None, run: Runner, quick: bool) -> Site:
    seen = run(node, ["sh", "-c", _SCRIPT])
    if seen.code:
        reason = (
            next(reversed(seen.err.splitlines()), "") or f"its shell ended with status {seen.code}"
        )
        return Site(host=node.host, problem=reason)
    site = read_look(node, seen.out)
    if image:
        asked = run(
            node, ["docker", "image", "inspect", "--format", "{{json .RepoDigests}} {{.Id}}", image]
        )
        site = site.model_copy(
            update={"image": _digest(asked.out) if asked.code == 0 else "not there"}
        )
    if model:
        asked = run(
            node,
            [
                "sh",
                "-c",
                _FILES.format(
                    folder=script_line(mark_home(model.replace("{store}", node.store))),
                    how="wc -c" if quick else "sha256sum",
                ),
            ],
        )
        digest, _, revision = asked.out.strip().partition("\n")
        site = site.model_copy(
            update={
                "model": digest if asked.code == 0 else "not there",
                "revision": revision.strip() or None,
            }
        )
    return site


_FILES = r"""
cd {folder} || exit 1
if [ -f refs/main ]; then cd "snapshots/$(cat refs/main)" || exit 1; fi
find -L . -type f ! -path '*/.cache/*' ! -name '.git*' -print | LC_ALL=C sort | while IFS= read -r f; do
  printf '%s ' "$f"; {how} < "$f"
done | sha256sum | cut -c1-16
basename "$(pwd -P)" | grep -E '^[0-9a-f]{{40}}$' || true
"""  # noqa: E501 - a script sent to a node, in one piece
"""One digest over the names and contents (or sizes) of a folder's files; then the commit, where the
folder is the hub's snapshot of one.

Of a repository in a Hugging Face cache, the commit of its branch `main` counts.
"""


def _digest(output: str) -> str:
    """Return the image's digest in its registry, or, for one that was built, its own id."""
    listed, _, own = output.strip().rpartition(" ")
    try:
        digests = sorted(entry.rpartition("@")[2] for entry in json.loads(listed) or [])
    except ValueError:
        digests = []
    return digests[0] if digests else own


def read_look(node: Node, text: str) -> Site:
    """Return a site out of what the script printed on a node."""
    links: dict[str, dict] = {}
    hcas: dict[str, dict] = {}
    found: dict = {}
    pauses: dict[str, list[bool]] = {}
    for line in filter(str.strip, text.splitlines()):
        word, *rest = line.split()
        if word == "link" and len(rest) == 4:
            name, state, speed, mtu = rest
            number = int(speed) if re.fullmatch(r"\d+", speed) else None
            links[name] = {
                "name": name,
                "up": state.lower() in ("up", "unknown"),
                "speed": number,
                "mtu": int(mtu) or None,
                "addresses": [],
            }
        elif word == "addr" and len(rest) == 3 and rest[0] in links and rest[1] == "inet":
            links[rest[0]]["addresses"].append(rest[2].split("/")[0])
        elif word == "default" and rest:
            found["default"] = rest[0]
        elif word == "hca" and len(rest) >= 2:
            hcas[rest[0]] = {
                "name": rest[0],
                "active": rest[1] == "ACTIVE",
                "link": rest[2] if len(rest) > 2 else None,
                "gids": {},
            }
        elif word == "gid" and len(rest) >= 4 and rest[0] in hcas and set(rest[2]) > {"0", ":"}:
            address = ipaddress.IPv6Address(rest[2])
            kind = " ".join(rest[3:]).replace("IB/", "")
            hcas[rest[0]]["gids"][int(rest[1])] = f"{kind} {address.ipv4_mapped or address}"
        elif word == "ibmtu" and len(rest) == 2 and rest[0] in hcas:
            hcas[rest[0]]["mtu"] = int(rest[1])
        elif word == "pause" and len(rest) == 3:
            pauses.setdefault(rest[0], []).append(rest[2] == "on")
        elif word == "mem" and len(rest) == 2:
            found[rest[0]] = int(rest[1])
        elif word in ("kernel", "memlock", "removeipc", "infiniband", "gpuprocesses"):
            found[word] = rest[0] if rest else ""
    network = Network(
        links=[Link(**link) for link in links.values()],
        rdma=[Rdma(**hca) for hca in hcas.values()],
        default=found.get("default"),
    )
    memlock = found.get("memlock", "")
    site = Site(
        host=node.host,
        network=network,
        kernel=found.get("kernel"),
        infiniband=found.get("infiniband") == "yes",
        memlock_bytes=(
            -1 if memlock == "unlimited" else int(memlock) * 1024 if memlock.isdigit() else None
        ),
        remove_ipc=found.get("removeipc", "").lower() not in ("no", "false", "0", "off"),
        cma_total_kb=found.get("CmaTotal:"),
        cma_free_kb=found.get("CmaFree:"),
        available_kb=found.get("MemAvailable:"),
        gpu_processes=int(count) if (count := found.get("gpuprocesses", "")).isdigit() else None,
    )
    return placed(node, site, {name: all(values) for name, values in pauses.items()})


def placed(node: Node, site: Site, pauses: dict[str, bool] | None = None) -> Site:
    """Return the site with the port, address and adapters of the fast network: the inventory's
    where it names them, else what is there.
    """
    links = site.network.links
    link = next((one for one in links if node.interface == one.name), None)
    if node.interface is None:
        link = next((one for one in links if node.address and node.address in one.addresses), None)
        if link is None and node.address is None:
            able = [one for one in links if one.up and one.addresses]
            link = max(able, key=lambda one: one.speed or 0, default=None)
    address = node.address or (link.addresses[0] if link and link.addresses else None)
    interface = node.interface or (link.name if link else None)
    ports = [
        port
        for port in site.network.rdma
        if port.active and (port.link == interface or _has(port, address))
    ]
    hcas = node.hca.split(",") if node.hca else [port.name for port in ports] or []
    # Both halves of one QSFP port belong to the fast network: a second active device of the same
    # speed is the other half.
    if not node.hca and ports:
        hcas = [
            port.name
            for port in site.network.rdma
            if port.active and _speed(links, port.link) == _speed(links, ports[0].link)
        ]
    gid = node.gid_index
    if gid is None and ports:
        gid = next(
            (
                index
                for index, told in sorted(ports[0].gids.items())
                if told == f"RoCE v2 {address}"
            ),
            None,
        )
    return site.model_copy(
        update={
            "interface": interface,
            "address": address,
            "hcas": hcas,
            "gid_index": gid,
            "pause": (pauses or {}).get(interface or "", site.pause),
        }
    )


def _has(port: Rdma, address: str | None) -> bool:
    return any(gid.endswith(f" {address}") for gid in port.gids.values())


def _speed(links: Sequence[Link], name: str | None) -> int | None:
    return next((link.speed for link in links if link.name == name), None)


def need(sites: Sequence[Site]) -> None:
    """Refuse to go on without a node.

    Raises:
        SparkbookError: a node can't be reached, or has no address that the others could use.
    """
    for site in sites:
        if site.problem:
            raise SparkbookError(f"{site.host} can't be reached: {site.problem}")
        if site.address is None:
            raise SparkbookError(
                f"{site.host} has no address on a network: give one in the inventory (address:)"
            )
