"""The one kind of rule: everything that `sparkbook` can find is a `Rule` of a `Family`.

"Where is HOST002?" has one answer:

    >>> from sparkbook import rules
    >>> rules.find("HOST002").name
    'driver-too-old'

A family's rules are functions with a decorator, or entries of a YAML file:

    HOST = Family("HOST", "the machine", "What `sparkbook check` looks for.", describe=str)

    @HOST.rule("HOST002", "driver-too-old", "error", kind="driver", source="https://…",
               fails=lambda: spark(driver="570.86"), passes=spark)
    def driver_too_old(machine: Machine) -> Iterator[Hit]:
        \"\"\"The text of the rule's page: what it catches, and why.\"\"\"
        if machine.branch < 580:
            yield Hit(f"The driver {machine.driver} is too old.", fix="Update DGX OS.")

    HOST.load(Path("rules.yaml"))   # or: entries with the fields of `Rule`
    HOST.judge(machine)             # the findings of every rule that has a function

A new family needs one line in `FAMILIES`. Its page on the site and the test of its rules
(`tests/test_rules.py`) follow from that.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings, Severity
from sparkbook.util import invalid, own_yaml
from sparkbook.util.markup import fenced
from sparkbook.util.secret import hide
from sparkbook.util.shell_text import quote

Confidence = Literal["high", "medium", "low"]

FAMILIES: dict[str, str] = {
    "FLAG": "sparkbook.lint.rules.flag:FLAG",
    "ENV": "sparkbook.lint.rules.env:ENV",
    "MODEL": "sparkbook.lint.rules.model:MODEL",
    "QUANT": "sparkbook.lint.rules.quant:QUANT",
    "MEM": "sparkbook.lint.rules.mem:MEM",
    "SPEC": "sparkbook.lint.rules.spec:SPEC",
    "IMG": "sparkbook.lint.rules.img:IMG",
    "RUN": "sparkbook.lint.rules.run:RUN",
    "SPARK": "sparkbook.lint.rules.spark:SPARK",
    "BAD": "sparkbook.lint.rules.bad:BAD",
    "LOG1": "sparkbook.logs.signatures:LOG1",
    "LOG2": "sparkbook.logs.signatures:LOG2",
    "LOG3": "sparkbook.logs.signatures:LOG3",
    "LOG4": "sparkbook.logs.signatures:LOG4",
    "LOG5": "sparkbook.logs.signatures:LOG5",
    "LOG6": "sparkbook.logs.signatures:LOG6",
    "LOG7": "sparkbook.logs.vocabulary:LOG7",
    "HOST": "sparkbook.host.rules:HOST",
    "DOCK": "sparkbook.serve.faults:DOCK",
    "TOOL": "sparkbook.serve.tool_rules:TOOL",
    "LOG9": "sparkbook.logs.states:STATES",
    "MET": "sparkbook.metrics.diagnose:MET",
    "ADV": "sparkbook.bench.advise:ADV",
    "FAB": "sparkbook.cluster.rules:FAB",
    "ASK": "sparkbook.lint.asked:ASK",
    "CONV": "sparkbook.formats.rules:CONV",
    "HUB": "sparkbook.weights.rules:HUB",
    "PLAN": "sparkbook.plan.rules:PLAN",
    "LOCK": "sparkbook.lock:LOCK",
    "BENCH": "sparkbook.bench.rules:BENCH",
}
"""Every family: the first letters of its codes, and the module and name of its `Family`. In the
order of the site.
"""

_KINDS = Path(__file__).with_name("kinds.yaml")
_WORD = re.compile(r"[a-z]+(?=[\s,;:.]|$)")
_PREFIX = re.compile(r"LOG\d|[A-Z]+")
_FORMS = {"code": r"[A-Z]+\d{3}", "name": "[a-z0-9-]+", "text": ".+", "source": ".+"}
"""The form of a rule's fields."""


