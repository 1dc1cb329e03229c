"""Recipes as pieces of a page: tables, tabs, remarks.

What a function returns shows itself: in JupyterLab as HTML, on the site as what Sphinx makes of it
(real tabs, code with a copy button). Every text that comes from a recipe is escaped; `code` in
backticks becomes code, and nothing else is markup.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Sequence

from sparkbook import plan
from sparkbook.checkpoint.store import download_lines
from sparkbook.formats import FORMATS
from sparkbook.plan.prefill import first_token
from sparkbook.plan.request import served
from sparkbook.plan.speeds import Shown, published
from sparkbook.plots.published import best_single
from sparkbook.recipes import Recipe, load
from sparkbook.recipes.schema import Accuracy, PrepareStep, RequestDefaults
from sparkbook.releases import images
from sparkbook.site import chooser
from sparkbook.util.markup import capital, code, directive, fenced
from sparkbook.util.shell_text import command_line, mark_home

UNKNOWN = "not stated"
_OPTION = re.compile(r"--[a-z-]+ [\d.]*\d")
_ENTRY_POINTS = {
    "command": "the command it is given",
    "vllm-serve": "<code>vllm serve</code> by itself",
    "wrapper": "a script of its own",
}
_LEVELS = {
    "note": ("note", "Note"),
    "warning": ("warning", "Warning"),
    "caution": ("caution", "Caution"),
}


class Html:
    """A piece of HTML with a name."""

    def __init__(self, name: str, content: str) -> None:
        self._name, self.html = name, content

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def _repr_html_(self) -> str:
        return self.html


class Tabs:
    """Pieces of code side by side: tabs on the site, foldable blocks in JupyterLab."""

    def __init__(
        self, name: str, tabs: Sequence[tuple[str, str, str]], group: str | None = None
    ) -> None:
        """`tabs`: title, language of the code, code. Tabs of a `group` stay in step: one choice
        holds for the whole site.
        """
        self._name, self.tabs, self._group = name, list(tabs), group

    def __repr__(self) -> str:
        return f"<{self._name}: {', '.join(title for title, _, _ in self.tabs)}>"

    def _repr_markdown_(self) -> str:
        items = []
        for title, language, text in self.tabs:
            label = " ".join(title.split())
            sync = f":sync: {label}\n\n" if self._group else ""
            block = fenced(text.rstrip(), language)
            items.append(directive("tab-item", label, f"{sync}{block}"))
        group = f":sync-group: {self._group}\n\n" if self._group else ""
        return directive("tab-set", "", group + "\n\n".join(items))

    def _repr_html_(self) -> str:
        blocks = (
            f"<details{' open' * (not i)}><summary>{_text(title)}</summary>"
            f"<pre>{html.escape(text)}</pre></details>"
            for i, (title, _, text) in enumerate(self.tabs)
        )
        return "".join(blocks)


def summary(recipe: Recipe, target: str) -> Html:
    """Return the recipe in a sentence, and that its page starts nothing, whatever the target."""
    started = (
        "This page shows the launch line; it does not start an engine (target"
        f" <code>{html.escape(target)}</code>)."
    )
    line = f'<p><strong>{_text(recipe.summary)}</strong></p><p class="sb-machinery">{started}</p>'
    if newer := recipe.successor:
        there = f"../models/{html.escape(load(newer.recipe).slug)}.html"
        line += (
            f'<p>Since {newer.date}, take <a href="{there}">{html.escape(newer.recipe)}</a>'
            f" instead: {_text(newer.why)} {_cite(newer.source)}</p>"
        )
    return Html(f"Summary: {recipe.id}", line)


def facts(recipe: Recipe) -> Html:
    """Return the facts about the model and its image; unknown ones are marked as not stated."""
    model, image, draft = recipe.model, recipe.image, recipe.draft
    link = f"https://huggingface.co/{model.repo}" if recipe.family != "embedded" else None
    quantization = f"{model.quantization.format.upper()} ({model.quantization.producer or UNKNOWN})"
    rows: list[tuple[str, str | None]] = [
        (
            "Model",
            _link(model.repo, link) + (f" by {_text(model.publisher)}" if model.publisher else ""),
        ),
        ("Revision", _code(model.revision)),
        ("Architecture", _join(_code(model.architecture), _text(model.design))),
        ("Parameters", _parameters(recipe)),
        ("Quantization", _join(_text(quantization), _text(model.quantization.note))),
        (
            "Weights",
            f"{model.weights_gb:g} GB ({model.weights_gib:.1f} GiB)"
            + (", counted from shape and formats" * model.weights_counted)
            if model.weights_gb
            else None,
        ),
        ("Context", _context(recipe)),
        ("Input", ", ".join(model.modalities)),
        (
            "License",
            _join(
                _text(model.license),
                {True: "gated: accept it before the download", False: "not gated", None: None}[
                    model.gated
                ],
            ),
        ),
        ("Served as", _code(recipe.served_name)),
        (
            "Can do",
            ", ".join(name.replace("_", " ") for name, able in recipe.capabilities if able)
            or "text only",
        ),
    ]
    if draft:
        size = f"{draft.params_b:g} B parameters" if draft.params_b else None
        rows.append(
            (
                "Speculation",
                _join(
                    _text(f"{draft.method}, {draft.tokens} tokens"),
                    _code(draft.model),
                    size,
                    _text(draft.note),
                ),
            )
        )
    if image:
        rows += [
            (
                "Image",
                _join(_code(image.ref), "the tag moves: pin a digest" if image.moving else None),
            ),
            ("Digest", _code(image.digest)),
            ("vLLM", _code(image.vllm and image.vllm.removeprefix("=="))),
            ("Runs", _ENTRY_POINTS[recipe.launch.entrypoint]),
            ("Needs", _needs(image.ref)),
        ]
    else:
        rows.append(("Runs", "as a process, without a container"))
    topology = recipe.topology
    rows.append(
        (
            "Machines",
            (
                f"{topology.nodes}, tensor parallel {topology.tensor_parallel}, pipeline parallel"
                f" {topology.pipeline_parallel}"
            ),
        )
    )
    rows.append(("Status", _text(recipe.status)))
    body = "".join(
        f'<tr><th scope="row">{name}</th><td>{value or _unknown()}</td></tr>'
        for name, value in rows
    )
    return Html(
        f"Facts: {recipe.id}",
        f'<div class="sb-scroll"><table class="table sb-facts"><tbody>{body}</tbody></table></div>',
    )


def _needs(ref: str) -> str:
    start = images.starts().get(images.split(ref)[0])
    cite = f" ({_link('source', images.source(start.source).url)})" if start else ""
    return f"{_text(images.needs(ref))}{cite}"


def _parameters(recipe: Recipe) -> str | None:
    total, active = recipe.model.total_params_b, recipe.model.active_params_b
    if total is None:
        return None
    return f"{total:.4g} B" + (f", {active:.4g} B active" if active else "")


def _context(recipe: Recipe) -> str | None:
    native, extended = recipe.model.context.native, recipe.model.context.extended
    served_length = recipe.serve.args.get("max-model-len")
    parts = [
        f"{native:,} tokens" if native else None,
        f"{extended:,} with a rope extension" if extended else None,
        f"this recipe serves {_number(served_length)}" if served_length else None,
    ]
    return _join(*parts) or None


def forms(recipe: Recipe) -> list[str]:
    """List the formats shown for its launch: docker and compose need an image, a bare line and
    sparkrun need to know what it runs.
    """
    if recipe.image is None:
        return ["shell"]
    own_script = recipe.launch.entrypoint == "wrapper" or recipe.serve.command is not None
    return ["docker", "compose"] if own_script else ["docker", "compose", "shell", "sparkrun"]


def launch_tabs(recipe: Recipe) -> Tabs:
    """Return the launch line in each form that the recipe has."""
    shown = [FORMATS[name] for name in forms(recipe)]
    return Tabs(
        f"Launch: {recipe.id}",
        [(form.name, form.language, form.write(recipe)) for form in shown],
        "launch",
    )


def prepare(recipe: Recipe) -> Html | Tabs:
    """Return what to do once on the host before the first start, with the command or by hand."""
    if recipe.image is None:
        return Html(
            "Prepare",
            "<p>Nothing to prepare: the library starts it,"
            f" <code>embedded.start(&quot;{recipe.id}&quot;)</code> of"
            " <code>sparkbook.serve</code>, and puts the model's folder in place of its name in"
            " the line below.</p>",
        )
    steps = [("download the weights", _download_code(recipe))] if download_lines(recipe) else []
    steps += [
        (_prepare_title(step), _prepare_code(step))
        for step in recipe.prepare
        if step.do != "download"
    ]
    by_hand = [(f"by hand {i}: {title}", "bash", text) for i, (title, text) in enumerate(steps, 1)]
    return Tabs(f"Prepare: {recipe.id}", [("with sparkbook", "bash", _commands(recipe)), *by_hand])


def _commands(recipe: Recipe) -> str:
    """Return the library's own way to a running server."""
    lines = [
        command_line("sparkbook", "check", recipe.id),
        command_line("sparkbook", "weights", "fetch", recipe.id),
        command_line("sparkbook", "serve", recipe.id),
    ]
    if recipe.topology.nodes > 1:
        lines[0] = command_line("sparkbook", "cluster", "check", "pair.yaml", recipe.id)
        lines[2] = command_line("sparkbook", "cluster", "serve", "pair.yaml", recipe.id)
    if any(step.do == "fetch" and step.sha256 in (None, "unknown") for step in recipe.prepare):
        lines[1] = (
            "# code without a known checksum is refused: read the code, then add --unpinned\n"
            + lines[1]
        )
    if any(step.do == "run" for step in recipe.prepare):
        lines.insert(2, "# run the manual steps here: see the next tabs")
    if recipe.variants.get("lint-clean") is not None:
        lines += [
            "",
            f"# with the linter's fixes, on the same image: {recipe.id}@lint-clean",
        ]
        shown = f"{recipe.id}@lint-clean"
        lines += [command_line("sparkbook", "recipes", "show", shown, "--as", "docker")]
    return "\n".join(lines)


