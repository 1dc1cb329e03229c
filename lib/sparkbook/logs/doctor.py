"""What went wrong, what to do, what is merely noise, or that all is well.

The first fatal event of any process wins; what other processes say about it afterwards is listed as
its consequence. "Healthy" is an answer, and so is "unknown, here is the evidence".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from sparkbook.findings import Finding, Findings
from sparkbook.logs import figures as _figures
from sparkbook.logs import story as _story
from sparkbook.logs.facts import Facts
from sparkbook.logs.found import Context, Found
from sparkbook.logs.reader import Event, Line, Reader, parse_line
from sparkbook.logs.signatures import Signature, Signatures, signatures
from sparkbook.logs.states import of_story, unknown_fault
from sparkbook.logs.story import Story, Teller
from sparkbook.rules import Hit, as_words

Verdict = Literal["healthy", "fault", "unknown fault", "starting", "empty"]

_ERROR_WORDS = frozenset(
    {
        *(
            "error",
            "critical",
            "fatal",
            "exception",
            "killed",
            "aborted",
            "panic",
            "segfault",
            "segmentation",
            "unrecognized",
        ),
        *(
            "runtimeerror",
            "valueerror",
            "keyerror",
            "typeerror",
            "importerror",
            "modulenotfounderror",
            "assertionerror",
            "oserror",
            "attributeerror",
        ),
        *(
            "notimplementederror",
            "indexerror",
            "filenotfounderror",
            "permissionerror",
            "timeouterror",
            "connectionerror",
            "validationerror",
        ),
        *(
            "acceleratorerror",
            "outofmemoryerror",
            "disterror",
            "distbackenderror",
            "systemexit",
            "memoryerror",
            "unicodedecodeerror",
            "nameerror",
        ),
    }
)
_EXCEPTION_LINE = re.compile(r"^\s*(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout)\b\s*:?")
_REAL_ERROR = re.compile(
    r"^(?:vllm\S*|main\.py|docker|\S+\.py)?\s*(?:serve)?:?\s*(?:error|fatal)\b:?", re.IGNORECASE
)
_CRASH = re.compile(
    r"segmentation fault|segfault at|core dumped|fatal python error|terminate"
    r" called|\baborted\b\s*(?:\(|$)|stack smashing",
    re.IGNORECASE,
)
_MINOR = re.compile(
    r"error=ErrorInfo\(|exception ignored|cancellederror|keyboardinterrupt|deprecat|error_inject|no"
    r" errors?\b|errors?=0",
    re.IGNORECASE,
)
_EVIDENCE = 320
_MAX_UNKNOWN = 50
_MAX_PIECE = 8_000

UNKNOWN = unknown_fault.code
"""The code of a finding that quotes what no signature knows."""


@dataclass
class Diagnosis:
    """The answer to a log.

    Attributes:
        verdict: `healthy`, `fault` (known), `unknown fault`, `starting` (nothing wrong so far, not
            up yet), `empty`.
        findings: everything found, the primary fault first; noise is among them, explained.
        primary: the fault to deal with; None without one.
        consequences: lines that other processes said because of it.
        story: what the start did and resolved.
        lines: how many lines were read.
        known: whether any line of it is known; where none is, healthy only means that it may be no
            log at all.
    """

    verdict: Verdict
    findings: Findings
    primary: Finding | None
    consequences: list[Finding]
    story: Story
    lines: int
    bytes: int = 0
    collect: tuple[str, ...] = ()
    fp4: str = field(default="unknown")
    known: bool = True

    @property
    def healthy(self) -> bool:
        """Whether no fault was found."""
        return self.primary is None

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if self.primary is not None:
            return self.primary.message
        if self.verdict == "healthy":
            served = f" and has answered {self.story.served} requests" if self.story.served else ""
            return (
                f"Healthy: the engine is up{served}; nothing in this log is a fault."
                if self.story.ready
                else "Healthy: nothing here is a fault."
            )
        return (
            "Nothing wrong so far; the start is not finished."
            if self.verdict == "starting"
            else "The log is empty."
        )

    def to_dict(self) -> dict[str, Any]:
        """The `--json` answer: findings, and in the summary the verdict, the story's facts and its
        timeline.
        """
        return self.findings.to_dict(
            verdict=self.verdict,
            headline=self.headline,
            primary=self.primary.rule if self.primary else None,
            consequences=[f.rule for f in self.consequences],
            collect=list(self.collect),
            facts=self.story.facts(),
            timeline=[
                {
                    "phase": p.name,
                    "begin_s": round(p.begin_s, 3),
                    "end_s": round(p.end_s, 3),
                    "detail": p.detail,
                }
                for p in self.story.phases
            ],
            last_lines=self.story.last_lines,
            lines=self.lines,
        )

    def _repr_html_(self) -> str:
        import html

        return f"<p><strong>{html.escape(self.headline)}</strong></p>{self.findings._repr_html_()}"


class Doctor:
    """Reads a log piece by piece. For a whole log, `diagnose` is enough; a running engine's log is
    given to `feed` as it grows.
    """

    def __init__(self, facts: Facts | None = None, known: Signatures | None = None):
        self._known = signatures() if known is None else known
        self._facts = facts or Facts()
        self._reader = Reader(self._known.words | _ERROR_WORDS | _story.WORDS)
        self._teller = Teller()
        self._found: dict[str, Found] = {}
        self._unknown: list[Event] = []
        self._bars: dict[str, int] = {}
        self._by_word = self._known.by_word
        self._error_words = frozenset(word.encode() for word in _ERROR_WORDS)
        self._story_words = frozenset(word.encode() for word in _story.WORDS)

    def feed(
        self, source: str | bytes | Path | BinaryIO | Iterable[bytes | str], *, more: bool = False
    ) -> None:
        """Take in more of the log; with `more`, an incomplete traceback waits for its end."""
        self._take(self._reader.read(source, more=more))

    def flush(self) -> None:
        """Judge what was waiting for its end."""
        self._take(self._reader.flush())

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if not self._story_words.isdisjoint(event.words):
                self._teller.tell(event)
            self._match(event)

    def _match(self, event: Event) -> None:
        words = event.words
        text = event.text
        if b"completed" in words and (
            bar := re.search(r"(Loading \S.{0,60}?):\s+(\d+)% Completed", text)
        ):
            name = bar[1].strip()
            if len(self._bars) < 100:
                self._bars[name] = max(int(bar[2]), self._bars.get(name, 0))
        # Each line is judged by itself, and only then all of them together, as if a terminal had
        # wrapped one long line.
        pieces = (
            [text]
            if "\n" not in text
            else [event.flat]
            if event.is_traceback
            else [*text.split("\n"), event.flat]
        )
        if len(pieces) > 1:
            pieces.append("".join(pieces[:-1]))  # a terminal breaks lines inside words
        whole = len(pieces) - 2 if len(pieces) > 1 else 1
        hit = False
        if not self._by_word.keys().isdisjoint(words):
            # Causes that name no mechanism are tried last: they may only say how it ended.
            candidates = sorted(self._known.candidates(words), key=lambda signature: signature.late)
            context = "\n".join(event.frames)
            for place, piece in enumerate(piece[:_MAX_PIECE] for piece in pieces):
                if hit and place >= whole:
                    break
                hit |= self._judge_piece(
                    event,
                    piece,
                    context,
                    candidates,
                    first=place == 0,
                    row=place if place < whole else None,
                )
        if hit and len(pieces) > 1:
            self._complete(event, pieces[whole:])
        if (
            not hit
            and not self._error_words.isdisjoint(words)
            and len(self._unknown) < _MAX_UNKNOWN
            and _is_fatal(event)
        ):
            self._unknown.append(event)

    def _complete(self, event: Event, texts: list[str]) -> None:
        """Figures that stand beyond a line's break belong to what was found in the line."""
        for found in self._found.values():
            if found.event is event:
                matches = [
                    m
                    for text in texts
                    if (m := found.signature.match(text[:_MAX_PIECE], "\n".join(event.frames)))
                ]
                for match in matches:
                    groups = {k: v for k, v in match.groupdict().items() if v is not None}
                    if len(groups) > len(found.groups):
                        found.groups = groups

    def _judge_piece(
        self,
        event: Event,
        text: str,
        context: str,
        candidates: list[Signature],
        first: bool,
        row: int | None,
    ) -> bool:
        """Note what one piece of text holds, a line of the event (its `row`) or all of them;
        whether it is explained by that.
        """
        hit = False
        quiet = first and event.line.level in ("INFO", "DEBUG") and event.line.where
        for signature in candidates:
            # A line of a logger below WARNING reports; it is no fault, whatever words it uses. Of
            # two causes, the first fits better.
            if signature.role == "cause" and (
                hit or (quiet and signature.severity == "error" and not signature.any_level)
            ):
                continue
            match = signature.match(text, context)
            if match is None:
                continue
            groups = {k: v for k, v in match.groupdict().items() if v is not None}
            for doubled in ("what", "parser", "status"):
                if f"{doubled}2" in groups:
                    groups.setdefault(doubled, groups[f"{doubled}2"])
            if earlier := self._found.get(signature.code):
                earlier.count = max(earlier.count, event.repeats) + 1
                earlier.last = event
                if signature.keep == "worst":
                    self._better(earlier, event, groups, row or 0)
            else:
                self._found[signature.code] = Found(signature, event, groups, row=row or 0)
            hit |= signature.role != "state"
        return hit

    def _better(self, earlier: Found, event: Event, groups: dict[str, str], row: int) -> None:
        """Of several lines of one state, keep the one that its function would judge worst."""
        function = _figures.FIGURES[earlier.signature.figures or ""]
        context = Context(self._teller.story, self._facts, self._found, self._bars)
        if (
            function(earlier, context) is None
            and function(Found(earlier.signature, event, groups), context) is not None
        ):
            earlier.event, earlier.groups, earlier.row = event, groups, row

    def diagnosis(self) -> Diagnosis:
        """The answer to what has been read so far."""
        story = self._teller.finish()
        story.served = self._reader.served
        story.last_lines = _last_lines(self._reader.last)
        context = Context(story, self._facts, self._found, self._bars)
        judged = [j for found in self._found.values() if (j := _judge(found, context)) is not None]
        causes = [j for j in judged if j.role == "cause" and j.finding.severity == "error"]
        echoes = [j for j in judged if j.role == "consequence"]
        others = [
            j
            for j in judged
            if j.role in ("state", "noise") or (j.role == "cause" and j.finding.severity != "error")
        ]
        unknown = self._root_unknown(causes, echoes)
        if unknown is not None:
            causes.append(unknown)
        # What killed a process is often told by the kernel, whose clock is another one: order by
        # the log's own lines. The engine's own clock tells better than the place of a line when
        # logs of several nodes follow one another.
        timed = all(j.time_s is not None for j in causes)
        causes.sort(key=lambda j: (j.rank, j.time_s if timed else 0.0, j.order))
        if not causes and echoes:
            causes, echoes = _promote(echoes)
        states = of_story(story)
        primary = causes[0] if causes else None
        consequences = [*causes[1:], *sorted(echoes, key=lambda j: j.order)]
        findings: list[Finding] = []
        if primary:
            findings.append(primary.finding)
            findings += primary.alternatives
        for judgement in consequences:
            later = judgement in causes
            finding = judgement.finding
            findings.append(
                finding if later and finding.rule != UNKNOWN else _as_consequence(finding)
            )
        findings += [j.finding for j in sorted(others, key=lambda j: (j.role == "noise", j.order))]
        findings += states
        ordered = Findings(findings)
        verdict: Verdict
        if primary:
            verdict = "unknown fault" if primary.finding.rule == UNKNOWN else "fault"
        elif not self._reader.lines or not self._reader.bytes:
            verdict = "empty"
        else:
            verdict = (
                "starting"
                if story.starts and not story.ready and not story.served and story.init_s is None
                else "healthy"
            )
        return Diagnosis(
            verdict,
            ordered,
            primary.finding if primary else None,
            [j.finding for j in consequences],
            story,
            self._reader.lines,
            self._reader.bytes,
            primary.collect if primary else (),
            story.nvfp4_path,
            bool(self._reader.known or self._found or primary),
        )

    def _root_unknown(self, causes: list[_Judged], echoes: list[_Judged]) -> _Judged | None:
        """The first fault that no signature knows, unless a known one came before it or close
        behind it.
        """
        if not self._unknown:
            return None
        stop = next((one for one in self._found.values() if one.signature.stops), None)
        event = self._unknown[0]
        if stop is not None and stop.event.number < event.number:
            return None  # what parts of an engine print while it is being stopped
        first = min((j.order for j in causes), default=None)
        if first is not None and (first <= event.number + 200 or not event.is_traceback):
            return None
        said = (event.exceptions[-1] if event.exceptions else event.text.split("\n", 1)[0]).strip()
        where = f" (in {event.frames[-1]})" if event.frames else ""
        process = f"{event.line.process}: " if event.line.process else ""
        (finding,) = unknown_fault.findings(
            f"{process}{_short(said, 240)}{where}", _evidence(event)
        )
        return _Judged(
            finding,
            "cause",
            event.number,
            1,
            [],
            ("the 50 lines before it", "the launch line", "the release"),
            event.time_s,
        )


