"""What the guide that this book starts from gets wrong (https://vlaicu.io/posts/dgx-vllm/, June
2026), and the rules that find it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkbook import lint
from sparkbook.findings import Finding

RELEASE = "0.32.0"
_RUN = "docker run --gpus all --ipc=host -p 127.0.0.1:8000:8000 -v ~/vllm:/models "


@dataclass(frozen=True)
class Defect:
    """One defect.

    Attributes:
        name: what the guide does or teaches.
        rule: code of the rule that finds it.
        line: a small line that has it, and nothing else of the guide's.
        recipe: the catalogue's recipe whose published line has it; None where it stands in the
            guide's text.
    """

    name: str
    rule: str
    line: str
    recipe: str | None = None

    @property
    def finding(self) -> Finding:
        """What the rule says of the line, judged as vLLM 0.32.0."""
        return next(
            finding
            for finding in lint.lint(self.line, release=RELEASE).findings
            if finding.rule == self.rule
        )


def _variable(name: str, recipe: str | None = None) -> Defect:
    return Defect(
        f"the variable {name}", "ENV102", f"{_RUN}-e {name}=1 vllm/vllm-openai:v{RELEASE} M", recipe
    )


DEFECTS = (
    Defect(
        "vllm serve behind the vllm-openai image",
        "IMG104",
        f"{_RUN}vllm/vllm-openai:v{RELEASE} vllm serve M",
        "qwen3.6-27b-nvfp4",
    ),
    Defect(
        "vllm --version behind the vllm-openai image",
        "IMG104",
        f"docker run --rm vllm/vllm-openai:v{RELEASE} vllm --version",
    ),
    Defect(
        "unless-stopped before one good start",
        "RUN103",
        f"{_RUN}--restart unless-stopped vllm/vllm-openai:v{RELEASE} M",
        "gpt-oss-120b",
    ),
    Defect(
        "a switch that no release since 0.10 has",
        "FLAG102",
        "vllm serve M --speculative-disable-by-batch-size 32",
    ),
    Defect(
        "the same as a key of the JSON",
        "SPEC102",
        """vllm serve M --speculative-config '{"method":"mtp","num_speculative_tokens":2,"disable_by_batch_size":32}'""",
    ),
    Defect(
        "chunked prefill is off if it is not asked for",
        "FLAG110",
        "vllm serve M --enable-chunked-prefill",
    ),
    Defect(
        "a tag that moves: nightly",
        "IMG101",
        f"{_RUN}vllm/vllm-openai:nightly M",
        "qwen3.6-35b-a3b-nvfp4",
    ),
    Defect("a tag that moves: cu130-nightly", "IMG101", f"{_RUN}vllm/vllm-openai:cu130-nightly M"),
    Defect(
        "a tag that moves: gemma4-cu130",
        "IMG101",
        f"{_RUN}vllm/vllm-openai:gemma4-cu130 M",
        "gemma-4-31b-it-nvfp4",
    ),
    _variable("VLLM_USE_FLASHINFER_MOE_FP4", "qwen3.6-35b-a3b-nvfp4"),
    _variable("VLLM_FP8_MOE_BACKEND", "qwen3.6-35b-a3b-nvfp4"),
    _variable("VLLM_FLASHINFER_MOE_BACKEND"),
    _variable("VLLM_NVFP4_GEMM_BACKEND"),
    _variable("VLLM_TEST_FORCE_FP8_MARLIN"),
)
"""Every defect of the guide that a rule can find."""
