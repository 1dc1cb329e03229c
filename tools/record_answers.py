"""Ask vLLM itself about the catalogue's recipes, and keep its answers.

    .venv/bin/python tools/record_answers.py [RECIPE ...]

Each recipe is asked about with the release of its image, or where the image is a nightly or a fork
with the newest release here that it can hold. The answers go to
`lib/sparkbook/releases/answers.json`, and from there to the recipes' pages; where there is none,
the reason does.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

from sparkbook import oracle, recipes, releases
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.oracle import asking, engines
from sparkbook.oracle.asking import Question, Where
from sparkbook.releases import answers
from sparkbook.releases.answers import Answer


def shown(answer: Answer) -> dict[str, Any]:
    """The part of an answer that a page shows."""
    cache = answer.cache and answer.cache.model_copy(update={"layers": [], "least": None})
    resolved = {name: list(pair) for name, pair in answer.changed.items()}
    part = {"resolved": resolved, "choices": [], "warnings": answer.warnings[:5], "cache": cache}
    return answer.model_copy(update=part).model_dump(mode="json", exclude_defaults=True)


def main() -> None:
    """Ask, release by release, and write."""
    kept = answers.recorded_all()
    wanted = sys.argv[1:] or [recipe.id for recipe in recipes.all()]
    groups: dict[tuple[str, str], list[Question]] = defaultdict(list)
    notes: dict[str, str | None] = {}
    for name in wanted:
        recipe = recipes.load(name)
        case = Case(of_launch(recipe.launch, recipe))
        try:
            where, notes[name] = asking.choose(case, None, None)
            question = asking.of_case(case, name=name, depth="cache")
        except SparkbookError as error:
            kept[name] = {"reason": str(error)}
            continue
        assert where.engine is not None
        holds = asking.installed(case, releases.normal(where.engine.version))
        groups[where.engine.version, json.dumps(holds)].append(question)
    for (version, holds), questions in groups.items():
        where = Where(engine=engines.find(version))
        for question, answer in zip(
            questions, oracle.ask(questions, where, holds=json.loads(holds)), strict=True
        ):
            said = answer.refused or answer.failed or "accepted"
            print(f"{question.id}: {answer.judge}: {said[:300]}", flush=True)
            kept[question.id] = {
                **({"note": notes[question.id]} if notes[question.id] else {}),
                "words": list(question.words),
                "answer": shown(answer),
            }
            if answer.failed is not None:
                kept[question.id] = {"reason": f"{answer.judge} gave no answer: {answer.failed}"}
    lines = (f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
    answers.RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    count = sum("answer" in entry for entry in kept.values())
    print(f"{count} of {len(kept)} recipes answered")


if __name__ == "__main__":
    main()