def _download_code(recipe: Recipe) -> str:
    """Return every repository that the recipe reads, into the one model store."""
    steps = [step for step in recipe.prepare if step.do == "download"]
    notes = [f"# {line}" for step in steps for line in step.why.splitlines()]
    notes += [f"# size: {step.size_gb:g} GB" for step in steps if step.size_gb]
    if recipe.model.gated:
        notes.append("# gated: accept it on its page first, then: hf auth login")
    return "\n".join(
        [*notes, "mkdir -p ~/vllm", *(f"HF_HOME=~/vllm {line}" for line in download_lines(recipe))]
    )


def _prepare_title(step: PrepareStep) -> str:
    return {"fetch": "fetch a file", "run": "run a command"}[step.do]


def _prepare_code(step: PrepareStep) -> str:
    why = "".join(f"# {line}\n" for line in step.why.splitlines())
    if step.size_gb:
        why += f"# size: {step.size_gb:g} GB\n"
    match step.do:
        case "fetch":
            to = mark_home(step.to or "")
            fetch = command_line("curl", "-fL", "--create-dirs", "-o", to, step.url or "")
            line = f"{why}{fetch}"
            if step.sha256 and step.sha256 != "unknown":
                check = command_line("echo", f"{step.sha256}  {to}")
                return f"{line}\n{check} | sha256sum --check"
            return f"{line}\n# no source states its sha256: read the file before you use it"
        case _:
            return f"{why}{step.command}"