@dataclass(frozen=True)
class Edit:
    """A mechanical repair: the text from `start` to `end` becomes `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Hit:
    """One thing that a rule found. A field that is None takes the rule's own value.

    Attributes:
        message: one sentence that names the thing and its value.
        evidence: the line, option or number that it rests on.
        fix: what to do, beginning with a verb.
        edits: repairs of the judged text that need no decision.
    """

    message: str | None = None
    evidence: str | None = None
    fix: str | None = None
    severity: Severity | None = None
    kind: str | None = None
    confidence: Confidence | None = None
    source: str | None = None
    since: str | None = None
    edits: tuple[Edit, ...] = ()


Judge = Callable[..., Iterable[Hit] | Hit | None]
"""From what a family judges to what a rule finds in it."""


@dataclass(frozen=True)
class Alternative:
    """Another likely cause of the same finding.

    Attributes:
        kind: the other problem's name in the taxonomy.
        message: the other cause, as a sentence.
        fix: the check that distinguishes it.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    kind: str
    message: str
    fix: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """One rule. An entry of a YAML file is checked by pydantic, which a command that judges one
    launch line does not wait for.

    Attributes:
        code: stable code, such as `HOST002`.
        name: its name in words with dashes.
        severity, kind, confidence: of its findings, unless a hit says otherwise. `kind` is one of
            `kinds()`.
        text: what it catches and why, in Markdown.
        source: address or title of the document that it rests on.
        fails, passes: the two examples, as the family's `examine` takes them; a function is called
            for the value.
        since, until: first and last vLLM release that the rule applies to.
        title, fix: message and advice of its findings, where they are always the same; `{name}`
            stands for a figure.
        alternatives: other likely causes, each with the check that distinguishes it.
        pattern: regular expressions; the rule applies to a text that contains one of them. Named
            groups are figures.
        judge: the function of a rule that is written in code: it yields hits, or returns one or
            None.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    code: str
    name: str
    severity: Severity = "error"
    kind: str | None = None
    text: str
    source: str
    fails: Any
    passes: Any
    since: str | None = None
    until: str | None = None
    confidence: Confidence = "high"
    title: str | None = None
    fix: str | None = None
    alternatives: tuple[Alternative, ...] = ()
    pattern: tuple[str, ...] = ()
    judge: Judge | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for key, form in _FORMS.items():
            if not re.fullmatch(form, getattr(self, key), re.DOTALL):
                raise ValueError(f"{self.code}: {key} does not have the form {form}")

    @property
    def prefix(self) -> str:
        """The letters of its family: `HOST`, or `LOG1`."""
        match = _PREFIX.match(self.code)
        return match[0] if match else self.code

    @property
    def address(self) -> str:
        """The place of its section on the site."""
        return f"rules/{self.prefix.lower()}.html#{self.code.lower()}"

    @property
    def heading(self) -> str:
        """Its name as pages and search results show it."""
        return self.name

    @property
    def about(self) -> tuple[str, ...]:
        """What pages show under the heading: the severity, and the releases if it is limited."""
        releases = f"vLLM {self.since or 'of any age'} to {self.until or 'now'}"
        return (self.severity, *([releases] if self.since or self.until else []))

    @property
    def table(self) -> str:
        """A table of what it knows, in Markdown, for its page; empty for most."""
        return ""

    @property
    def patterns(self) -> tuple[str, ...]:
        """The conditions on a text, for its page."""
        return tuple(f"/{pattern}/" for pattern in self.pattern)

    def example(self, which: Literal["fails", "passes"]) -> Any:
        """The value of one of its two examples."""
        value = getattr(self, which)
        return value() if callable(value) else value

    def finding(
        self,
        what: Hit | str | None = None,
        evidence: str | None = None,
        fix: str | None = None,
        **figures: object,
    ) -> Finding:
        """Return the rule's finding, without a secret in it. No other place assembles one.

        Args:
            what: a hit, or the message; None: the rule's title.
            evidence, fix: shown with a message.
            figures: values of the names in the rule's title and fix.
        """
        hit = what if isinstance(what, Hit) else Hit(what, evidence, fix)
        fix = hit.fix or (filled(self.fix, as_words(figures)) if self.fix else None)
        return Finding(
            rule=self.code,
            kind=hit.kind or self.kind,
            severity=hit.severity or self.severity,
            message=filled(self.title or "", figures) if hit.message is None else hit.message,
            evidence=hit.evidence and hide(hit.evidence),
            fix=fix and hide(fix),
            why=self.address,
            source=hit.source or self.source,
            since=hit.since or self.since,
            until=self.until,
            confidence=hit.confidence or self.confidence,
        )

    def findings(self, *subject: Any) -> Iterator[Finding]:
        """What the rule's function finds in a subject."""
        hits = self.judge(*subject) if self.judge else None
        for hit in (hits,) if isinstance(hits, Hit) else hits or ():
            yield self.finding(hit)

    def search(self, text: str) -> dict[str, str] | None:
        """Return the named groups of the first pattern found in a text, or None."""
        for pattern in self.pattern:
            if match := re.search(pattern, text, re.IGNORECASE | re.DOTALL):
                return {name: value for name, value in match.groupdict().items() if value}
        return None


