"""The weights: the hub, the store, and room for them."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.host.family import Unknown, check
from sparkbook.host.machine import Machine
from sparkbook.rules import Hit
from sparkbook.units import GB
from sparkbook.util.shell_text import USER, command_line, mark_home

_DOCKER_ROOM_GB, _STORE_SPARE = 40, 1.1


def _staged(machine: Machine) -> bool:
    store = machine.store
    return store is not None and all(repo in store.revisions for repo in machine.wanted.repos)


def _token(machine: Machine) -> str:
    return f"token from {machine.hub.token}" if machine.hub and machine.hub.token else "no token"


def _offline_and_gated(machine: Machine) -> bool:
    """Return whether the hub was not asked, and a token is known to be missing all the same."""
    hub = machine.hub
    if hub is None or not hub.offline or hub.access or hub.token:
        return False
    return bool(machine.wanted.gated and not _staged(machine))


@check("Hugging Face", probe="hub")
def hub(machine: Machine) -> str:
    found, token = machine.hub, _token(machine)
    if found is None:
        raise Unknown("no recipe with weights to download was named")
    if found.offline and not found.access:
        if not _offline_and_gated(machine):
            raise Unknown(f"{token}, {found.offline}")
        return f"{token}, {found.offline}"
    access = ", ".join(f"{repo} {status}" for repo, status in found.access.items())
    return ", ".join(filter(None, [token, access]))


@hub.rule(
    "HOST045",
    "token-invalid",
    "error",
    kind="gated-download",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/vllm/README.md",
    fix=(
        "Make a new token at https://huggingface.co/settings/tokens, or unset HF_TOKEN for open"
        " repositories."
    ),
    fails={
        "hub": {"valid": False, "access": {"nvidia/Qwen3.6-35B-A3B-NVFP4": 401}},
        "store": {"revisions": None},
    },
)
def token_invalid(machine: Machine) -> Iterator[Hit]:
    """The hub answers 401 to the token itself: it is mistyped, expired or withdrawn. Even open
    repositories are refused with it.
    """
    if machine.hub and machine.hub.valid is False:
        yield Hit(
            "The hub does not know this token.",
            _token(machine),
            severity="warning" if _staged(machine) else None,
        )


def _answers(machine: Machine, *statuses: int) -> Iterator[tuple[str, int]]:
    """Yield the repositories that the hub answered one of these statuses for."""
    for repo, status in (machine.hub.access if machine.hub else {}).items():
        if status in statuses:
            yield repo, status


@hub.rule(
    "HOST044",
    "gated-without-token",
    "error",
    kind="gated-download",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/vllm/README.md",
    fix="Set HF_TOKEN from a file that only you can read; docker takes it with -e HF_TOKEN.",
    fails={
        "hub": {"token": None, "valid": None, "access": {"nvidia/Qwen3.6-35B-A3B-NVFP4": 401}},
        "store": {"revisions": None},
    },
)
def gated_without_token(machine: Machine) -> Iterator[Hit]:
    """401: the repository wants to know who asks, and no token reached the hub."""
    if _offline_and_gated(machine):
        repo = next(iter(machine.wanted.repos), "The model")
        yield Hit(f"{repo} is gated, and there is no token.", "no token")
    for repo, status in _answers(machine, 401):
        if machine.hub and not machine.hub.token:
            yield Hit(
                f"{repo} is gated, and there is no token.",
                f"HTTP {status}",
                severity="info" if _staged(machine) else None,
            )


@hub.rule(
    "HOST046",
    "license-not-accepted",
    "error",
    kind="gated-download",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/vllm/README.md",
    fails={"hub": {"access": {"nvidia/Qwen3.6-35B-A3B-NVFP4": 403}}, "store": {"revisions": None}},
)
def license_not_accepted(machine: Machine) -> Iterator[Hit]:
    """403: the token is good. Its account has not accepted the license on the model's page, or it
    is a fine-grained token without the right to gated repositories.
    """
    for repo, status in _answers(machine, 403):
        yield Hit(
            f"The token may not read {repo}: the license is not accepted, or the token lacks the"
            " right to gated repositories.",
            f"HTTP {status}",
            f"Open https://huggingface.co/{repo} with the token's account and accept the license.",
            "info" if _staged(machine) else None,
        )


@hub.rule(
    "HOST047",
    "repository-not-found",
    "error",
    source="https://huggingface.co/docs/hub/repositories-settings",
    fix=(
        "Compare the name with the model's page; a private repository needs the token of an"
        " account that may read it."
    ),
    fails={"hub": {"access": {"nvidia/Qwen3.6-35B-A3B-NVFP4": 404}}, "store": {"revisions": None}},
)
def repository_not_found(machine: Machine) -> Iterator[Hit]:
    """The hub answers 404, or 401 to a good token, which is how it hides private repositories."""
    for repo, status in _answers(machine, 401, 404):
        without_token = status == 401 and not (machine.hub and machine.hub.token)
        if not without_token and machine.hub and machine.hub.valid is not False:
            yield Hit(
                f"The hub has no repository {repo} that this account may see.",
                f"HTTP {status}",
                severity="info" if _staged(machine) else None,
            )


@check("model store", probe="store")
def store(machine: Machine) -> str:
    if machine.store is None:
        raise Unknown("it was not looked at")
    return machine.store.path if machine.store.exists else f"{machine.store.path} does not exist"


@store.rule(
    "HOST050",
    "no-model-store",
    "warning",
    kind="cache-permission",
    source="https://docs.docker.com/engine/storage/bind-mounts/",
    fails={"store": {"exists": False, "writable": None, "revisions": None}},
)
def no_model_store(machine: Machine) -> Iterator[Hit]:
    """`docker run -v` makes a missing folder, and it then belongs to root: your own downloads are
    refused.
    """
    if machine.store and not machine.store.exists:
        path = machine.store.path
        yield Hit(
            f"{path} does not exist: Docker would create it as root.",
            fix=f"Run `{command_line('mkdir', '-p', mark_home(path))}`.",
            severity=None if machine.is_spark else "info",
        )


def _own(path: str) -> str:
    return f"Run `{command_line('sudo', 'chown', '-R', USER, mark_home(path))}`."


@store.rule(
    "HOST051",
    "store-not-writable",
    "error",
    kind="cache-permission",
    source="https://github.com/av/harbor/issues/262",
    fails={"store": {"writable": False}},
)
def store_not_writable(machine: Machine) -> Iterator[Hit]:
    """`[Errno 13] Permission denied`: the folder belongs to root or to somebody else, or HF_HOME
    names the wrong one. A container with `--user` needs HOME, HF_HOME and every cache folder to be
    ones that this user may write to.
    """
    found = machine.store
    if found and found.exists and found.writable is False:
        yield Hit(
            f"The user {machine.system.user} may not write to {found.path}.",
            "[Errno 13] Permission denied",
            _own(found.path),
        )


@store.rule(
    "HOST052",
    "store-foreign-files",
    "warning",
    kind="cache-permission",
    source="https://github.com/av/harbor/issues/262",
    fails={"store": {"foreign": 42, "example": "~/vllm/hub/models--a--b/refs/main"}},
)
def store_foreign_files(machine: Machine) -> Iterator[Hit]:
    """What a container downloads as root belongs to root. It can be read, but not be resumed,
    verified or removed by you.
    """
    found = machine.store
    if found and found.exists and found.foreign:
        yield Hit(
            f"{found.foreign} files in {found.path} belong to another user, as after a download"
            " by a container.",
            found.example,
            _own(found.path),
        )


@store.rule(
    "HOST056",
    "downloads-unfinished",
    "info",
    source="https://huggingface.co/docs/huggingface_hub/guides/manage-cache",
    fix=(
        "Run `sparkbook weights fetch` to resume them, or `sparkbook weights prune` to remove them."
    ),
    fails={"store": {"unfinished": 3}},
)
def downloads_unfinished(machine: Machine) -> Iterator[Hit]:
    """The cache holds beginnings of files (`.incomplete`). The next download goes on from there."""
    found = machine.store
    if found and found.exists and found.unfinished:
        yield Hit(
            f"{found.unfinished} downloads in {found.path} are not finished; the next fetch"
            " resumes them."
        )


@check("weights", probe="store")
def weights(machine: Machine) -> str:
    found, repos = machine.store, machine.wanted.repos
    if found is None or not repos:
        raise Unknown("no recipe with weights was named")
    if found.broken:
        return f"{len(found.broken)} broken files"
    missing = [repo for repo in repos if repo not in found.revisions]
    if missing:
        return f"not staged: {', '.join(missing)}"
    return ", ".join(f"{repo} at {commit[:8]}" for repo, commit in found.revisions.items())


@weights.rule(
    "HOST055",
    "weights-damaged",
    "error",
    kind="download-corrupt",
    source="https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
    fails={"store": {"broken": ["model-00007-of-00029.safetensors"]}},
)
def weights_damaged(machine: Machine) -> Iterator[Hit]:
    """An interrupted download can leave a shard that is complete by its size and is not:
    `incomplete metadata, file not fully covered`. The header of a safetensors file says where its
    contents end; hashes say the rest.
    """
    broken = machine.store.broken if machine.store else ()
    if broken:
        yield Hit(
            f"{broken[0]} is damaged: its size contradicts its own header, or its hash is wrong.",
            ", ".join(broken[:3]),
            f"Run `{command_line('sparkbook', 'weights', 'verify', machine.wanted.recipe)}`; remove"
            " the files that it names and fetch again.",
        )


@weights.rule(
    "HOST057",
    "weights-not-staged",
    "info",
    source="https://huggingface.co/docs/huggingface_hub/guides/download",
    fails={"store": {"revisions": None}},
)
def weights_not_staged(machine: Machine) -> Iterator[Hit]:
    """A server downloads what it does not find, as root and inside its start. Staging beforehand
    can be resumed and is checked.
    """
    found = machine.store
    if found is None or found.broken:
        return
    missing = [repo for repo in machine.wanted.repos if repo not in found.revisions]
    if missing:
        yield Hit(
            f"{missing[0]} is not in the store: the first start would download it.",
            fix=f"Run `{command_line('sparkbook', 'weights', 'fetch', machine.wanted.recipe)}`.",
        )


@check("disk", probe="store")
def disk(machine: Machine) -> str:
    found = machine.store
    if found is None or found.free_bytes is None:
        raise Unknown("the free space is not known")
    images = ""
    if found.docker_free_bytes is not None:
        images = f", {found.docker_free_bytes / GB:.0f} GB for images"
    return f"{found.free_bytes / GB:.0f} GB free for the store{images}"


@disk.rule(
    "HOST053",
    "no-room-for-weights",
    "error",
    source="https://huggingface.co/docs/huggingface_hub/guides/manage-cache",
    fix="Run `sparkbook weights prune`, or use another disk with HF_HOME.",
    fails={"store": {"free_bytes": 2000000000, "staged_gb": 0, "docker_free_bytes": None}},
)
def no_room_for_weights(machine: Machine) -> Iterator[Hit]:
    """What of the recipe's weights is not there yet, and a tenth to spare, does not fit on the
    disk. A full disk ends a download in the middle.
    """
    found = machine.store
    if found is None or found.free_bytes is None:
        return
    missing = max((machine.wanted.weights_gb or 0) - found.staged_gb, 0) * _STORE_SPARE * GB
    if missing > found.free_bytes:
        room = f"{missing / GB:.0f} GB needed, {found.free_bytes / GB:.0f} GB free"
        yield Hit(f"The disk has no room for the weights: {room}.", room)


@disk.rule(
    "HOST054",
    "no-room-for-images",
    "warning",
    source="https://github.com/vllm-project/vllm/pull/40991",
    fix="Look at `docker system df`, and run `docker image prune`.",
    fails={"store": {"docker_free_bytes": 2000000000}},
)
def no_room_for_images(machine: Machine) -> Iterator[Hit]:
    """One image takes about 18.5 GB, and twice that while it is unpacked. Docker says `no space
    left on device` in the middle of a pull.
    """
    free = machine.store.docker_free_bytes if machine.store else None
    absent = machine.image is not None and not machine.image.present
    if free is not None and free < (_DOCKER_ROOM_GB if absent else 5) * GB:
        yield Hit(
            f"The disk has no room for an image: {free / GB:.0f} GB are free.",
            f"{free / GB:.0f} GB free at {machine.docker.root or 'the Docker root'}",
            severity="error" if absent else "warning",
        )