def remarks(recipe: Recipe) -> Html:
    """Return the notes from the sources, most serious first, each with its source."""
    order = {"caution": 0, "warning": 1, "note": 2}
    items = sorted(recipe.remarks, key=lambda remark: order[remark.level])
    boxes = (
        f'<div class="admonition {_LEVELS[item.level][0]}"><p'
        f' class="admonition-title">{_LEVELS[item.level][1]}</p><p>{_text(item.text)}'
        f" {_cite(item.source)}</p></div>"
        for item in items
    )
    return Html(
        f"Remarks: {recipe.id}",
        "".join(boxes) or "<p>The sources have no notes on this recipe.</p>",
    )


def corrections(recipe: Recipe) -> Html:
    """Return the claims of a source that turned out wrong or have expired: the claim, what holds
    now, and the evidence.
    """
    if not recipe.corrections:
        return Html("Corrections", "<p>None known.</p>")
    rows = [
        [_text(item.claim), _text(item.now), item.date.isoformat(), _cite(item.source)]
        for item in recipe.corrections
    ]
    return Html(
        f"Corrections: {recipe.id}", _table(["Claim", "What holds", "Checked", "Evidence"], rows)
    )


def accuracy_table(table: Accuracy) -> Html:
    """Return published scores; with two series also their difference."""
    two = len(table.series) == 2
    rows = []
    for row in table.rows:
        cells = [_text(row.label), *(_number(value) for value in row.values)]
        if two:
            known = row.values[0] is not None and row.values[1] is not None
            cells.append(f"{row.values[1] - row.values[0]:+.2f}" if known else _unknown())  # type: ignore[operator]
        rows.append(cells)
    head = [
        f"{_text(table.title)} ({_text(table.unit)})",
        *map(_text, table.series),
        *(["difference"] if two else []),
    ]
    note = (
        f"<p>Published{f', measured on {_text(table.machine)}' if table.machine else ''}"
        f" {_cite(table.source)}.</p>"
    )
    return Html(f"Accuracy: {table.title}", _table(head, rows, numeric=True) + note)


