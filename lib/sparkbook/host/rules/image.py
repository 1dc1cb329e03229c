"""The image, and what a container of it can do on the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.host.family import Unknown, check, spark_only, version
from sparkbook.host.machine import Machine
from sparkbook.host.rules.docker import needs_engine
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line

_NO_GPU = (
    "could not select device driver",
    "failed to discover GPU vendor",
    "unknown or invalid runtime name",
    "Unknown runtime specified",
)


@check("a container on the GPU", probe="smoke")
def container(machine: Machine) -> str:
    needs_engine(machine)
    if not machine.gpu.names:
        raise Unknown("no NVIDIA GPU answers")
    smoke = machine.smoke
    if smoke is None:
        raise Unknown("no container was started: give --run, with the image pulled")
    lines = smoke.output.strip().splitlines()
    if smoke.ok:
        return lines[-1] if lines else "it ran"
    return lines[-1][:300] if lines else "it wrote nothing"


@container.rule(
    "HOST035",
    "gpu-container-fails",
    "error",
    kind="nvidia-runtime",
    source="https://github.com/NVIDIA/xr-ai/blob/main/docs/source/guides/troubleshooting.md",
    fix=(
        "Run `sudo apt install nvidia-container-toolkit; sudo nvidia-ctk runtime configure"
        " --runtime=docker; sudo systemctl restart docker`."
    ),
    fails={
        "smoke": {
            "ok": False,
            "output": 'could not select device driver "" with capabilities: [[gpu]]',
        }
    },
)
def gpu_container_fails(machine: Machine) -> Iterator[Hit]:
    """A container was started on the GPU from the recipe's image, and it failed. Docker's own words
    say why.
    """
    smoke = machine.smoke
    if smoke is None or smoke.ok:
        return
    last = container.look(machine)
    if "exec format error" in smoke.output:
        yield Hit(
            "The image is of another architecture and cannot run here.",
            last,
            "Pull the arm64 image.",
            kind="arch-image",
        )
    elif any(text in smoke.output for text in _NO_GPU):
        yield Hit("Docker cannot give a container the GPU.", last)
    else:
        yield Hit(
            "A container on the GPU ends with an error.",
            last,
            "Look at `sudo dmesg | grep NVRM`; restart the machine if the driver is out of memory.",
            kind="cuda-init",
        )


@check("GPU code in the image", probe="smoke")
def code(machine: Machine) -> str:
    needs_engine(machine)
    spark_only(machine, "it matters for the GB10's instructions")
    smoke = machine.smoke
    if smoke is None or smoke.torch_cuda is None:
        raise Unknown("the image's torch was not asked: give --run, with the image pulled")
    return f"torch for CUDA {smoke.torch_cuda}: {', '.join(smoke.archs) or 'targets not reported'}"


@code.rule(
    "HOST036",
    "image-without-gb10-code",
    "error",
    kind="arch-no-kernel",
    source="https://github.com/vllm-project/vllm/issues/30855",
    fix="Take an image for CUDA 13 (cu130), or NVIDIA's.",
    fails={"smoke": {"torch_cuda": "12.8", "archs": ["sm_80", "sm_90"]}},
)
def image_without_gb10_code(machine: Machine) -> Iterator[Hit]:
    """Wheels and images for CUDA 12.8 hold no code for sm_12x: `no kernel image is available for
    execution on the device`.
    """
    smoke = machine.smoke
    if smoke is None:
        return
    old = (version(smoke.torch_cuda) or (99,)) < (13,)
    fits = any(arch.startswith(("sm_12", "compute_12")) for arch in smoke.archs)
    if old or (smoke.archs and not fits):
        yield Hit("The image's torch has no code for the GB10.", code.look(machine))


@check("ptxas in the image", probe="smoke")
def ptxas(machine: Machine) -> str:
    needs_engine(machine)
    spark_only(machine, "it matters for the GB10's instructions")
    smoke = machine.smoke
    if smoke is None or version(smoke.ptxas) is None:
        raise Unknown("the image was not looked into: give --run, with the image pulled")
    return smoke.ptxas or ""


@ptxas.rule(
    "HOST037",
    "ptxas-too-old",
    "error",
    kind="arch-ptxas",
    source="https://github.com/triton-lang/triton/issues/8539",
    fix=(
        "Set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas where that one is of CUDA 13, or take a"
        " newer image."
    ),
    fails={"smoke": {"ptxas": "12.8"}},
)
def ptxas_too_old(machine: Machine) -> Iterator[Hit]:
    """Triton brings its own ptxas along. One of CUDA 12.8 answers `Value 'sm_121a' is not defined
    for option 'gpu-name'`.
    """
    found = machine.smoke.ptxas if machine.smoke else None
    if (version(found) or (99,)) < (13,):
        yield Hit(
            f"The ptxas {found} in the image does not know the GB10: Triton's kernels fail.",
            f"ptxas {found}",
        )


@check("image", probe="image")
def image(machine: Machine) -> str:
    needs_engine(machine)
    if machine.wanted.image is None or machine.image is None:
        raise Unknown("no recipe with an image was named")
    if not machine.image.present:
        return "not here"
    digests = machine.image.digests
    digest = digests[0].split("@")[-1][:19] if digests else None
    return ", ".join(filter(None, [machine.image.architecture, digest]))


@image.rule(
    "HOST040",
    "image-not-pulled",
    "warning",
    kind="launcher-quoting",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/145-docker-run-implicit-pull-inside-launch-timeout.md",
    fails={"image": {"present": False, "architecture": None, "digests": [], "cuda": None}},
)
def image_not_pulled(machine: Machine) -> Iterator[Hit]:
    """`docker run` pulls a missing image first, 15 to 20 GB, without telling its caller. Launchers
    give up meanwhile, and the container appears later, with nobody waiting for it.
    """
    wanted = machine.wanted
    if machine.image and not machine.image.present and wanted.image:
        pinned = wanted.digest and "@" not in wanted.image
        name = f"{wanted.image}@{wanted.digest}" if pinned else wanted.image
        yield Hit(
            f"The image {wanted.image} is not on this host.",
            fix=f"Run `{command_line('docker', 'pull', name)}`.",
        )


@image.rule(
    "HOST041",
    "image-architecture",
    "error",
    kind="arch-image",
    source="https://github.com/mmartial/ComfyUI-Nvidia-Docker/issues/96",
    fix="Take the arm64 image, or a tag for several architectures.",
    fails={"image": {"architecture": "amd64"}},
)
def image_architecture(machine: Machine) -> Iterator[Hit]:
    """A Spark is an Arm machine. An image for amd64 ends with `exec format error`, again and again
    under a restart policy.
    """
    here = machine.docker.architecture or machine.system.architecture
    host = {"aarch64": "arm64", "x86_64": "amd64"}.get(here)
    found = machine.image.architecture if machine.image and machine.image.present else None
    if found and host and found != host:
        yield Hit(
            f"The image {machine.wanted.image} is for {found}, and this host is {host}.",
            f"docker image inspect: {image.look(machine)}",
        )


@image.rule(
    "HOST042",
    "image-not-the-pinned-one",
    "warning",
    kind="version-drift",
    source="https://docs.docker.com/reference/cli/docker/image/pull/",
    fix="Pull the image by its digest.",
    fails={
        "image": {
            "digests": [
                "vllm/vllm-openai@sha256:9999999999999999999999999999999999999999999999999999999999999999"
            ]
        }
    },
)
def image_not_the_pinned_one(machine: Machine) -> Iterator[Hit]:
    """Tags move. A recipe that pins a digest was judged, and perhaps measured, with that image and
    no other.
    """
    digest = machine.wanted.digest
    here = machine.image.digests if machine.image and machine.image.present else ()
    if digest and here and not any(one.endswith(digest) for one in here):
        yield Hit(
            f"The image {machine.wanted.image} on this host is not the one that the recipe pins.",
            f"here {here[0].split('@')[-1]}, pinned {digest}",
        )


@check("registry login", probe="registry")
def registry(machine: Machine) -> str:
    logins, image = machine.registry, machine.wanted.image
    if logins is None or image is None:
        raise Unknown("no recipe with an image was named")
    if not image.startswith("nvcr.io/"):
        return f"{image.split('/')[0]} needs none"
    if "nvcr.io" in logins.logins:
        return "logged in to nvcr.io"
    if machine.image is None:
        raise Unknown("no login to nvcr.io; whether the image is here is not known")
    if machine.image.present:
        return "no login, and the image is here"
    if logins.store:
        raise Unknown("logins are in a credential store, which is not asked")
    return "no login to nvcr.io"


@registry.rule(
    "HOST043",
    "no-registry-login",
    "warning",
    kind="registry-auth",
    source="https://github.com/NVIDIA/xr-ai/blob/main/docs/source/guides/troubleshooting.md",
    fix="Run `docker login nvcr.io -u '$oauthtoken' --password-stdin < ~/ngc-key`.",
    fails={
        "wanted": {"image": "nvcr.io/nvidia/vllm:26.04-py3", "digest": None},
        "image": {"present": False},
        "registry": {"logins": []},
    },
    passes={
        "wanted": {"image": "nvcr.io/nvidia/vllm:26.04-py3", "digest": None},
        "image": {"present": False},
    },
)
def no_registry_login(machine: Machine) -> Iterator[Hit]:
    """Some of NVIDIA's images are refused without a login: `unauthorized: authentication required`.
    The user's name is the word `$oauthtoken` itself, so it is in single quotes.
    """
    if registry.look(machine) == "no login to nvcr.io":
        yield Hit("There is no login to nvcr.io, and the image has yet to be pulled.")
