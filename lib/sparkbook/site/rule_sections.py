"""The section of each rule in the book: its text, the two examples, and what is found in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sparkbook import lint, lock, weights
from sparkbook.bench import examples, gate
from sparkbook.logs.signatures import Signature
from sparkbook.rules import section_page
from sparkbook.util.markup import capital, without_fields

_ROLES = {
    "cause": "A fault.",
    "consequence": "A consequence of another fault: `diagnose` lists it and looks for the cause.",
    "state": "A message of a running engine about itself.",
    "noise": "Looks bad, but is harmless.",
}

_LOCK_EXAMPLES: dict[str, tuple[str, Any, Any]] = {
    "image": ("digest", "sha256:4c1e4c1e4c1e", "sha256:a07ba07ba07b"),
    "models": ("openai/gpt-oss-20b.revision", "4c1e4c1e4c1e", "a07ba07ba07b"),
    "launch": ("serve.args.max-num-seqs", 4, 8),
    "engine": ("vllm", "0.28.0", "0.32.0"),
    "host": ("driver", "580.95.05", "590.44.01"),
    "recipe": ("sha256", "4c1e4c1e4c1e", "a07ba07ba07b"),
    "plan": ("fits", True, False),
    "bench": ("sha256", "4c1e4c1e4c1e", "a07ba07ba07b"),
}
"""For each section of a lock: the path of a value in it, as it was and as it is now."""


def lint_rule(rule: lint.Rule) -> str:
    """The page of one rule: what it catches and why, a failing and a passing example, its releases
    and its source.
    """
    span = (
        f"{rule.since or 'the first known'} to {rule.until or 'the newest known'}"
        if rule.since or rule.until
        else "of every known release"
    )
    examples = []
    for title, shown in (("Fails", rule.bad), ("Passes", rule.good)):
        report = lint.lint(lint.example(shown), release=rule.release)
        if shown.startswith("EXAMPLE:"):
            fence = f"```yaml\n{Path(lint.example(shown)).read_text('utf-8').strip()}\n```"
        else:
            fence = (
                f"```bash\n{shown.strip()}\n```"
                if re.search(r"\s", shown)
                else f"The recipe `{shown}`."
            )
        examples.append((title, fence, report.findings))
    about = (lint.FAMILIES[rule.family], rule.severity, f"vLLM {span}")
    return section_page(rule.code, rule.name, about, rule.text, examples, rule.source, rule.kind)


def signature(one: Signature) -> str:
    """The page of one signature, in Markdown."""
    releases = (
        f"{one.since or 'all'} to {one.until or 'now'}" if one.since or one.until else "all known"
    )
    collect = "".join(f"\n- {item}" for item in one.collect)
    patterns = "\n".join(f"/{pattern}/" for pattern in one.pattern)
    extra = "".join(f"\nand: /{pattern}/" for pattern in one.also) + "".join(
        f"\nnot: /{pattern}/" for pattern in one.unless
    )
    fields = [
        ("kind", f"`{one.kind}`" if one.kind else "none: the cause is another fault"),
        ("severity", one.severity),
        ("what it is", _ROLES[one.role]),
        ("releases", releases),
        ("confidence", one.confidence),
        (
            "source",
            f"<{one.source}>" if one.source.startswith("http") else one.source,
        ),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in fields)
    return f"""# {one.id}: {without_fields(one.title)}

**Cause.** {capital(without_fields(one.cause))}

**What to do.** {capital(without_fields(one.fix))}
{f"{chr(10)}**Collect next.**{chr(10)}{collect}{chr(10)}" if collect else ""}
| what | value |
|---|---|
{table}

Found in:

```text
{one.example.replace(chr(13), chr(10))}
```

Not found in:

```text
{one.passing.replace(chr(13), chr(10))}
```

:::{{dropdown}} The pattern
```text
{patterns}{extra}
```
:::
"""


def bench_rule(rule: gate.Rule) -> str:
    """The section of one rule, in Markdown: text, the reason of its threshold, the two examples and
    what the gate says of them now.
    """
    shown, severities = [], []
    for title, example in zip(("Fails", "Passes"), examples.CASES[rule.code], strict=True):
        found = examples.findings(example)
        severities += [f.severity for f in found if f.rule == rule.code]
        shown_findings = [
            f.model_copy(
                update={"message": f"{f.message} ({f.evidence})" if f.evidence else f.message}
            )
            for f in found
        ]
        shown.append((title, f"```text\n{examples.show(example)}\n```", shown_findings))
    text = rule.text.strip() + (f"\n\n**Threshold:** {rule.reason.strip()}" if rule.reason else "")
    return section_page(
        rule.code, rule.name, ("Measurements", *dict.fromkeys(severities)), text, shown, rule.source
    )


def hub_rule(rule: weights.Rule) -> str:
    """A rule's section of the book, in Markdown."""
    text = f"{rule.text}\n\n**What to do:** {rule.fix.rstrip('.')}."
    examples = [
        (title, f"{capital(made)}.", ())
        for title, made in (("Fails", rule.bad), ("Passes", rule.good))
    ]
    return section_page(
        rule.code,
        rule.name,
        ("Weights", rule.severity),
        text,
        examples,
        rule.source or weights.SOURCE,
        rule.kind,
    )


def lock_rule(rule: lock.Rule) -> str:
    """A rule's section of the book, in Markdown, with its example compared now."""
    path, before, after = _LOCK_EXAMPLES[rule.name]
    moved = lock.Change(f"{rule.name}.{path}", before, after)
    found = lock.judge([moved])
    same = f"{moved.path}: {lock.shown(moved.path, before)}, as it was locked"
    examples = [
        ("Fails", f"```text\n{moved}\n```", found),
        ("Passes", f"```text\n{same}\n```", lock.judge([])),
    ]
    text = f"{rule.message}. {rule.text}" + (f"\n\n**What to do:** {rule.fix}" if rule.fix else "")
    return section_page(
        rule.code,
        rule.name,
        ("Stack lock", rule.severity),
        text,
        examples,
        rule.source,
        found[0].kind,
    )