def speed_table(recipe: Recipe) -> Html:
    """Return published speeds. A column that no source fills is left out."""
    figures = recipe.benchmarks.speed
    if not figures:
        return Html("Speed", "<p>No source gives a speed for this recipe.</p>")
    columns: list[tuple[str, Callable[..., str]]] = [
        ("Configuration", lambda f: _text(f.configuration or "as the recipe")),
        ("Prompts", lambda f: _text(f.prompt_class)),
        ("Requests at once", lambda f: _number(f.concurrency)),
        ("Context, tokens", lambda f: _number(f.context_tokens)),
        ("Input, tokens", lambda f: _number(f.prompt_tokens)),
        ("Output, tokens", lambda f: _number(f.output_tokens)),
        (
            "Decode, tok/s",
            lambda f: "–".join(
                f"{rate:g}" for rate in dict.fromkeys((f.decode_tok_s, f.decode_tok_s_max)) if rate
            ),
        ),
        ("All requests, tok/s", lambda f: _number(f.aggregate_tok_s)),
        ("Prefill, tok/s", lambda f: _number(f.prefill_tok_s)),
        ("TTFT, ms", lambda f: _number(f.ttft_ms)),
        ("TPOT, ms", lambda f: _number(f.tpot_ms)),
        ("Acceptance", lambda f: f"{f.acceptance:.0%}" if f.acceptance is not None else ""),
        ("Tokens a step", lambda f: _number(f.acceptance_length)),
        ("Measured on", lambda f: f"{_text(f.machine)} {_cite(f.source)}"),
        ("Note", lambda f: f'<span class="sb-note">{_text(f.note)}</span>' if f.note else ""),
    ]
    filled = [(name, [show(figure) for figure in figures]) for name, show in columns]
    kept = [(name, cells) for name, cells in filled if any(cells)]
    rows = [[cells[i] or "–" for _, cells in kept] for i in range(len(figures))]
    return Html(f"Speed: {recipe.id}", _table([name for name, _ in kept], rows, kind="sb-speed"))


