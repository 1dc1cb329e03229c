"""Ask vLLM itself about the examples of the linter's rules, in every release that is here.

    .venv/bin/python tools/prove_rules.py [--releases 0.24.0,0.32.0] [--rules FLAG,SPEC103]

Each release is one process that answers all examples, up to the engine's configuration. The
verdicts go to `lib/sparkbook/lint/proofs.json`; what contradicts a rule is printed, and the exit
status is 1. `sparkbook engines add V` fetches a release.

No verdict: no answer; an error that another package of this environment raises (see
`sparkbook.lint.proofs`); a stand-in that is younger than the release.

A name that stands for any model, such as ORG/MODEL, is asked about with a public checkpoint's
config; a checkpoint that the table lacks, with that of its nearest relative.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sparkbook import oracle, releases
from sparkbook.checkpoint import configs
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import given
from sparkbook.lint import proofs, samples
from sparkbook.lint.case import Case
from sparkbook.lint.family import LintRule
from sparkbook.lint.rules import RULES
from sparkbook.oracle import asking, engines, model_files
from sparkbook.oracle.asking import Question, Where
from sparkbook.releases.answers import Answer

PLAIN, DRAFTS = "meta-llama/Meta-Llama-3.1-8B", "deepseek-ai/DeepSeek-R1"
"""What stands for any model, and for one with prediction layers: both are known to all releases."""

RELATIVES = {
    "ORG/MODEL-NVFP4": "nvidia/Qwen3-235B-A22B-NVFP4",
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": "nvidia/Qwen3-235B-A22B-NVFP4",
    "nvidia/Nemotron-3.5-Lightning-30B-A3B-NVFP4": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
    "Qwen/Qwen3.6-27B": "Qwen/Qwen3.5-27B",
    "google/gemma-4-31B-it": "google/gemma-4-26B-A4B",
}
DRAFTS_ONLY = {
    "my-lab/draft", "z-lab/Qwen3.5-27B-DFlash", "google/gemma-4-31B-it-assistant",
    "RedHatAI/gemma-4-31B-it-speculator.dflash", "poolside/Laguna-XS.2-speculator.dflash",
}  # fmt: skip
"""Drafts of which no config is known: lines with them are not asked about."""

COMPRESSED = {"RedHatAI/Qwen3-8B-NVFP4", "ORG/GLM-4.7-Flash-AWQ-4bit"}
"""Asked about with the plain model's config and the least that makes it compressed-tensors."""


@dataclass(frozen=True)
class Example:
    """One example of a rule."""

    rule: LintRule
    which: str
    case: Case
    question: Question

    @property
    def id(self) -> str:
        """The question's id."""
        return f"{self.rule.code} {self.which}"


def stand_in(case: Case) -> asking.Finder:
    """From a name to the files of that model, or of what stands for it; drafts have none."""

    def find(model: str, revision: str | None) -> model_files.ModelFiles | None:
        if (facts := configs.find(RELATIVES.get(model, ""))) and facts.quantization:
            # As ModelOpt wrote it before 0.31: what is quantized is in the second file alone.
            kept = {"config.json": facts.config, "hf_quant_config.json": facts.quantization}
            return model_files.ModelFiles(kept, "a stand-in")
        known = model_files.find(RELATIVES.get(model, model), revision)
        if known is not None or model in DRAFTS_ONLY:
            return known
        if model == "ORG/DRAFT":  # what published DFlash drafts call themselves
            draft = {**configs.find("Qwen/Qwen3-8B").config, "architectures": ["DFlashDraftModel"]}
            return model_files.ModelFiles({"config.json": draft}, "a stand-in")
        if case.recipe is not None:  # a recipe of ours for a Spark
            return model_files.find("nvidia/Qwen3.6-27B-NVFP4", None)
        config = dict(configs.find(DRAFTS if case.mtp else PLAIN).config)
        if model in COMPRESSED:
            config["quantization_config"] = {
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
                    "group_size": 128}}},
                "ignore": ["lm_head"],
            }  # fmt: skip
        return model_files.ModelFiles({"config.json": config}, "a stand-in")

    return find


def examples(wanted: Iterable[LintRule]) -> list[Example]:
    """Every example that a question can be made of."""
    found = []
    for rule in wanted:
        for which in ("fails", "passes"):
            example = rule.example(which)
            try:
                line, _ = given(samples.source(example))
                case = Case(line)
                if case.omni:
                    raise SparkbookError("vLLM-Omni serves it, another program")
                find = stand_in(case)
                question = asking.of_case(
                    case,
                    name=f"{rule.code} {which}",
                    find=find,
                    depth="config" if case.args.model else "parse",
                )
            except SparkbookError as error:
                print(f"{rule.code} {which}: not asked: {error}", file=sys.stderr)
                continue
            found.append(Example(rule, which, case, question))
    return found


def ask(found: list[Example], version: str) -> dict[str, Answer]:
    """What one release says of all examples; equal questions are asked once."""
    engine = engines.find(version)
    unique: dict[str, Question] = {}
    for example in found:
        key = _key(example.question)
        unique.setdefault(key, replace(example.question, id=key))
    answers = oracle.ask(list(unique.values()), Where(engine=engine))
    by_key = {answer.id: answer for answer in answers}
    return {example.id: by_key[_key(example.question)] for example in found}


def _key(question: Question) -> str:
    return json.dumps([question.words, sorted(question.env.items())])


def main() -> int:
    """Ask, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", help="with commas [default: all that are here]")
    parser.add_argument("--rules", help="codes, or the letters of families, with commas")
    parser.add_argument("--compare", action="store_true", help="ask nothing; compare what is there")
    given_ = parser.parse_args()
    families = tuple((given_.rules or ",".join(proofs.FAMILIES)).split(","))
    wanted = [rule for rule in RULES.values() if rule.code.startswith(families)]
    found = examples(wanted)
    here = [releases.normal(engine.version) for engine in engines.available()]
    asked = given_.releases.split(",") if given_.releases else here
    table = proofs.load()
    for version in [] if given_.compare else asked:
        start = time.monotonic()
        for key, answer in ask(found, version).items():
            table.add(key, version, answer)
        table.save()
        print(f"{version}: {len(found)} examples in {time.monotonic() - start:.0f} s", flush=True)
    wrong = list(proofs.contradictions(table))
    print("\n".join(wrong))
    print(f"{len(proofs.proved(table))} rules proved, {len(wrong)} contradictions")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