class Family:
    """The rules that share a page.

    Attributes:
        prefix: the first letters of their codes; in lower case the page's name.
        title: the page's heading, after the prefix.
        intro: the page's first paragraph.
        type: the class of its rules.
    """

    def __init__(
        self,
        prefix: str,
        title: str,
        intro: str,
        *,
        type: type[Rule] = Rule,
        samples: str | None = None,
        describe: Callable[[Any], str] = str,
        examine: Callable[[Any], Iterable[Finding]] | None = None,
    ):
        """Make a family without rules.

        Args:
            samples: module with the functions `show` and `examine`, for a family that other code
                than its rules is needed to judge. Only the site and the tests import it.
            describe: an example as text, for a code block.
            examine: all findings of an example; left out: what the rules' functions find.
        """
        self.prefix, self.title, self.intro, self.type = prefix, title, intro, type
        self._samples, self._describe, self._examine = samples, describe, examine
        self._rules: dict[str, Rule] = {}
        self._unread: list[Callable[[], Iterable[Rule]]] = []
        self._reading = threading.RLock()

    @property
    def page(self) -> str:
        """Name of its page, without ending."""
        return self.prefix.lower()

    @property
    def judged(self) -> bool:
        """Whether the examples can be judged; if not, they are descriptions in words."""
        return bool(
            self._samples or self._examine or any(rule.judge for rule in self.rules.values())
        )

    @property
    def rules(self) -> dict[str, Rule]:
        """The rules by code, in the order in which they were declared."""
        with self._reading:  # of two threads that ask first, the second waits for all of them
            while self._unread:
                for rule in self._unread.pop(0)():
                    self.add(rule)
        return self._rules

    def __getitem__(self, code: str) -> Any:
        return self.rules[code]

    def add(self, rule: Rule) -> None:
        """Add a rule.

        Raises:
            SparkbookError: the code is of another family, or given twice.
        """
        if rule.prefix != self.prefix:
            raise SparkbookError(f"{rule.code} is not a code of the family {self.prefix}.")
        if rule.code in self._rules:
            raise SparkbookError(f"{rule.code} is given twice.")
        self._rules[rule.code] = rule

    def rule(
        self, code: str, name: str, severity: Severity, **fields: Any
    ) -> Callable[[Judge], Any]:
        """Make a rule of a function; the function's docstring is the rule's text. `fields` are
        those of `Rule`, `source`, `fails` and `passes` at least.
        """

        def register(judge: Judge) -> Rule:
            rule = self.type(
                code=code,
                name=name,
                severity=severity,
                text=inspect.getdoc(judge) or "",
                judge=judge,
                **fields,
            )
            self.add(rule)
            return rule

        return register

    def load(self, source: Path | Callable[[], Iterable[Rule]]) -> None:
        """Take the rules of a YAML file, or those that a function returns; it is read, or called,
        when one of them is first needed.
        """
        self._unread.append(
            source if callable(source) else functools.partial(read, source, self.type)
        )

    def judge(self, *subject: Any) -> Findings:
        """Return what every rule finds in a subject."""
        return Findings(
            finding for rule in self.rules.values() for finding in rule.findings(*subject)
        )

    def show(self, example: Any) -> str:
        """Return an example as a block of Markdown."""
        show = self._sample("show")
        return show(example) if show else fenced(self._describe(example))

    def examine(self, example: Any) -> list[Finding]:
        """Return all findings of an example."""
        examine = self._sample("examine") or self._examine or self.judge
        return list(examine(example))

    def _sample(self, name: str) -> Callable[[Any], Any] | None:
        return getattr(importlib.import_module(self._samples), name) if self._samples else None


