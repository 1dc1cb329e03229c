"""Where the server listens in its container, and who asks there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.lint.case import Case
from sparkbook.lint.rules.run import RUN, D
from sparkbook.rules import Hit

_EVERYWHERE = ("0.0.0.0", "::")
_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
_ASKED = re.compile(r"\bhttp://(\[[\da-f:]+\]|[\w.-]+)(?::(\d+))?(?=[/\s'\"]|$)")


def _named(address: str) -> bool:
    """Whether an address is a name, which any address may have."""
    return address != "localhost" and not re.fullmatch(r"[\d.]+|\[.*\]", address)


def _health_check(case: Case) -> str:
    """The command of the container's health check; empty without one."""
    service = case.line.foreign.get("service", {})
    check = service.get("healthcheck") if isinstance(service, dict) else None
    test = check.get("test") if isinstance(check, dict) else case.line.option("health-cmd")
    words = test[1:] if isinstance(test, list) else [test or ""]  # CMD or CMD-SHELL comes first
    return " ".join(map(str, words))


@RUN.rule(
    "RUN121",
    "health-check-elsewhere",
    "warning",
    kind="false-positive",
    source="https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/185"
    " (2026-09-01) and pull request 112 (2026-08-22)",
    fails=D + "--network host --health-cmd 'curl -f http://127.0.0.1:8000/health'"
    " vllm/vllm-openai:v0.28.0 ORG/MODEL --host 192.0.2.1",
    passes=D + "--network host --health-cmd 'curl -f http://192.0.2.1:8000/health'"
    " vllm/vllm-openai:v0.28.0 ORG/MODEL --host 192.0.2.1",
)
def health_check(case: Case) -> Iterator[Hit]:
    """Docker runs the health check inside the container. If it asks an address or a port at which
    the server does not listen, a server that works is `unhealthy` forever: what depends on it does
    not start, and what restarts unhealthy containers restarts it. With `--headless` a rank has no
    HTTP server at all.
    """
    test = _health_check(case)
    asked = _ASKED.findall(test)
    host, port = case.value("host") or "0.0.0.0", f"{case.number('port') or 8000:.0f}"
    known = case.lacks("uds") and re.fullmatch(r"[\w.:-]+", host)
    if not (asked and known):
        return
    same = {host, *(_LOOPBACK if host in _LOOPBACK else ())}
    if case.on("headless"):
        yield Hit(
            "The health check asks over HTTP, and a --headless rank has no HTTP server.",
            test,
            "Leave the health check out on this rank.",
        )
    elif not any(
        (at_port or "80") == port and (host in _EVERYWHERE or address in same or _named(address))
        for address, at_port in asked
    ):
        address, at_port = asked[0]
        yield Hit(
            f"The health check asks {address}:{at_port or 80}, and the server listens on"
            f" {host}:{port}.",
            test,
            f"Ask http://{'127.0.0.1' if host in _EVERYWHERE else host}:{port}/health.",
        )


@RUN.rule(
    "RUN122",
    "loopback-of-the-container",
    "error",
    source="https://github.com/docker/cli/discussions/7045 and"
    " https://forums.docker.com/t/cant-access-to-server-starting-on-127-0-0-1-inside-docker-but-work"
    "-with-0-0-0-0/34709, read 2026-11-29",
    fails=D + "-p 127.0.0.1:8000:8000 vllm/vllm-openai:v0.28.0 ORG/MODEL --host 127.0.0.1",
    passes=D + "-p 127.0.0.1:8000:8000 vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def loopback(case: Case) -> Iterator[Hit]:
    """A container has a loopback address of its own, and Docker forwards a published port to the
    container's other address: a server that listens on 127.0.0.1 inside is reached by nobody. What
    limits access to this machine is the address before the published port.
    """
    port = f"{case.number('port') or 8000:.0f}"
    published = any(
        re.search(rf"(^|:|-){port}(-\d+)?(/tcp)?$", text) for text in case.line.values("publish")
    )
    inside = case.line.option("network") != "host" and case.value("host") in _LOOPBACK
    if published and inside and case.lacks("uds"):
        yield Hit(
            f"The server listens on the container's own {case.value('host')}, which the published"
            " port does not reach.",
            case.shown("host"),
            "Remove --host, and keep the address in front of the published port: -p"
            " 127.0.0.1:8000:8000.",
        )
