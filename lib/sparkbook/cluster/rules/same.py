"""2xx: what must be the same on all nodes."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.cluster.family import FAB, GUIDE
from sparkbook.cluster.sighting import Seen, example, good, links
from sparkbook.rules import Hit


def _odd(values: dict[str, str]) -> str:
    """Return who differs from most, with the values."""
    counts = sorted(
        values.values(),
        key=lambda value: (-list(values.values()).count(value), list(values.values()).index(value)),
    )
    return ", ".join(host for host, value in values.items() if value != counts[0])


@FAB.rule(
    "FAB201",
    "images-differ",
    "error",
    kind="version-drift",
    passes=good,
    fails=lambda: example(b={"image": "sha256:9999"}),
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/145-docker-run-implicit-pull-inside-launch-timeout.md",
)
def images(seen: Seen) -> Iterator[Hit]:
    """The same tag can be another image on each node, depending on when it was pulled. Ranks of
    different vLLMs fail or hang.
    """
    known = {
        site.host: site.image for _, site in seen.nodes if site.image and site.image != "not there"
    }
    if len(set(known.values())) > 1:
        yield Hit(
            f"{_odd(known)} has another image.",
            _each(known),
            "Name the image by its digest, and pull it on every node: sparkbook lock writes it.",
        )


@FAB.rule(
    "FAB202",
    "model-files-differ",
    "error",
    kind="download-corrupt",
    passes=good,
    fails=lambda: example(b={"model": "9c1185a5c5e9fc54", "revision": "3333"}),
    source="https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
)
def models(seen: Seen) -> Iterator[Hit]:
    """Every rank reads its own copy of the weights. Ranks with different revisions answer with
    nonsense, or fail when they load.
    """
    known = {
        site.host: f"{site.model} (revision {site.revision or 'unknown'})"
        for _, site in seen.nodes
        if site.model and site.model != "not there"
    }
    if len(set(known.values())) > 1:
        yield Hit(
            f"{_odd(known)} has other model files.",
            _each(known),
            "Serve --stage copies them from the head over the fast link and compares hashes.",
        )


@FAB.rule(
    "FAB203",
    "not-staged",
    "warning",
    kind="download-corrupt",
    passes=good,
    fails=lambda: example(b={"model": "not there"}),
    source=GUIDE,
)
def staged(seen: Seen) -> Iterator[Hit]:
    """A node without the model's files or the image fetches them while the others wait for it, and
    the others give up first.
    """
    for what, attribute in (("image", "image"), ("model files", "model")):
        if missing := [
            site.host for _, site in seen.nodes if getattr(site, attribute) == "not there"
        ]:
            yield Hit(
                f"{', '.join(missing)} lacks the {what}.",
                "not there",
                "Serve --stage puts image and files on every node.",
            )


@FAB.rule(
    "FAB204",
    "ends-differ",
    "warning",
    kind="multi-node-rdma",
    source="https://github.com/0xSero/local-ai-registry/pull/55",
    passes=good,
    confidence="medium",
    fails=lambda: example(b=links({"enp1s0f0np0": {"mtu": 1500}})),
)
def mtus(seen: Seen) -> Iterator[Hit]:
    """Both ends of a link need the same MTU, or large packets are lost: small tests pass, and the
    first real transfer hangs.
    """
    known = {site.host: str(site.link.mtu) for _, site in seen.nodes if site.link and site.link.mtu}
    if len(set(known.values())) > 1:
        yield Hit(
            f"The MTU of {_odd(known)} is another one.",
            _each(known),
            "Run `sudo ip link set PORT mtu 9000` on every node.",
        )


def _each(values: dict[str, str]) -> str:
    return ", ".join(f"{host}: {value}" for host, value in values.items())
