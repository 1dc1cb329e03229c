"""What went wrong, what to do, what is merely noise, or that all is well.

The first fatal event of any process wins; what other processes say about it afterwards is listed as
its consequence. What is known of a fault comes in this order: an exact signature, another program's
vocabulary, the place that a message comes from. "Healthy" is an answer that needs evidence
(`verdict.py`), and so is "unknown, here is what the log shows".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from sparkbook.findings import Finding, Findings
from sparkbook.logs import figures as _figures
from sparkbook.logs import related as _related
from sparkbook.logs import story as _story
from sparkbook.logs import verdict as _verdict
from sparkbook.logs import weight as _weight
from sparkbook.logs.explaining import Gathered, Unexplained, known_of
from sparkbook.logs.facts import Facts
from sparkbook.logs.found import Context, Found
from sparkbook.logs.judging import Judged, as_consequence, evidence, judge, promote, short
from sparkbook.logs.log_line import Line, parse_line
from sparkbook.logs.reader import Event, Reader, tokens
from sparkbook.logs.signatures import Signature, Signatures, signatures
from sparkbook.logs.states import UNKNOWN_STATE, of_story, of_verdict, recovered, unknown_fault
from sparkbook.logs.story import Story, Teller
from sparkbook.logs.verdict import MEANINGS, Verdict
from sparkbook.logs.vocabulary import vocabularies

_MAX_PIECE = 8_000
_CLOSE = 200
"""A known fault at most so many lines behind an unknown one is the same event, better told."""

_PLAIN = ("shell", "docker", "download", "client")
"""Programs whose faults have no level and no form that all of them share."""
REFUSED = "LOG620"
"""The code of the signature of refused requests."""
UNKNOWN = unknown_fault.code
"""The code of a finding that quotes what no signature knows."""


@dataclass
class Diagnosis:
    """The answer to a log.

    Attributes:
        verdict: one of `sparkbook.logs.verdict.MEANINGS`.
        findings: everything found, the primary fault first; noise is among them, explained.
        primary: the fault to deal with; None without one.
        consequences: lines that other processes said because of it.
        story: what the start did and resolved.
        lines: how many lines were read.
        known: whether any line of it is known; if none is, it may be no log at all.
        fault_s: the time of the primary fault, seconds since the turn of the year.
        stopped: whether the last start was ordered to stop.
        up_again: whether the faults are of earlier starts, and the last one came up without any.
    """

    verdict: Verdict
    findings: Findings
    primary: Finding | None
    consequences: list[Finding]
    story: Story
    lines: int
    bytes: int = 0
    collect: tuple[str, ...] = ()
    fp4: str = "unknown"
    known: bool = True
    fault_s: float | None = None
    stopped: bool = False
    up_again: bool = False

    @property
    def healthy(self) -> bool:
        """Whether the log shows an engine that is up and without a fault since."""
        return self.verdict == "healthy"

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if self.primary is not None and self.up_again:
            failed = f"an earlier one failed: {self.primary.message}"
            return f"The last start {self._state}; {failed}"
        if self.primary is not None:
            return self.primary.message
        if self.verdict == "healthy":
            which = "before that" if self.stopped else "in this log"
            return f"Healthy: the engine {self._state}; nothing {which} is a fault."
        first = next(iter(self.findings), None)
        if first is not None and self.verdict not in ("empty", "docker", "kernel log", "download"):
            return first.message
        return f"No fault is known in it. {MEANINGS[self.verdict]}"

    @property
    def _state(self) -> str:
        """What an engine that came up does now, and how many requests it answered."""
        number = self.story.served
        requests = f"{number} request{'s'[: number != 1]}"
        if self.stopped:
            return f"was up{f' and answered {requests}' if number else ''} until it was stopped"
        return f"is up{f' and has answered {requests}' if number else ''}"

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
        self._reader = Reader(
            self._known.words | _weight.WORDS | _story.WORDS | vocabularies().words
        )
        self._teller = Teller()
        self._found: dict[str, Found] = {}
        self._gathered = Gathered()
        self._stop = 0
        self._speakers: Counter[str] = Counter()
        self._bars: dict[str, int] = {}
        self._by_word = self._known.by_word
        self._exact_words = vocabularies().exact_words
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
            if not event.ignored:
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
        pieces = _pieces(event)
        whole = len(pieces) - 2 if len(pieces) > 1 else 1
        hit = False
        if not self._by_word.keys().isdisjoint(words):
            candidates = self._candidates(event)
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
        if not hit and not self._weigh(event) and event.rows:
            # A terminal wraps lines; what looks like the rest of one may be another program's.
            for number, row in zip(event.rows, text.split("\n")[1:], strict=False):
                if row[:1] not in (" ", "\t"):
                    raw = row.encode("utf-8", "replace")
                    self._weigh(Event(number, parse_line(raw), row, words=tokens(raw)))

    def _candidates(self, event: Event) -> list[Signature]:
        """Return the signatures to try on an event, in order: causes that name no mechanism come
        last, since they may only say how it ended.
        """
        if not event.words.isdisjoint(self._exact_words):
            known = known_of(event)
            if known is not None and known.entry.exact:
                return []
        return sorted(self._known.candidates(event.words), key=lambda signature: signature.late)

    def _weigh(self, event: Event) -> bool:
        """Keep an event that no signature explains, if it has weight; whether it has."""
        line = event.line
        if line.where:
            self._speakers["vllm"] += 1
        elif len(self._speakers) < 100:
            self._speakers[line.source] += 1
        if line.level in ("INFO", "DEBUG") and not event.is_traceback:
            return False
        weight, known = _weight.weigh(event), known_of(event)
        if (
            weight is None
            and known
            and not known.entry.generic
            and not _weight.is_minor(event.text)
        ):
            weight = "fatal"
        elif weight is None and known and known.rule.by in _PLAIN and not line.where:
            weight = "exit"
        if weight is not None:
            self._gathered.add(event, weight, known)
        self._gathered.notice(event)
        return weight is not None

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
            if signature.stops and not self._ordered_to_stop():
                self._stop = event.number
            if earlier := self._found.get(signature.code):
                earlier.again(event)
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

    def diagnosis(self, *, related: bool = False) -> Diagnosis:
        """The answer to what has been read so far.

        Args:
            related: whether to look for public reports that resemble it, which takes longer.
        """
        story = self._teller.finish()
        story.answered, story.served = self._reader.answered, self._reader.served
        story.last_lines = _last_lines(self._reader.last)
        context = Context(story, self._facts, self._found, self._bars)
        judged = [j for found in self._found.values() if (j := judge(found, context)) is not None]
        causes = [j for j in judged if j.role == "cause" and j.finding.severity == "error"]
        echoes = [j for j in judged if j.role == "consequence"]
        others = [j for j in judged if j not in causes and j not in echoes]
        root, survived = self._root(causes, echoes, context)
        if root is not None and (head := self._head(root, others)):
            others.remove(head)
            causes.append(head)
        elif root is not None:
            causes.append(root.judged())
        # What killed a process is often told by the kernel, whose clock is another one: order by
        # the log's own lines. The engine's own clock tells better than the place of a line when
        # logs of several nodes follow one another.
        timed = all(j.time_s is not None for j in causes)
        causes.sort(key=lambda j: (j.rank, j.time_s if timed else 0.0, j.order))
        if not causes and echoes:
            causes, echoes = promote(echoes)
        primary = causes[0] if causes else None
        consequences = [*causes[1:], *sorted(echoes, key=lambda j: j.order)]
        states = of_story(story)
        verdict = self._verdict(primary, others, states, root)
        if primary is None:
            findings, about = self._about(verdict, story)
        else:
            findings, about = [primary.finding, *primary.alternatives], []
        similar = self._related(verdict, primary) if related else []
        findings += similar
        findings += [_later(one, causes) for one in consequences]
        findings += about
        findings += [j.finding for j in sorted(others, key=lambda j: (j.role == "noise", j.order))]
        findings += states
        if survived is not None:
            findings += recovered.findings(survived.said, evidence(survived.event))
        return Diagnosis(
            verdict,
            Findings(findings),
            primary.finding if primary else None,
            [j.finding for j in consequences],
            story,
            self._reader.lines,
            self._reader.bytes,
            primary.collect if primary else (),
            story.nvfp4_path,
            bool(self._reader.known or self._found or primary or similar),
            primary.time_s if primary else None,
            self._ordered_to_stop(),
            primary is not None and self._is_up_again([*causes, *echoes], others, states),
        )

    def _root(
        self, causes: list[Judged], echoes: list[Judged], context: Context
    ) -> tuple[Unexplained | None, Unexplained | None]:
        """Return the first fault that no signature knows, unless a known one came before it or
        close behind it, or it is no more than an ERROR line after another process had failed; and
        one that the start survived.
        """
        story, stop = context.story, context.stop.event.number if context.stop else None
        root = self._gathered.root(stop)
        if root is None and stop is not None and stop < story.start_line:
            last = self._stop if self._ordered_to_stop() else None
            root = self._gathered.root(last, story.start_line)
        if root is None:
            return None, None
        number = root.event.number
        if story.ready and story.start_line <= number < story.ready_line:
            return self._gathered.root(stop, story.ready_line), root
        first = min((j.order for j in causes), default=None)
        if first is not None and root.exact and number < first:
            first = None  # what is known of it is no less than what a signature says
        if first is not None and (first <= number + _CLOSE or not root.event.is_traceback):
            return None, None
        cut = root.event.is_traceback and not root.event.exceptions
        # The line before a traceback announces it, and is no other process's.
        before = number - 2 if cut else number
        if (cut or root.weight == "error") and any(j.order <= before for j in echoes):
            return None, None
        return root, None

    def _head(self, root: Unexplained, others: list[Judged]) -> Judged | None:
        """Return the known warning that a traceback follows: what the logger that caught the
        exception says of it, which is more than the exception or the place where a log ends.
        """
        event = root.event
        if not event.is_traceback or not event.line.where or root.exact:
            return None
        for one in others:
            found = self._found.get(one.finding.rule)
            if (
                found is not None
                and one.finding.severity == "warning"
                and one.order == event.number - 1
                and found.event.line.where == event.line.where
            ):
                return one
        return None

    def _ordered_to_stop(self) -> bool:
        """Whether the last start was: an order before it, or before it was up, is another one's."""
        story = self._teller.story
        return self._stop > max(story.start_line, story.ready_line)

    def _is_up_again(
        self, faults: list[Judged], others: list[Judged], states: list[Finding]
    ) -> bool:
        """Whether the last start came up after all the faults, and had none since."""
        story, codes = self._teller.story, {j.finding.rule for j in faults}
        lines = [found.end for code, found in self._found.items() if code in codes]
        return (
            story.ready
            and max([*lines, *(j.order for j in faults)]) < story.start_line
            and self._gathered.root(None, story.ready_line) is None
            and self._verdict(None, others, states, None) == "healthy"
        )

    def _verdict(
        self,
        primary: Judged | None,
        others: list[Judged],
        states: list[Finding],
        root: Unexplained | None,
    ) -> Verdict:
        if not self._reader.lines or not self._reader.bytes:
            return "empty"
        story = self._teller.story
        if primary is not None:
            unknown = root is not None and not root.explained and primary.order == root.event.number
            engine = bool(self._speakers["vllm"] or story.starts or story.stage)
            return _verdict.of_fault(primary, engine, unknown)
        warned = [j.finding.kind for j in others if j.finding.severity == "warning"]
        warned += [finding.kind for finding in states if finding.severity == "warning"]
        speaker = max(self._speakers, key=self._speakers.__getitem__, default="other")
        return _verdict.without_fault(
            story,
            frozenset(warned),
            stopped=self._ordered_to_stop(),
            refused=any(
                j.finding.rule == REFUSED and j.finding.severity == "warning" for j in others
            ),
            speaker=speaker,
        )

    def _related(self, verdict: Verdict, primary: Judged | None) -> list[Finding]:
        """Return known-bad combinations that the log has, and reports that resemble it."""
        if verdict in ("healthy", "starting", "stopped", "empty"):
            return []
        texts = [primary.finding.evidence or ""] if primary else []
        texts += [one.event.text[:600] for one in self._gathered.weighty(6)]
        if not (texts or self._reader.known):  # such as one sentence of a program that runs vLLM
            texts = [short(parse_line(self._reader.tail).message, 600)]
        kind = primary.finding.kind if primary else None
        known = verdict not in ("fault, cause unknown", "cut off") and kind is not None
        return [
            *_related.combinations(self._teller.story, self._facts),
            *(_related.similar(texts, kind, known) if texts else []),
        ]

    def _about(self, verdict: Verdict, story: Story) -> tuple[list[Finding], list[Finding]]:
        """Return what explains a verdict without a fault: what was under way, where that is known;
        and the rest, with warnings that may explain it.
        """
        if verdict == "healthy":
            return [], []
        state = of_verdict(
            verdict, story, self._reader.lines, parse_line(self._reader.tail).message.strip()
        )
        told, untold = self._gathered.about_warnings()
        if verdict != "cut off":
            # Next to a state, which is a note, a warning that a start survives is no more.
            return state, [replace(one, severity="info") for one in told] if state else told
        unknown = [one for one in state if one.message == UNKNOWN_STATE]
        return [one for one in state if one not in unknown], [*told, *unknown, *untold]


