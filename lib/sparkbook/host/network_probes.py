"""The network: links with their addresses and speeds, RDMA devices, and what is set for NCCL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from sparkbook.host import machine as seen
from sparkbook.host.access import Access
from sparkbook.host.machine import Wanted

_NETWORK_ENV = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "VLLM_HOST_IP",
)


def network_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    addresses: dict[str, list[str]] = {}
    asked = access.runner(["ip", "-j", "address"])
    for link in json.loads(asked.out) if asked.code == 0 and asked.out else []:
        addresses[link["ifname"]] = [
            info["local"] for info in link.get("addr_info", []) if info.get("family") == "inet"
        ]
    links = []
    for folder in sorted((access.root / "sys/class/net").glob("*")):
        name = folder.name
        if name == "lo" or name.startswith(("veth", "br-", "docker")):
            continue
        speed, mtu = (
            access.text(f"sys/class/net/{name}/speed"),
            access.text(f"sys/class/net/{name}/mtu"),
        )
        links.append(
            seen.Link(
                name=name,
                up=access.text(f"sys/class/net/{name}/operstate") == "up",
                mtu=int(mtu) if mtu else None,
                speed=int(speed) if speed and speed.isdigit() else None,
                addresses=addresses.get(name, []),
            )
        )
    routes = [line.split() for line in (access.text("proc/net/route") or "").splitlines()[1:]]
    default = next(
        (words[0] for words in routes if len(words) > 1 and words[1] == "00000000"), None
    )
    env = {name: access.environ[name] for name in _NETWORK_ENV if access.environ.get(name)}
    return {
        "network": seen.Network(links=links, rdma=list(_rdma(access)), default=default, env=env)
    }


def _rdma(access: Access) -> Iterator[seen.Rdma]:
    mtus: dict[str, int] = {}
    device = ""
    for line in access.runner(["ibv_devinfo"]).out.splitlines():
        if found := re.match(r"\s*hca_id:\s*(\S+)", line):
            device = found[1]
        elif found := re.match(r"\s*active_mtu:\s*(\d+)", line):
            mtus.setdefault(device, int(found[1]))
    for folder in sorted((access.root / "sys/class/infiniband").glob("*")):
        base = f"sys/class/infiniband/{folder.name}"
        gids = {}
        for file in sorted(
            (folder / "ports/1/gids").glob("*"), key=lambda path: path.name.zfill(4)
        ):
            gid, kind = (
                access.text(f"{base}/ports/1/gids/{file.name}"),
                access.text(f"{base}/ports/1/gid_attrs/types/{file.name}"),
            )
            if gid and set(gid) > {"0", ":"}:
                gids[int(file.name)] = f"{(kind or '').replace('IB/', '')} {_address(gid)}".strip()
        link = next((path.name for path in sorted((folder / "device/net").glob("*"))), None)
        active = "ACTIVE" in (access.text(f"{base}/ports/1/state") or "")
        yield seen.Rdma(
            name=folder.name, active=active, link=link, mtu=mtus.get(folder.name), gids=gids
        )


def _address(gid: str) -> str:
    """Return a GID as an address: an IPv4 address is mapped into the last 32 bits."""
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)
