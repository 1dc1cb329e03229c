"""Ask vLLM itself what it builds of each checkpoint whose configuration is known, and keep it.

    .venv/bin/python tools/record_caches.py [HANDLE ...]

The embedded engine's vLLM builds each model of `lib/sparkbook/checkpoint/configs.json` on a
pretended Spark: bytes of its weights by class and type, and the groups and blocks of its KV cache,
by type of cache, with and without its own prediction layers. They go to
`lib/sparkbook/checkpoint/built.json`, which the planner takes before its own arithmetic.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import date
from typing import Any

from sparkbook import oracle
from sparkbook.checkpoint import built, configs, known
from sparkbook.oracle import engines, model_files
from sparkbook.oracle.asking import Question, Where
from sparkbook.releases.answers import Answer

KV = 2**40
"""Bytes of cache to ask about: enough for one sequence of the longest context."""

_AT_ONCE = 20


def questions(names: list[str]) -> list[Question]:
    """A question for each checkpoint, type of cache, and number of drafted tokens."""
    found = []
    for name in names:
        files = model_files.find(name)
        assert files is not None
        for kv, drafted in built.VARIANTS:
            if drafted and not known.mtp(name):
                continue
            spec = json.dumps({"method": "mtp", "num_speculative_tokens": drafted})
            words = (name, "--kv-cache-dtype", kv)
            words += ("--speculative-config", spec) if drafted else ()
            question = Question(
                id=f"{name} {kv} {drafted}", words=words, depth="cache", kv_bytes=(KV,),
                models={name: files},
            )  # fmt: skip
            found.append(question)
    return found


def entry(answers: dict[str, Answer]) -> dict[str, Any] | None:
    """What is kept of a checkpoint, from the answers by variant; None: vLLM builds nothing."""
    kept: dict[str, Any] = {}
    for variant, answer in answers.items():
        cache = answer.cache
        if not answer.accepted or cache is None or not cache.sizes or not cache.sizes[0].tokens:
            continue
        if "weights" not in kept and variant.endswith(" 0"):
            kept["weights"] = [[p.kind, p.dtype, p.bytes] for p in answer.weights]
        if variant.endswith(" 1"):
            kept["draft"] = answer.draft_bytes
        groups = Counter((g.spec, g.layers, g.block_size, g.window, g.blocks) for g in cache.groups)
        size, batched = cache.sizes[0], answer.resolved["max_num_batched_tokens"][1]
        kept.setdefault("pages", {})[variant] = [
            cache.block_bytes, [[*group, count] for group, count in groups.items()],
            [size.context, batched, size.tokens],
        ]  # fmt: skip
    return kept if "weights" in kept else None


def main() -> None:
    """Ask and write."""
    names = sys.argv[1:] or [*configs.names(), *configs.stated_names()]
    asking = questions(names)
    found: dict[str, dict[str, Answer]] = {name: {} for name in names}
    where = Where(engine=engines.embedded())
    for start in range(0, len(asking), _AT_ONCE):
        for answer in oracle.ask(asking[start : start + _AT_ONCE], where):
            name, _, variant = str(answer.id).partition(" ")
            found[name][variant] = answer
            if not answer.accepted:
                print(f"{answer.id}: {(answer.refused or answer.failed or '')[:200]}", flush=True)
    kept = json.loads(built.FILE.read_text("utf-8"))["entries"] if built.FILE.is_file() else {}
    for name in names:
        kept.pop(name, None)
        if (made := entry(found[name])) is not None:
            kept[name] = made
    source = {"vllm": engines.embedded().version, "date": date.today().isoformat()}
    lines = (
        f"{json.dumps(name)}: {json.dumps(kept[name], separators=(',', ':'))}"
        for name in sorted(kept)
    )
    text = f'{{"source": {json.dumps(source)},\n"entries": {{\n' + ",\n".join(lines) + "\n}}\n"
    built.FILE.write_text(text, "utf-8")
    print(f"{len(kept)} checkpoints, {built.FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
