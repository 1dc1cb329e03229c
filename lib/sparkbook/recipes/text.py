"""Recipes for a terminal: the list, and the facts of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparkbook.util.styled import Hanging

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from sparkbook.recipes.schema import PrepareStep, Recipe, Speed

_COLUMNS = {
    "id": "ID",
    "model": "Model",
    "quantization": "Quantization",
    "weights_gb": "GB",
    "image": "Image",
    "status": "Status",
}
_REMARKS = {"note": "", "warning": "yellow", "caution": "bold red"}
_LABEL_WIDTH = 13


def row(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe in the few values that the list shows."""
    return {
        "id": recipe.id,
        "title": recipe.title,
        "family": recipe.family,
        "model": recipe.model.repo,
        "quantization": recipe.model.quantization.format,
        "weights_gb": recipe.model.weights_gb,
        "image": recipe.image.ref if recipe.image else None,
        "status": recipe.status,
    }


def listing(rows: list[dict[str, Any]], console: Console) -> Iterator[RenderableType]:
    """Yield a table if it fits the terminal; else model and image on lines of their own under each
    ID.
    """
    cells = [[_cell(key, row[key]) for key in _COLUMNS] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for key, name in _COLUMNS.items():
        table.add_column(name, no_wrap=True, justify="right" if key == "weights_gb" else "left")
    for row in cells:
        table.add_row(*map(Text, row))
    wide = table.__rich_measure__(console, console.options.update(max_width=1000)).maximum
    if wide <= console.width:
        yield table
        return
    for name, model, quantization, size, image, status in cells:
        kind = quantization.replace("unknown", "quantization unknown")
        sized = "size unknown" if size == "unknown" else f"{size} GB"
        about = f"  {kind}, {sized}, {status}"
        own_line = "" if len(name) + len(about) <= console.width else "\n"
        yield Text.assemble((name, "bold"), own_line, (about, "dim"), overflow="fold")
        yield Hanging((("  model  ", ""),), model)
        yield Hanging((("  image  ", ""),), image)


def _cell(key: str, value: str | float | None) -> str:
    if value is None:
        return "unknown" if key == "weights_gb" else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def facts(recipe: Recipe, *, hanging: bool) -> Iterator[RenderableType]:
    """Yield a recipe for reading: facts, remarks, corrections, published speed and sources.

    Args:
        hanging: indent the lines that a long item is wrapped into.
    """

    def item(mark: str, text: str, source: str | None = None, style: str = "") -> RenderableType:
        body = Text.assemble((mark, style), " ", text, (f" [{source}]" if source else "", "dim"))
        return Padding(body, (0, 0, 0, 2)) if hanging else Text("  ") + body

    yield Text.assemble((recipe.title, "bold"), (f" ({recipe.id}, {recipe.status})", "dim"))
    yield Text(recipe.summary)
    if newer := recipe.successor:
        since = f"since {newer.date}, take {newer.recipe}:"
        yield Text.assemble((since, "yellow"), f" {newer.why} [{newer.source}]")
    yield Text()
    for label, value in _facts(recipe):
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="cyan", no_wrap=True, width=_LABEL_WIDTH)
        table.add_column(overflow="fold")
        table.add_row(label, Text(value))
        yield table
    sections = {
        "Prepare once": [item("-", f"{_what(step)}: {step.why}") for step in recipe.prepare],
        "Remarks": [
            item(f"{remark.level}:", remark.text, remark.source, _REMARKS[remark.level])
            for remark in recipe.remarks
        ],
        "Corrections": [
            line
            for correction in recipe.corrections
            for line in (
                item("claim:", correction.claim),
                item(f"since {correction.date}:", correction.now, correction.source, "yellow"),
            )
        ],
        "Published speed": [
            item("-", _speed(speed), speed.source) for speed in recipe.benchmarks.speed
        ],
        "Sources": [
            item(
                f"[{source.id}]",
                _joined(source.title, source.url, f"({source.date})" if source.date else None),
            )
            for source in recipe.sources
        ],
    }
    for title, items in sections.items():
        if items:
            yield Text()
            yield Text(title, "bold")
            yield from items


def _what(step: PrepareStep) -> str:
    """What a step of the preparation does."""
    place = f"to {step.to}" if step.to else None
    return step.command or _joined(step.do, step.repo or step.url, place)


def _facts(recipe: Recipe) -> list[tuple[str, str]]:
    """Labels and texts; what is not known is left out."""
    model, draft, image = recipe.model, recipe.draft, recipe.image
    counted = " (counted)" if model.weights_counted else ""
    facts = [
        ("model", model.repo + (f" @ {model.revision}" if model.revision else "")),
        ("publisher", model.publisher),
        ("design", _listed(model.design, model.architecture)),
        (
            "size",
            _listed(
                model.total_params_b and f"{model.total_params_b:g}B parameters",
                model.active_params_b and f"{model.active_params_b:g}B active",
                model.weights_gb and f"{model.weights_gb:g} GB of weights{counted}",
            ),
        ),
        (
            "quantization",
            " by ".join(filter(None, [model.quantization.format, model.quantization.producer])),
        ),
        (
            "context",
            _listed(
                model.context.native and f"{model.context.native} tokens",
                model.context.extended and f"{model.context.extended} extended",
            ),
        ),
        ("modalities", ", ".join(model.modalities)),
        ("license", _listed(model.license, "gated" if model.gated else None)),
        (
            "draft",
            draft and _listed(draft.method, draft.model, f"{draft.tokens} tokens a step"),
        ),
        ("image", image.ref if image else "none: runs as a process"),
        ("digest", (image.digest or "not pinned") if image else None),
        ("vLLM", image.vllm if image else None),
        ("served as", recipe.served_name),
        ("port", str(recipe.launch.port)),
        (
            "able to",
            ", ".join(name.replace("_", " ") for name, able in recipe.capabilities if able),
        ),
        ("guide", recipe.guide_section),
    ]
    return [(label, text) for label, text in facts if text]


def _speed(speed: Speed) -> str:
    """One published speed in words; only what its source says."""
    figures = {
        "decode {} tok/s": speed.decode_tok_s,
        "up to {} tok/s": speed.decode_tok_s_max,
        "aggregate {} tok/s": speed.aggregate_tok_s,
        "prefill {} tok/s": speed.prefill_tok_s,
        "TTFT {} ms": speed.ttft_ms,
        "TPOT {} ms": speed.tpot_ms,
        "acceptance {}": speed.acceptance,
        "{} tokens a step": speed.acceptance_length,
    }
    known = [text.format(f"{value:g}") for text, value in figures.items() if value is not None]
    about = _listed(
        speed.configuration, speed.prompt_class, f"concurrency {speed.concurrency}", speed.machine
    )
    return f"{', '.join(known) or speed.note or 'no figure'} ({about})"


def _joined(*parts: str | None) -> str:
    return " ".join(filter(None, parts))


def _listed(*parts: str | float | None) -> str:
    return ", ".join(str(part) for part in parts if part)