@dataclass
class _Judged:
    finding: Finding
    role: str
    order: int
    rank: int
    alternatives: list[Finding]
    collect: tuple[str, ...] = ()
    time_s: float | None = None
    echo: str | None = None


def _judge(found: Found, context: Context) -> _Judged | None:
    signature = found.signature
    changes: dict[str, Any] = {}
    if signature.figures:
        computed = _figures.FIGURES[signature.figures](found, context)
        if computed is None:
            return None
        changes = computed
    values = {
        name: _short(value, 200)
        for name, value in (found.groups | changes).items()
        if isinstance(value, str)
    }

    def text(name: str) -> str:
        return _fill(str(changes.get(name, getattr(signature, name))), values)

    role = changes.get("role", signature.role)
    severity = changes.get("severity")
    if severity is None and not (role in ("cause", "state") or role == signature.role == "noise"):
        severity = "info"
    collect = changes.get("collect", signature.collect)
    next_steps = f" Collect next: {'; '.join(collect)}." if collect else ""
    repeats = f" ({found.count} times)" if found.count > 1 and role != "cause" else ""
    finding = signature.finding(
        Hit(
            f"{_short(text('title'), 300)}{repeats}: {text('text')}",
            evidence=_evidence(found.event, found.row),
            fix=_fill(str(changes.get("fix", signature.fix)), as_words(values)) + next_steps,
            severity=severity,
            kind=changes.get("kind"),
            confidence=changes.get("confidence"),
        )
    )
    also = changes.get("alternatives", ())
    alternatives = [
        signature.finding(
            Hit(other.message, fix=other.fix, severity="info", kind=other.kind, confidence="low")
        )
        for other in signature.alternatives
        if other.kind in also
    ]
    return _Judged(
        finding,
        role,
        found.event.number,
        2 if signature.late else 1,
        alternatives,
        collect,
        found.event.time_s,
        signature.echo,
    )


