"""What executes the tests of claims: one function a subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.register.claim_model import Test
from sparkbook.register.lookup import registers


def _release(test: Test, release: str) -> Any:
    from sparkbook import releases

    return releases.get(test.release or release)


def _option(test: Test, release: str) -> tuple[bool, str]:
    known = _release(test, release)
    held = known.accepts(test.option)
    return held, f"vLLM {known.version} {'has' if held else 'does not have'} --{test.option}"


def _env(test: Test, release: str) -> tuple[bool, str]:
    known = _release(test, release)
    held = test.env in known.envs
    return held, f"vLLM {known.version} {'reads' if held else 'does not read'} {test.env}"


def _symbol(test: Test, release: str) -> tuple[bool, str]:
    known, symbol = _release(test, release), test.symbol
    assert symbol
    held = known.has(symbol.category, symbol.name)
    return (
        held,
        (
            f"{symbol.name} is {'' if held else 'not '}among the"
            f" {symbol.category.replace('_', ' ')} of vLLM {known.version}"
        ),
    )


def _default(test: Test, release: str) -> tuple[bool, str]:
    known, wanted = _release(test, release), test.default
    assert wanted
    value = known.option(wanted.option).default
    return (
        value == wanted.is_,
        f"--{wanted.option} is {value} in vLLM {known.version} by default",
    )


def _requires(test: Test, release: str) -> tuple[bool, str]:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    known, wanted = _release(test, release), Requirement(test.requires or "")
    (exact,) = [part.version for part in wanted.specifier]
    admitted = known.requires.get(wanted.name, "")
    held = wanted.name in known.requires and SpecifierSet(
        "" if admitted == "*" else admitted
    ).contains(exact)
    return (
        held,
        (
            f"vLLM {known.version} {'admits' if held else 'does not admit'} {wanted.name} {exact}"
            f" ({admitted or 'not required'})"
        ),
    )


def _lint(test: Test, release: str) -> tuple[bool, str]:
    from sparkbook import lint, recipes

    wanted = test.lint
    assert wanted
    source: Any = recipes.load(wanted.line) if wanted.line in recipes.ids() else wanted.line
    report = lint.lint(source, release=test.release or release)
    found = [finding for finding in report.findings if finding.rule == wanted.rule]
    return (
        bool(found),
        (
            f"{wanted.rule} under vLLM {report.release}:"
            f" {found[0].message if found else 'nothing found'}"
        ),
    )


def _clean(test: Test, release: str) -> tuple[bool, str]:
    from sparkbook import lint, recipes

    wanted = test.clean or ""
    known = wanted.partition("@")[0] in recipes.ids()
    source: Any = recipes.load(wanted) if known else wanted
    report = lint.lint(source, release=test.release or release)
    wrong = [finding for finding in report.findings if finding.severity == "error"]
    words = "; ".join(f"{finding.rule}: {finding.message}" for finding in wrong) or "no error"
    return (
        not wrong,
        f"{f'the line of {wanted}' if known else 'the line'} under vLLM {report.release}: {words}",
    )


def _shape(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook.checkpoint import known

    wanted = test.shape
    assert wanted
    config = known.of_shape(wanted.model)
    found = {key: config.get(key) for key in wanted.is_}
    return (
        found == wanted.is_,
        (
            f"the config of {wanted.model}:"
            f" {', '.join(f'{key} {value}' for key, value in found.items())}"
        ),
    )


def _scores(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook import recipes

    wanted = test.scores
    assert wanted
    rows = [
        row
        for table in recipes.load(wanted.recipe).benchmarks.accuracy
        for row in table.rows
        if len(row.values) > 1
    ]
    apart = {row.label: round((row.values[1] or 0) - (row.values[0] or 0), 6) for row in rows}
    label = max(apart, key=lambda key: abs(apart[key]))
    return (
        abs(apart[label]) <= wanted.within,
        f"{len(apart)} scores; the greatest difference is {apart[label]:+g} points ({label})",
    )


def _image(test: Test, _release_: str) -> tuple[bool, str]:
    from packaging.specifiers import SpecifierSet

    from sparkbook.releases import images

    wanted = test.image
    assert wanted
    info = images.find(wanted.ref)
    if info is None:
        raise SparkbookError(f"the library has no facts about the image {wanted.ref}")
    if any(
        register.source.url == images.source(info.source).url for register in registers().values()
    ):
        raise SparkbookError(
            f"the facts about {wanted.ref} come from the documents themselves, so they prove"
            " nothing"
        )
    if wanted.vllm:
        inside = info.vllm or info.vllm_range
        held = bool(inside) and (
            info.vllm == wanted.vllm
            or (not info.vllm and SpecifierSet(info.vllm_range or "").contains(wanted.vllm))
        )
        return held, f"{wanted.ref} contains vLLM {inside or 'of an unknown release'}"
    if wanted.platform:
        return (
            wanted.platform in (info.platforms or ()),
            f"{wanted.ref} can be pulled for {', '.join(info.platforms or ('no known platform',))}",
        )
    name = wanted.has or wanted.lacks or ""
    known = info.contents.get(name)
    held = (known is False) if wanted.lacks else bool(known)
    words = {
        None: f"it is not known whether {name} is in",
        False: f"{name} is not in",
        True: f"{name} is in",
    }
    return held, f"{words.get(known if isinstance(known, bool | None) else True)} {wanted.ref}"


def _counted(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook.checkpoint import known

    wanted = test.counted
    assert wanted
    checkpoint = known.load(wanted.model)
    if wanted.gb is not None:
        counted, claimed, what = checkpoint.bytes, wanted.gb, "GB"
    elif wanted.active_b is not None:
        reads = checkpoint.reads
        assert reads
        counted, claimed, what = reads.active, wanted.active_b, "B active parameters"
    else:
        counted, claimed, what = checkpoint.params, wanted.total_b or 0.0, "B parameters"
    low, high = counted.low / 1e9, counted.high / 1e9
    held = low * (1 - wanted.within) <= claimed <= high * (1 + wanted.within)
    span = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
    return held, f"counted from the shape: {span} {what}, claimed {claimed:g}"


def _sum(test: Test, _release_: str) -> tuple[bool, str]:
    wanted = test.sum
    assert wanted
    value = _calculate(wanted.of)
    held = abs(value - wanted.gives) <= wanted.within * abs(wanted.gives)
    return held, f"{wanted.of} = {value:.4g}, claimed {wanted.gives:g}"


def _fits(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook import plan

    planned = plan.of(test.fits or "")
    return planned.fits, f"the plan for {test.fits}: {planned.verdict}"


_RUNNERS: dict[str, Callable[[Test, str], tuple[bool, str]]] = {
    "option": _option,
    "env": _env,
    "symbol": _symbol,
    "default": _default,
    "requires": _requires,
    "lint": _lint,
    "clean": _clean,
    "image": _image,
    "counted": _counted,
    "shape": _shape,
    "sum": _sum,
    "scores": _scores,
    "fits": _fits,
}


def _calculate(text: str) -> float:
    """Return a calculation with + - * / and parentheses, nothing else.

    Raises:
        SparkbookError: something else is in it.
    """
    import ast
    import operator

    signs: dict[type, Callable[[float, float], float]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.Pow: operator.pow,
    }

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in signs:
            return signs[type(node.op)](value(node.left), value(node.right))
        raise SparkbookError(f"'{text}' is not a plain calculation")

    return value(ast.parse(text, mode="eval").body)


def run(test: Test, release: str) -> tuple[bool, str]:
    """Execute one test. Return whether the claim holds, and what was found."""
    (subject,) = test.subjects
    held, evidence = _RUNNERS[subject](test, release)
    return held != test.absent, evidence
