"""A Kubernetes Deployment with one container that serves.

Fields: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/ (Deployment v1 in
apps, PodSpec, seen 2026-11). Other manifests, such as a Service, are kept aside.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.command import host_container, image_of
from sparkbook.formats.conversion import Notes
from sparkbook.formats.from_launch import slug
from sparkbook.formats.reading import Reading
from sparkbook.formats.words import container_words
from sparkbook.launch.line import Line, Word
from sparkbook.launch.server import container as take_words
from sparkbook.recipes.launch import Launch
from sparkbook.util.documents import dump, mapping, optional, parse_all, scalar, sequence
from sparkbook.util.secret import is_secret
from sparkbook.util.shell_text import HOME, mark_home

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

GPU = "nvidia.com/gpu"
_CONTAINER = {
    "envFrom",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "resizePolicy",
    "restartPolicy",
    "securityContext",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "workingDir",
}
_POD = {
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "hostPID",
    "hostUsers",
    "hostname",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "restartPolicy",
    "schedulerName",
    "securityContext",
    "serviceAccountName",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
}
_SECRET = "vllm-secrets"


def detect(text: str, document: Any) -> bool:
    """Return whether one of a file's documents is a Deployment."""
    documents = document if isinstance(document, list) else [document]
    return any(
        isinstance(document, dict) and document.get("kind") == "Deployment" and "spec" in document
        for document in documents
    )