def _pieces(event: Event) -> list[str]:
    """Return what of an event is judged: each line by itself, and only then all of them together,
    as if a terminal had wrapped one long line.
    """
    text = event.text
    if event.code:
        return [f"{' '.join(event.code)} {event.flat}"]
    if "\n" not in text:
        return [text]
    if event.is_traceback:
        return [event.flat]
    lines = text.split("\n")
    return [*lines, event.flat, "".join(lines)]  # a terminal breaks lines inside words


def _later(judged: Judged, causes: list[Judged]) -> Finding:
    """Return the finding of a fault that came after the primary one."""
    finding = judged.finding
    known = judged in causes and finding.rule != UNKNOWN
    return finding if known else as_consequence(finding)


def _last_lines(last: dict[bytes, bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for prefix, raw in list(last.items())[:200]:
        line: Line = parse_line(raw)
        found[prefix.decode("utf-8", "replace").strip("()")] = short(line.message.strip(), 200)
    return found


def diagnose(
    source: str | bytes | Path | BinaryIO | Iterable[bytes | str], facts: Facts | None = None
) -> Diagnosis:
    """Return what a log shows.

    Args:
        source: the log itself (`str`, `bytes`), a `Path`, a binary file, or lines.
        facts: what is known about the host besides; see `sparkbook.logs.facts.parse_facts`.

    Returns:
        The diagnosis. Nothing that a log can hold makes this raise.
    """
    doctor = Doctor(facts)
    doctor.feed(source)
    return doctor.diagnosis(related=True)
