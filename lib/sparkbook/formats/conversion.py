"""What a conversion gives: the recipe or the text, and the loss report, findings of the family
CONV.

The report of a writer is measured and not declared: what was written is read again, and whatever
does not come back as it was is listed. The report of a reader is what it could not keep, what it
had to choose, and what it guessed. A key that no field of a recipe holds is kept under `foreign`,
by the format's name, and written out again when the recipe goes back to that format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.findings import Finding, Findings, Severity
from sparkbook.launch.lexer import show
from sparkbook.launch.line import kept_aside

if TYPE_CHECKING:
    from sparkbook.recipes.launch import Launch
    from sparkbook.recipes.schema import Recipe


@dataclass(frozen=True)
class Code:
    """One kind of entry in a loss report.

    Attributes:
        code: stable code.
        name: its name in words with dashes.
        severity: of its findings.
        text: what it means and what to do, in Markdown.
        bad: an input whose report holds it.
        good: one whose report doesn't.
        to: for a writer's entry, the format that both are written in.
    """

    code: str
    name: str
    severity: Severity
    text: str
    bad: str
    good: str
    to: str | None = None

    @property
    def family(self) -> str:
        """Letters of the code."""
        return "CONV"

    @property
    def address(self) -> str:
        """The address of its page on the site."""
        return f"rules/conv.html#{self.code.lower()}"

    @property
    def source(self) -> str:
        """The source of its statement."""
        return SOURCE


SOURCE = "The reader's record, and the written text read again."

_RUN = "docker run --gpus all {} vllm/vllm-openai:v0.19.0 openai/gpt-oss-20b"
CODES: dict[str, Code] = {
    code.code: code
    for code in (
        Code(
            "CONV101",
            "part-of-the-start-lost",
            "warning",
            "The target format has no place for something that the start needs: an option of the"
            " container, a volume, or a command that runs first. The written form starts a"
            " different server. Set it in the target's tool, or choose another target.",
            _RUN.format("-v ~/models:/models:ro"),
            _RUN.format("--ipc host --network host"),
            to="eugr",
        ),
        Code(
            "CONV102",
            "said-differently",
            "warning",
            "The target format writes this setting differently, and reading it back gives another"
            " value. For example, a bare `vllm serve` line binds to loopback and uses paths of the"
            " host. Check that the new value is the one you want.",
            _RUN.format("-p 9000:8000") + " --host 0.0.0.0",
            "vllm serve openai/gpt-oss-20b --host 127.0.0.1",
            to="shell",
        ),
        Code(
            "CONV103",
            "facts-left-behind",
            "info",
            "The target format contains the start but no facts about it: sources, figures, notes,"
            " the size of the weights. Keep the recipe together with the written form.",
            "gpt-oss-20b",
            _RUN.format(""),
            to="docker",
        ),
        Code(
            "CONV201",
            "guessed",
            "info",
            "A recipe needs facts that the input does not state, so they were guessed: the family"
            " and the quantization from the model's name, the container's options from what the"
            " format's own launcher adds. Correct what is wrong.",
            "vllm serve openai/gpt-oss-20b",
            "gpt-oss-20b",
        ),
        Code(
            "CONV202",
            "unknown-key",
            "warning",
            "The input has a key or an option that its format does not have: it is misspelt, or"
            " newer than this reader. It is kept under `foreign` and has no effect. `sparkbook"
            " lint` and `sparkbook plan` report it too.",
            "services: {a: {image: 'vllm/vllm-openai:v0.19.0', command: [m], comand: [x]}}",
            "services: {a: {image: 'vllm/vllm-openai:v0.19.0', command: [m]}}",
        ),
        Code(
            "CONV203",
            "kept-aside",
            "info",
            "A recipe has no field for a setting of the input. The setting is kept under `foreign`:"
            " it is written again to the same format, and lost in any other.",
            _RUN.format("--cap-add IPC_LOCK"),
            _RUN.format("--ipc host"),
        ),
        Code(
            "CONV204",
            "open-placeholder",
            "warning",
            "A placeholder of the input has no value, so the recipe contains the braces, and vLLM"
            " would receive them. Give the placeholder a default, or write the value.",
            "{recipe_version: '1', name: x, container: vllm-node, command: 'vllm serve m --port"
            " {port}'}",
            "{recipe_version: '1', name: x, container: vllm-node, defaults: {port: 8000}, command:"
            " 'vllm serve m --port {port}'}",
        ),
        Code(
            "CONV205",
            "one-of-several",
            "info",
            "The input contains several starts: containers in a script, services, variants of a"
            " model. One was chosen; the finding names it and the others. To choose another, remove"
            " the rest from the input.",
            "docker run redis:7\ndocker run --gpus all vllm/vllm-openai:v0.19.0 openai/gpt-oss-20b",
            _RUN.format(""),
        ),
        Code(
            "CONV206",
            "secret-left-out",
            "warning",
            "The input contains a secret. It is left out: the recipe passes the variable on from"
            " your environment. If you ever shared the input, revoke the secret.",
            _RUN.format("-e HF_TOKEN=hf_notarealtoken"),
            _RUN.format("-e HF_TOKEN"),
        ),
        Code(
            "CONV207",
            "given-twice",
            "warning",
            "An option is given twice. The last one was taken, as vLLM does. Delete the other.",
            "vllm serve openai/gpt-oss-20b --port 8000 --port 9000",
            "vllm serve openai/gpt-oss-20b --port 9000",
        ),
        Code(
            "CONV208",
            "filled-in",
            "info",
            "A variable was filled in from the input itself: from an earlier line, an environment"
            " file or a default such as `${PORT:-8000}`. Your own shell may have another value.",
            "PORT=8000\nvllm serve openai/gpt-oss-20b --port $PORT",
            "vllm serve openai/gpt-oss-20b --port 8000",
        ),
        Code(
            "CONV209",
            "left-out",
            "warning",
            "The input does more than start a server: it pulls an image, or waits for the port. A"
            " recipe has no place for that, so it is left out.",
            "docker pull vllm/vllm-openai:v0.19.0\n" + _RUN.format(""),
            _RUN.format(""),
        ),
        Code(
            "CONV210",
            "value-not-kept",
            "warning",
            "A recipe cannot contain a value of the input, such as a port without its host side."
            " The value is left out; the finding says why.",
            _RUN.format("-p 8000"),
            _RUN.format("-p 8000:8000"),
        ),
    )
}
"""Every code of the loss reports."""


def finding(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> Finding:
    """Return an entry of a loss report."""
    entry = CODES[code]
    return Finding(
        rule=code,
        severity=entry.severity,
        message=show(message),
        evidence=evidence and show(evidence),
        fix=fix,
        why=entry.address,
        source=SOURCE,
    )


@dataclass
class Notes:
    """The notes of a reader, collected while it reads.

    Attributes:
        entries: of the report.
        guessed: places in the recipe that the input does not vouch for.
        foreign: what the format says and a recipe has no field for.
    """

    entries: list[Finding] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)

    def add(
        self, code: str, message: str, evidence: str | None = None, fix: str | None = None
    ) -> None:
        """Add an entry, once."""
        entry = finding(code, message, evidence, fix)
        if entry not in self.entries:
            self.entries.append(entry)

    def keep(
        self,
        data: Mapping[str, Any],
        known: set[str],
        place: str = "",
        into: dict[str, Any] | None = None,
    ) -> None:
        """Keep every key of a mapping that is not read: a known one is reported as kept aside, any
        other as unknown.

        Args:
            data: what was not read.
            known: keys that the format has.
            place: the path of the mapping, for messages.
            into: where to keep it; left out, at the top of `foreign`.
        """
        (self.foreign if into is None else into).update(
            {str(key): value for key, value in data.items()}
        )
        for remark in kept_aside(data, known, place):
            self.add(str(remark.code), remark.message)

    def guess(self, place: str, value: str) -> None:
        """Remember that a place of the recipe was filled by guessing."""
        self.guessed[place] = value


@dataclass(frozen=True)
class Conversion:
    """What was read.

    Attributes:
        format: the name of the format.
        recipe: the recipe.
        findings: the loss report.
        text: what was read.
        guessed: places in the recipe that the input does not vouch for, such as
            `model.quantization`.
    """

    format: str
    recipe: Recipe
    findings: Findings
    text: str = field(repr=False, default="")
    guessed: tuple[str, ...] = ()

    @property
    def launch(self) -> Launch:
        """What is started."""
        return self.recipe.launch


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        format: the name of the format.
        text: the written form.
        findings: the loss report.
        lost: places in the recipe that do not come back when the text is read, such as
            `container.volumes`.
    """

    format: str
    text: str
    findings: Findings
    lost: tuple[str, ...] = ()