def read(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch of the Deployment's container.

    Raises:
        SparkbookError: there is no Deployment, or none of its containers serves.
    """
    documents = [document for document in parse_all(text) if document is not None]
    deployments = [
        document
        for document in documents
        if isinstance(document, dict) and document.get("kind") == "Deployment"
    ]
    if not deployments:
        raise SparkbookError("there is no Deployment in this file")
    if len(deployments) > 1:
        notes.add("CONV205", f"Of {len(deployments)} Deployments, the first was taken.")
    if others := [document for document in documents if document is not deployments[0]]:
        notes.foreign["documents"] = others
        kinds = ", ".join(
            scalar(document.get("kind") or "?", "kind") if isinstance(document, dict) else "?"
            for document in others
        )
        notes.add(
            "CONV203",
            "The other manifests are kept under foreign: a recipe has no field for them.",
            kinds,
        )
    data = deployments[0]
    spec = mapping(data.get("spec"), "spec")
    template = mapping(spec.get("template"), "spec.template")
    place = "spec.template.spec"
    pod = mapping(template.get("spec"), place)
    containers = [
        mapping(item, f"{place}.containers")
        for item in sequence(pod.get("containers"), f"{place}.containers")
    ]
    serving = [
        item
        for item in containers
        if "vllm" in str(item.get("image")) or "vllm" in f"{item.get('command')} {item.get('args')}"
    ]
    if not containers:
        raise SparkbookError(f"{place}.containers is empty")
    container = (serving or containers)[0]
    if len(containers) > 1:
        names = [str(item.get("name")) for item in containers if item is not container]
        notes.add(
            "CONV205",
            f"Of {len(containers)} containers, {container.get('name')} was taken.",
            f"others: {', '.join(names)}",
        )
    reading = Reading(notes)
    _read_container(reading, pod, container, place)
    metadata = mapping(data.get("metadata"), "metadata")
    for key, part, used, known in (
        (
            "spec",
            spec,
            {"template", "selector"},
            {
                "replicas",
                "strategy",
                "minReadySeconds",
                "paused",
                "progressDeadlineSeconds",
                "revisionHistoryLimit",
            },
        ),
        ("metadata", metadata, {"name"}, {"labels", "annotations", "namespace", "generateName"}),
        ("pod", pod, {"containers", "volumes", "hostNetwork", "hostIPC", "runtimeClassName"}, _POD),
        (
            "container",
            container,
            {
                "name",
                "image",
                "command",
                "args",
                "env",
                "ports",
                "volumeMounts",
                "resources",
                "securityContext",
            },
            _CONTAINER,
        ),
    ):
        rest = {name: value for name, value in part.items() if name not in used}
        if key == "spec" and rest.get("replicas") == 1:
            del rest["replicas"]
        if rest:
            notes.keep(rest, known, key, notes.foreign.setdefault(key, {}))
    facts: dict[str, Any] = (
        {"title": name} if (name := optional(metadata.get("name"), "metadata.name")) else {}
    )
    if (
        facts
        and reading.container.get("name") is None
        and re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", name or "")
    ):
        reading.container["name"] = name
    return reading.launch(), facts


def _read_container(
    reading: Reading, pod: dict[str, Any], container: dict[str, Any], place: str
) -> None:
    notes = reading.notes
    reading.image = scalar(container.get("image"), f"{place}.containers.image")
    plain = _read_variables(reading, container)
    for item in sequence(container.get("ports"), "ports"):
        port = mapping(item, "ports")
        inside = scalar(port.get("containerPort"), "ports.containerPort")
        if port.get("hostPort") is not None and not pod.get("hostNetwork"):
            address = f"{scalar(port['hostIP'], 'hostIP')}:" if port.get("hostIP") else ""
            protocol = (
                f"/{scalar(port['protocol'], 'protocol').lower()}"
                if port.get("protocol") not in (None, "TCP")
                else ""
            )
            reading.container.setdefault("ports", []).append(
                f"{address}{scalar(port['hostPort'], 'hostPort')}:{inside}{protocol}"
            )
    resources = mapping(container.get("resources"), "resources")
    limits = mapping(resources.get("limits"), "resources.limits")
    gpus = limits.get(GPU, mapping(resources.get("requests"), "resources.requests").get(GPU))
    if gpus is not None:
        reading.container["gpus"] = scalar(gpus, f"resources.limits.{GPU}")
    rest = {f"limits.{key}": value for key, value in limits.items() if key != GPU}
    rest |= {
        f"requests.{key}": value
        for key, value in mapping(resources.get("requests"), "requests").items()
        if key != GPU
    }
    if rest:
        notes.keep(rest, set(rest), "resources", notes.foreign.setdefault("resources", {}))
    for key, name, value in (("hostNetwork", "network", "host"), ("hostIPC", "ipc", "host")):
        if pod.get(key) is True:
            reading.container[name] = value
    if pod.get("runtimeClassName") is not None:
        reading.container["runtime"] = scalar(pod["runtimeClassName"], "runtimeClassName")
    _read_security(reading, mapping(container.get("securityContext"), "securityContext"))
    _read_volumes(reading, pod, container)
    words = {
        key: [_filled(scalar(word, key), plain) for word in sequence(container.get(key), key)]
        for key in ("command", "args")
    }
    spelled = [*words["command"], *words["args"]]
    # A script that a shell in the container runs means the home folder there.
    homed = [
        word if before in ("-c", "-lc") else mark_home(word)
        for before, word in zip(["", *spelled], spelled, strict=False)
    ]
    line = Line()
    line.set_image(Word(reading.image))
    if words["command"]:
        line.set_entry(Word(homed.pop(0)))
    take_words(line, [Word(word) for word in homed])
    reading.take(line)
    if gpus is None:
        host_container(reading, "the cluster's device plugin, if at all,", gpus="all")


def _read_variables(reading: Reading, container: dict[str, Any]) -> dict[str, str]:
    """Take the container's variables, and return those with a value written out."""
    notes = reading.notes
    plain: dict[str, str] = {}
    for item in sequence(container.get("env"), "env"):
        entry = mapping(item, "env")
        name = scalar(entry.get("name"), "env.name")
        if entry.get("valueFrom") is not None:
            reading.env[name] = None
            if entry["valueFrom"] == {"secretKeyRef": {"name": _SECRET, "key": name}}:
                continue
            notes.foreign.setdefault("valueFrom", {})[name] = entry["valueFrom"]
            notes.add(
                "CONV203",
                f"The source of {name} is kept under foreign; the recipe passes the variable on.",
            )
        elif is_secret(name, text := scalar(entry.get("value") or "", f"env.{name}")):
            reading.env[name] = None
            notes.add(
                "CONV206",
                f"The value of {name} is a secret and was left out.",
                fix="Put it into a Secret.",
            )
        else:
            plain[name] = reading.env[name] = _filled(text, plain)
    return plain


def _filled(text: str, env: dict[str, str]) -> str:
    """Return `$(NAME)` filled in as Kubernetes does it; `$$(` stands for itself."""

    def value(match: re.Match[str]) -> str:
        return match[0][1:] if match[0].startswith("$$") else env.get(match[1], match[0])

    text = re.sub(r"\$\$\([^)]*\)|\$\(([^)]*)\)", value, text)
    if len(text) > 100_000:
        raise SparkbookError("a value grows beyond 100 kB when its variables are filled in")
    return text


def _read_security(reading: Reading, context: dict[str, Any]) -> None:
    user, group = context.pop("runAsUser", None), context.pop("runAsGroup", None)
    if user is not None:
        reading.container["user"] = scalar(user, "runAsUser") + (
            f":{scalar(group, 'runAsGroup')}" if group is not None else ""
        )
    elif group is not None:
        context["runAsGroup"] = group
    if context:
        reading.notes.keep(
            context,
            set(context),
            "securityContext",
            reading.notes.foreign.setdefault("securityContext", {}),
        )


def _read_volumes(reading: Reading, pod: dict[str, Any], container: dict[str, Any]) -> None:
    volumes = {}
    for item in sequence(pod.get("volumes"), "volumes"):
        volume = mapping(item, "volumes")
        volumes[scalar(volume.get("name"), "volumes.name")] = volume
    for item in sequence(container.get("volumeMounts"), "volumeMounts"):
        mount = mapping(item, "volumeMounts")
        path = scalar(mount.get("mountPath"), "mountPath")
        volume = volumes.get(scalar(mount.get("name"), "volumeMounts.name"), {})
        mode = ":ro" if mount.get("readOnly") is True else ""
        host = mapping(volume.get("hostPath"), "hostPath").get("path")
        claim = mapping(volume.get("persistentVolumeClaim"), "persistentVolumeClaim").get(
            "claimName"
        )
        memory = mapping(volume.get("emptyDir"), "emptyDir") if "emptyDir" in volume else {}
        if path == "/dev/shm" and memory.get("medium") == "Memory":
            if memory.get("sizeLimit") is not None:
                reading.container["shm_size"] = re.sub(
                    r"([KMGT])i$",
                    lambda match: match[1].lower(),
                    scalar(memory["sizeLimit"], "sizeLimit"),
                )
        elif host is not None or claim is not None:
            reading.container.setdefault("volumes", []).append(
                f"{scalar(host if host is not None else claim, 'volumes')}:{path}{mode}"
            )
        else:
            reading.notes.add(
                "CONV210",
                f"The volume at {path} was left out: it is neither a path of the host nor a claim.",
            )


def write(recipe: Recipe) -> str:
    """Return the Deployment.

    Raises:
        SparkbookError: the recipe has no image, or asks for something that no container takes.
    """
    launch, container = recipe.launch, recipe.launch.container
    foreign = dict(recipe.foreign.get("kubernetes") or {})
    image_of(launch, "Deployment")
    entry, groups = container_words(launch)
    words = [_escaped(word) for group in groups for word in group]
    sources = dict(foreign.get("valueFrom") or {})
    env = [
        (
            {"name": name, "value": _escaped(value)}
            if value is not None
            else {
                "name": name,
                "valueFrom": sources.get(name) or {"secretKeyRef": {"name": _SECRET, "key": name}},
            }
        )
        for name, value in launch.env.items()
    ]
    mounts, volumes = [], []
    for index, volume in enumerate(container.volumes):
        host, path, *mode = volume.split(":")
        if not host.startswith("/") and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", host):
            continue
        name = f"volume-{index}"
        mounts.append(
            {"name": name, "mountPath": path, **({"readOnly": True} if mode == ["ro"] else {})}
        )
        volumes.append(
            {
                "name": name,
                **(
                    {"hostPath": {"path": host}}
                    if host.startswith("/")
                    else {"persistentVolumeClaim": {"claimName": host}}
                ),
            }
        )
    if container.shm_size is not None:
        size = re.fullmatch(r"(\d+)([kmgt])(i?b)?", container.shm_size.lower())
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
        limit = f"{size[1]}{size[2].upper()}i" if size else container.shm_size
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    ports = [_port(port) for port in container.ports] or [{"containerPort": launch.port}]
    gpus = container.gpus or ""
    limits = (
        {GPU: 1 if gpus == "all" else int(gpus)}
        if re.fullmatch(r"all|\d{1,4}", gpus, re.ASCII)
        else {}
    )
    resources: dict[str, Any] = {"limits": dict(limits)} if limits else {}
    for place, value in dict(foreign.get("resources") or {}).items():
        kind, key = place.split(".", 1)
        resources.setdefault(kind, {})[key] = value
    security = dict(foreign.get("securityContext") or {})
    if match := re.fullmatch(r"(\d+)(?::(\d+))?", container.user or "", re.ASCII):
        security |= {
            "runAsUser": int(match[1]),
            **({"runAsGroup": int(match[2])} if match[2] else {}),
        }
    name = slug(container.name or recipe.slug).replace(".", "-")[:63].strip("-")
    served = {
        "name": name,
        "image": launch.image,
        "command": [entry] if entry else None,
        "args": words,
        "env": env,
        "ports": ports,
        "resources": resources,
        "securityContext": security,
        "volumeMounts": mounts,
        **dict(foreign.get("container") or {}),
    }
    pod = {
        "hostNetwork": True if container.network == "host" else None,
        "hostIPC": True if container.ipc == "host" else None,
        "runtimeClassName": container.runtime,
        "containers": [
            {key: value for key, value in served.items() if value not in (None, [], {})}
        ],
        "volumes": volumes,
        **dict(foreign.get("pod") or {}),
    }
    labels = {"app": name}
    data = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **dict(foreign.get("metadata") or {})},
        "spec": {
            "replicas": 1,
            **dict(foreign.get("spec") or {}),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {key: value for key, value in pod.items() if value not in (None, [])},
            },
        },
    }
    return "---\n".join(
        [dump(data), *(dump(document) for document in foreign.get("documents") or [])]
    )


def _port(port: str) -> dict[str, Any]:
    address, protocol = [*port.split("/"), "tcp"][:2]
    *ip, host, inside = address.rsplit(":", 2)
    entry: dict[str, Any] = {"containerPort": int(inside), "hostPort": int(host)}
    if ip:
        entry["hostIP"] = ip[0].strip("[]")
    return entry if protocol == "tcp" else {**entry, "protocol": protocol.upper()}


def _escaped(word: str) -> str:
    """Return a word whose `$(` Kubernetes leaves alone."""
    return (
        (word.replace(HOME, "~", 1) if word.startswith(HOME) else word)
        .replace(HOME, "$HOME")
        .replace("$(", "$$(")
    )