def filled(template: str, figures: dict[str, Any]) -> str:
    """Return a template with its names filled in; one that is not known reads `NAME`."""

    def value(match: re.Match[str]) -> str:
        figure = figures.get(match[1])
        return match[1].upper() if figure is None else str(figure)

    return re.sub(r"\{(\w+)\}", value, template)


def as_words(figures: Mapping[str, Any]) -> dict[str, str | None]:
    """Return figures as words of the commands in a fix."""
    return {
        name: None if figure is None else quote(str(figure).replace("\0", ""))
        for name, figure in figures.items()
    }


def plain(template: str) -> str:
    """Return a template for readers, with dots in place of figures."""
    return re.sub(r"\{[a-z_0-9]+\}", "…", template)


def sentence(text: str) -> str:
    """Return a text with a capital at its start, unless that is a name such as vLLM, and a full
    stop at its end.
    """
    first = text[:1].upper() if _WORD.match(text) else text[:1]
    return first + text[1:] + ("" if text.endswith((".", "?", "!", ":")) else ".")


def read(file: Path, type: type[Rule] = Rule) -> tuple[Any, ...]:
    """Read the rules of a YAML file, a list of entries with the fields of `type`.

    Raises:
        SparkbookError: the file is no such list, an entry has an unknown key or lacks one, or a
            code or name is given twice.
    """
    import yaml
    from pydantic import TypeAdapter, ValidationError

    try:
        entries = own_yaml.read(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SparkbookError(f"{file.name}: {' '.join(str(error).split())}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SparkbookError(f"{file.name}: the file is not a list of rules.")
    table: dict[str, Rule] = {}
    adapter = TypeAdapter(type)
    several = {one.name for one in fields(type) if str(one.type).startswith("tuple[str")}
    for number, entry in enumerate(entries, 1):
        # Where several texts may be listed, one may be written without a list.
        one_or_more = {key: (entry[key],) for key in several if isinstance(entry.get(key), str)}
        try:
            rule = adapter.validate_python({**entry, **one_or_more})
        except ValidationError as error:
            where = entry.get("code", f"entry {number}")
            raise SparkbookError(f"{file.name}: {where}: {invalid.reason(error)}") from None
        for unique in (rule.code, rule.name):
            if unique in table:
                raise SparkbookError(f"{file.name}: {unique} is given twice.")
            table[unique] = rule
    return tuple(dict.fromkeys(table.values()))


def family(prefix: str) -> Family:
    """Return a family by the first letters of its codes.

    Raises:
        SparkbookError: there is none.
    """
    if prefix not in FAMILIES:
        raise SparkbookError(f"There are no rules {prefix}…; families: {', '.join(FAMILIES)}.")
    module, name = FAMILIES[prefix].split(":")
    return getattr(importlib.import_module(module), name)


def families() -> Iterator[Family]:
    """Yield every family, in the order of the site."""
    return (family(prefix) for prefix in FAMILIES)


def every() -> Iterator[Rule]:
    """Yield every rule, in the order of the site."""
    for one in families():
        yield from one.rules.values()


def find(code: str) -> Rule:
    """Return a rule by its code.

    Raises:
        SparkbookError: there is none.
    """
    match = _PREFIX.match(code)
    rule = family(match[0]).rules.get(code) if match and match[0] in FAMILIES else None
    if rule is None:
        raise SparkbookError(f"Unknown code '{code}'. To list all codes: sparkbook rules list")
    return rule


@functools.cache
def kinds() -> frozenset[str]:
    """Return the taxonomy: the names that `kind` may have."""
    return frozenset(own_yaml.read(_KINDS))
