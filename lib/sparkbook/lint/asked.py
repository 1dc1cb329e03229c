"""The linter's findings together with what vLLM itself said of the line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkbook.findings import Finding
from sparkbook.lint.rules import RULES
from sparkbook.releases import normal
from sparkbook.releases.answers import Answer, Judge, Raised
from sparkbook.rules import Family, Hit

_SOURCE = "vLLM itself, asked with `sparkbook ask`"


def _example(**said: object) -> Answer:
    return Answer.model_validate({"judge": Judge(vllm="0.32.0", machine="NVIDIA GB10"), **said})


ASK = Family(
    "ASK",
    "what vLLM says",
    "What vLLM's own code says of a launch line, where it was asked (`sparkbook lint --ask`).",
    describe=lambda answer: answer.model_dump_json(exclude_defaults=True, indent=2),
)


@ASK.rule(
    "ASK101",
    "vllm-refuses",
    "error",
    source=_SOURCE,
    fails=_example(refused="invalid tool call parser: qwen4_coder", by=Raised(error="KeyError")),
    passes=_example(accepted=True, depth="config"),
)
def refuses(said: Answer) -> Iterator[Hit]:
    """vLLM's parser, its configuration or its start check refuses the line. The message is vLLM's
    own; the release that was asked is named.
    """
    if said.refused is not None:
        where = f" ({said.by.error} in {said.by.place})" if said.by and said.by.place else ""
        yield Hit(
            f"{said.judge} refuses this line: {_ended(said.refused)}",
            f"as far as: {said.depth}{where}",
        )


@ASK.rule(
    "ASK102",
    "vllm-takes-another-value",
    "warning",
    source=_SOURCE,
    fails=_example(
        accepted=True, depth="config", resolved={"quantization": ["awq", "modelopt_mixed"]}
    ),
    passes=_example(accepted=True, depth="config", resolved={"quantization": [None, "modelopt"]}),
)
def changes(said: Answer) -> Iterator[Hit]:
    """vLLM accepts the line and gives an option another value than the line asks for, often without
    a word in the log.
    """
    for name, (asked, got) in said.changed.items():
        option = f"--{name.replace('_', '-')}"
        yield Hit(
            f"{said.judge} runs with {option} {got}, and the line asks for {asked}.",
            f"{option} {asked}",
            f"Remove {option}, or set it to {got}.",
        )


@ASK.rule(
    "ASK103",
    "vllm-gave-no-answer",
    "warning",
    source=_SOURCE,
    fails=_example(failed="it crashed: SIGSEGV", last_words=["Segmentation fault"]),
    passes=_example(accepted=True, depth="config"),
)
def no_answer(said: Answer) -> Iterator[Hit]:
    """vLLM was asked and gave no answer: its code crashed, hung, or could not be imported. Nothing
    follows from that for the line; `sparkbook ask` shows the end of its log.
    """
    if said.failed is not None:
        yield Hit(
            f"{said.judge} gave no answer: {_ended(said.failed)}",
            said.last_words[-1] if said.last_words else None,
            "Ask another release with `sparkbook ask INPUT --release V`.",
        )


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


@dataclass(frozen=True)
class Contradicted:
    """A finding that vLLM contradicts, and is therefore dropped."""

    finding: Finding
    said: Answer

    def __str__(self) -> str:
        return (
            f"dropped {self.finding.rule}, as {self.said.judge} accepts the line:"
            f" {self.finding.message}"
        )


def combine(
    found: list[Finding], said: Answer, release: str
) -> tuple[list[Finding], list[Contradicted]]:
    """Return the findings with what vLLM said, and those that it contradicts.

    A finding is contradicted if its rule claims that vLLM refuses the line, and the release that
    the line was judged against accepts it.
    """
    kept: list[Finding] = []
    dropped: list[Contradicted] = []
    same = said.judge.image is not None or normal(said.judge.vllm) == release
    for finding in found:
        rule = RULES.get(finding.rule)
        claims = rule is not None and rule.claims == "refused" and finding.severity == "error"
        if claims and same and said.reached("config"):
            dropped.append(Contradicted(finding, said))
        else:
            kept.append(finding)
    return [*ASK.judge(said), *kept], dropped
