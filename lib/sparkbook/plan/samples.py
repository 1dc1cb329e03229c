"""The examples of a plan's rules: how a page shows one, and what is found in it."""

from __future__ import annotations

import re
from dataclasses import replace

from sparkbook import logs
from sparkbook.findings import Findings
from sparkbook.plan import memory, reconcile, request
from sparkbook.releases.answers import Answer, Judge
from sparkbook.util.markup import fenced

_OPTION = re.compile(r" --(cotenant|release|meminfo|log|said) ")


def examine(example: str) -> Findings:
    """Return the findings of an example: of its plan or, if it has lines of a log, of the
    comparison with them.
    """
    line, options = _parts(example)
    host = request.host(
        cotenants=tuple(filter(None, [options.get("cotenant")])), meminfo=options.get("meminfo")
    )
    override = request.Override(release=options.get("release"))
    plan = memory.plan(request.read(line, override), host)
    if "said" in options:
        said = Answer(judge=Judge(vllm="0.32.0"), refused=options["said"])
        plan = replace(plan, said=said)
    if "log" not in options:
        return plan.findings
    return reconcile.reconcile(plan, logs.diagnose(f"{options['log']}\n").story).findings


def show(example: str) -> str:
    """Return an example as Markdown: the command; below it the lines of a file, under the name that
    the command gives the file.
    """
    line, options = _parts(example)
    files = {name: text for name, text in options.items() if name in ("log", "meminfo")}
    refused = options.pop("said", None)
    words = [
        f" --{name} {f'{name}.txt' if name in files else value}" for name, value in options.items()
    ]
    words += [] if refused is None else [" --ask"]
    contents = [] if refused is None else [f"\n\nvLLM answers:\n\n{fenced(refused)}"]
    contents += [f"\n\n`{name}.txt`:\n\n{fenced(text)}" for name, text in files.items()]
    return fenced(f'sparkbook plan "{line}"{"".join(words)}', "bash") + "".join(contents)


def _parts(example: str) -> tuple[str, dict[str, str]]:
    line, *options = _OPTION.split(example)
    return line, dict(zip(options[::2], options[1::2], strict=True))