def fit(recipe: Recipe) -> Html:
    """Return whether the recipe's launch line fits a Spark, and the findings of the plan."""
    if recipe.family == "embedded":
        return Html("Fit", "<p>For this book's own CPU engine: not planned for a Spark.</p>")
    found = plan.of(recipe.id)
    findings = "".join(f"<li>{_text(finding.message)}</li>" for finding in found.findings)
    verdict, settings = chooser.fit(found), f"{found.setup.context:,} tokens of context"
    if verdict == found.verdict:
        settings += f", <code>--gpu-memory-utilization {found.setup.fraction:g}</code>"
    shown = _text(_OPTION.sub(r"`\g<0>`", capital(verdict)))
    return Html(
        f"Fit: {recipe.id}",
        f"<p><strong>{shown}</strong> (estimate; {settings})</p><ul>{findings}</ul>",
    )


def expected(recipe: Recipe) -> Html:
    """Return the decode model's estimate for this recipe, with its range, for each number of
    requests, and the first token's time.
    """
    known = served(recipe)
    speeds = plan.of(recipe.id).decode if known else ()
    if known is None or not speeds:
        why = (
            "it is for this book's own CPU engine"
            if recipe.family == "embedded"
            else "the sources do not give all the sizes that a decode step reads"
        )
        return Html("Expected", f"<p>No estimate for a Spark: {why}.</p>")
    rows = []
    for speed in speeds:
        _, one, _ = speed.per_request
        slowest = sorted(speed.step.parts.items(), key=lambda part: -part[1])[:2]
        spent = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in slowest)
        rows.append(
            [
                f"{speed.concurrency}",
                f"{speed.tok_s:.3g}",
                f"{speed.low:.3g} to {speed.high:.3g}",
                f"{one:.3g}",
                spent,
            ]
        )
    head = [
        "Requests at once",
        f"All together, tok/s (estimate, {speeds[0].context:,} tokens of context each)",
        "Range",
        "Each, tok/s (estimate)",
        "Most of a step",
    ]
    likely, sparks = known.reads[1], known.on()
    cold = first_token(likely, 100_000, machine=sparks)
    warm = first_token(likely, 100_000, cached=99_000, machine=sparks)
    first = (
        f"<p>Time to first token of an agent's 100,000-token prompt (estimate):"
        f" <strong>{cold.seconds:.0f} s</strong> ({cold.low_s:.0f} to {cold.high_s:.0f}) without a"
        f" prefix cache, <strong>{warm.seconds:.1f} s</strong> ({warm.low_s:.1f} to"
        f" {warm.high_s:.1f}) with 99,000 of the tokens in it.</p>"
    )
    draft = ""
    if known.draft:
        low, length, high = known.draft.length
        draft = (
            f"<p>With {known.draft.tokens} drafted tokens and {length:.1f} tokens a step, the"
            f" estimate for mixed text ({low:.1f} to {high:.1f}). Acceptance depends on the"
            " text: measure yours.</p>"
        )
    shown = [_published(one) for one in published(recipe) if one.concurrency == 1][:3]
    others = f"<p>Published:</p><ul><li>{'</li><li>'.join(shown)}</li></ul>" if shown else ""
    return Html(f"Expected: {recipe.id}", others + _table(head, rows) + draft + first)


def _published(one: Shown) -> str:
    """Return a published speed with its source."""
    how = "this line" if one.own_line else _text(one.setup)
    link = _link(one.source.title, one.source.url)
    prompt = f", prompt of {one.prompt:,} tokens" if one.prompt else ""
    date = f", {one.source.date}" if one.source.date else ""
    return f"<strong>{one.tok_s:.3g} tok/s</strong>, one request{prompt} ({how}; {link}{date})"


def claims(recipe: Recipe) -> Html:
    """Return what vendors claim about it, in their words."""
    items = "".join(
        f"<li>{_text(claim.text)} {_cite(claim.source)}</li>" for claim in recipe.benchmarks.claims
    )
    return Html(
        f"Claims: {recipe.id}", f"<ul>{items}</ul>" if items else "<p>No further claims.</p>"
    )