def _promote(echoes: list[_Judged]) -> tuple[list[_Judged], list[_Judged]]:
    """Only echoes were found: the one that says most becomes the finding, as a fault whose cause is
    not in the log.
    """
    echoes = sorted(echoes, key=lambda j: (j.echo != "vanished", j.order))
    head = echoes[0]
    fixed = replace(
        head.finding,
        severity="error",
        confidence="low" if head.finding.kind is None else "medium",
    )
    return [_Judged(fixed, "cause", head.order, 1, [], head.collect)], echoes[1:]


def _as_consequence(finding: Finding) -> Finding:
    return replace(finding, severity="info", message=f"Consequence: {finding.message}")


def _is_fatal(event: Event) -> bool:
    """Whether an event that no signature knows is a fault: a traceback's end, an exception, a crash
    or a command's refusal.
    """
    text = event.text
    if _MINOR.search(text) or (
        event.line.level in ("INFO", "DEBUG", "WARNING") and event.line.where
    ):
        return False
    if event.is_traceback:
        return True
    first = text.split("\n", 1)[0]
    if re.search(r'" (?:[1-5]\d\d) ', first) or first.startswith(("  File ", "    ")):
        return False
    return bool(
        _EXCEPTION_LINE.match(first)
        or _CRASH.search(first)
        or _REAL_ERROR.match(first)
        or event.line.level == "CRITICAL"
    )


