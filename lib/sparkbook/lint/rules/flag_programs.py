"""FLAG: options of other programs on the line of `vllm serve`."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook import releases
from sparkbook.lint.case import Case
from sparkbook.lint.rules.flag import FLAG, TABLE, unknown
from sparkbook.lint.rules.flag_names import FOREIGN
from sparkbook.rules import Hit


@FLAG.rule(
    "FLAG114",
    "option-of-another-program",
    "error",
    kind="launcher-quoting",
    source=TABLE,
    fails="docker run vllm/vllm-openai:v0.28.0 ORG/MODEL --gpus all",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def foreign_option(case: Case) -> Iterator[Hit]:
    """An option of docker, llama.cpp, SGLang or a launcher's script among the arguments of
    `vllm serve`, which refuses it.
    """
    for given in unknown(case):
        if given.name in FOREIGN and not releases.presence("options", given.name):
            yield Hit(
                f"--{given.name} is an option of {FOREIGN[given.name]}.",
                given.shown,
                "Move it, or take it out.",
            )


@FLAG.rule(
    "FLAG122",
    "another-program",
    "info",
    source="vLLM-Omni, https://github.com/vllm-project/vllm-omni",
    fails="vllm serve ORG/MODEL --omni --vae-use-tiling",
    passes="vllm serve ORG/MODEL",
)
def another_program(case: Case) -> Iterator[Hit]:
    """vLLM-Omni serves speech, images and video. It is a program of its own next to vLLM and has
    options that vLLM lacks, so the options of such a line are not judged.
    """
    if case.omni:
        shown = case.shown_image if case.image else "--omni"
        yield Hit("vLLM-Omni serves this line; options that vLLM lacks are not judged.", shown)


__all__ = ["FLAG"]