_NESTED = {
    "model",
    "image",
    "container",
    "serve",
    "draft",
    "benchmarks",
    "capabilities",
    "topology",
    "env",
    "foreign",
}
_START = ("image.ref", "image.digest", "image.entrypoint", "container", "serve", "env", "foreign")


def leaves(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's fields that are not at their default, by place: `container.volumes`,
    `serve.args.port`, `env.HF_TOKEN`.
    """
    places: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json", exclude_defaults=True).items():
        if key not in _NESTED or not isinstance(value, dict):
            places[key] = value
            continue
        for name, item in value.items():
            if key == "serve" and name == "args":
                places |= {f"serve.args.{option}": word for option, word in item.items()}
            elif item is not None or key == "env":
                places[f"{key}.{name}"] = item
    places.setdefault(
        "serve.model",
        recipe.serve.model or (None if recipe.serve.command is not None else recipe.model.repo),
    )
    return places


Change = Literal["lost", "changed", "added"]


def changes(before: Recipe, after: Recipe) -> dict[str, Change]:
    """Return places at which two recipes differ, and how, in the order of the first."""
    one, two = leaves(before), leaves(after)
    differences: dict[str, Change] = {
        place: "changed" if place in two else "lost"
        for place in one
        if place not in two or two[place] != one[place]
    }
    return differences | {place: "added" for place in two if place not in one}


def report(name: str, title: str, text: str, before: Recipe, back: Conversion) -> Written:
    """Return the loss report of a written form: what reading it again doesn't give back.

    Args:
        name, title: of the format.
        text: what was written.
        before: the recipe that was written.
        back: what reading the text gives.
    """
    entries: list[Finding] = []
    facts: list[str] = []
    lost: list[str] = []
    one, two = leaves(before), leaves(back.recipe)
    for place, change in changes(before, back.recipe).items():
        lost.append(place)
        if not place.startswith(_START):
            facts.append(place)
        elif change == "lost":
            entries.append(
                finding(
                    "CONV101", f"The {title} has no place for {place}.", _shown(place, one[place])
                )
            )
        elif change == "changed":
            entries.append(
                finding(
                    "CONV102",
                    f"The {title} writes {place} differently.",
                    f"{_shown(place, one[place])} becomes {_shown(place, two[place])}",
                )
            )
        else:
            entries.append(
                finding("CONV102", f"The {title} adds {place}.", _shown(place, two[place]))
            )
    vouched = [place for place in facts if place not in back.guessed or place in one]
    if vouched:
        entries.append(
            finding(
                "CONV103",
                f"The {title} leaves out {len(vouched)} facts.",
                ", ".join(vouched),
                "Keep the recipe together with it.",
            )
        )
    return Written(name, text, Findings(entries), tuple(lost))


def _shown(place: str, value: Any) -> str:
    """Return a value for a report; a variable's is not shown."""
    if place.startswith("env."):
        return "passed on from the caller" if value is None else "set"
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