def _evidence(event: Event, row: int = 0) -> str:
    process = f"({event.line.process}) " if event.line.process else ""
    if event.is_traceback or _EXCEPTION_LINE.match(event.text):
        row = 0  # what follows is the rest of the exception's message
    said = event.exceptions[-1] if event.exceptions else event.text.split("\n")[row]
    if event.exceptions and "\n" in event.text:
        said = event.text[max(event.text.rfind(said), 0) :]
    number = event.rows[row - 1] if row else event.number
    return f"line {number}: {process}{_short(' '.join(said.split()), _EVIDENCE)}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _fill(template: str, values: Mapping[str, str | None]) -> str:
    """Put figures into a text; a name that has no figure is left out with a word in its place."""
    return re.sub(r"\{([a-z_0-9]+)\}", lambda m: values.get(m[1]) or "?", template)


def _last_lines(last: dict[bytes, bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for prefix, raw in list(last.items())[:200]:
        line: Line = parse_line(raw)
        found[prefix.decode("utf-8", "replace").strip("()")] = _short(line.message.strip(), 200)
    return found


def diagnose(
    source: str | bytes | Path | BinaryIO | Iterable[bytes | str], facts: Facts | None = None
) -> Diagnosis:
    """Return what a log shows.

    Args:
        source: the log itself (`str`, `bytes`), a `Path`, a binary file, or lines.
        facts: what is known about the host besides; see `sparkbook.logs.facts.parse_facts`.

    Returns:
        The diagnosis; a log without a fault gives `verdict` healthy. Nothing that a log can hold
        makes this raise.
    """
    doctor = Doctor(facts)
    doctor.feed(source)
    return doctor.diagnosis()