def request_tabs(recipe: Recipe) -> Html | Tabs:
    """Return what a request should carry, ready to paste: as a JSON body, and as arguments of the
    `openai` client.
    """
    if not recipe.request:
        return Html(
            "Requests",
            "<p>No source recommends settings for requests: the model's own defaults apply.</p>",
        )
    tabs = []
    for defaults in recipe.request:
        tabs.append((f"{defaults.use}: JSON", "json", _request_json(recipe, defaults)))
        tabs.append((f"{defaults.use}: Python", "python", _request_python(recipe, defaults)))
    return Tabs(f"Requests: {recipe.id}", tabs)


def _messages(defaults: RequestDefaults) -> list[dict[str, str]]:
    system = (
        [{"role": "system", "content": defaults.system_prompt}] if defaults.system_prompt else []
    )
    return [*system, {"role": "user", "content": "…"}]


def _request_json(recipe: Recipe, defaults: RequestDefaults) -> str:
    return json.dumps(
        {"model": recipe.served_name, "messages": _messages(defaults), **defaults.body()},
        indent=2,
        ensure_ascii=False,
    )


def _request_python(recipe: Recipe, defaults: RequestDefaults) -> str:
    """Return a request in Python. vLLM's own fields go into `extra_body`, since the client's
    methods do not know them.
    """
    body = defaults.body()
    extra = {name: body.pop(name) for name in ("top_k", "chat_template_kwargs") if name in body}
    lines = [
        f"model={recipe.served_name!r},",
        f"messages={_messages(defaults)!r},",
        *(f"{name}={value!r}," for name, value in body.items()),
    ]
    if extra:
        lines.append(f"extra_body={extra!r},")
    return "client.chat.completions.create(\n" + "".join(f"    {line}\n" for line in lines) + ")"


def sources(recipe: Recipe) -> Html:
    """Return the sources of this page's facts."""
    items = "".join(
        f'<li id="source-{source.id}"><code>{source.id}</code>: {_link(source.title, source.url)}'
        f"{f', {source.date.isoformat()}' if source.date else ''}</li>"
        for source in recipe.sources
    )
    return Html(f"Sources: {recipe.id}", f"<ul>{items}</ul>")


def overview(recipes: Sequence[Recipe]) -> Html:
    """Return all recipes in one table. The site's script makes it sortable and gives it a filter;
    without it, it is a plain table.
    """
    head = (
        "Model|Family|Total, B|Active, B|Quantization|Weights, GB|Best tok/s|Context|Status|Image"
    )
    rows = []
    for recipe in recipes:
        model = recipe.model
        rows.append(
            [
                f'<a href="../models/{recipe.slug}.html">{_text(recipe.title)}</a>',
                _text(recipe.family),
                _number(model.total_params_b and round(model.total_params_b, 4)),
                _number(model.active_params_b and round(model.active_params_b, 4)),
                model.quantization.format.upper(),
                _number(model.weights_gb),
                _number(best_single(recipe)),
                _number(model.context.native),
                _text(recipe.status),
                f"<code>{html.escape(recipe.image.ref)}</code>" if recipe.image else "none",
            ]
        )
    return Html(
        f"Overview of {len(rows)} recipes",
        _table(
            head.split("|"), [[cell or "–" for cell in row] for row in rows], kind="sb-overview"
        ),
    )


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", numeric: bool = False
) -> str:
    top = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    names = " ".join(
        name for name in ("table", "sb-table", kind, "sb-numeric" if numeric else "") if name
    )
    return (
        '<div class="sb-scroll"><table'
        f' class="{names}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _text(text: str | None) -> str:
    """Return a text as HTML, with `code` between backticks as code; empty for none."""
    return code(text) if text else ""


def _code(text: str | None) -> str:
    return f"<code>{html.escape(text)}</code>" if text else ""


def _link(text: str, url: str | None) -> str:
    return f'<a href="{html.escape(url)}">{_text(text)}</a>' if url else _text(text)


def _cite(source: str) -> str:
    return f'<a class="sb-cite" href="#source-{source}">[{source}]</a>'


def _join(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _number(value: object) -> str:
    """Return a number for people; nothing where there is none."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))


def _unknown() -> str:
    return f'<span class="sb-unknown">{UNKNOWN}</span>'
