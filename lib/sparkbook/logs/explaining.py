"""What is known of a line of weight that no signature knows: the form another program gives it, the
part of vLLM it comes from, and what switches that part off.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace

from sparkbook.findings import Finding
from sparkbook.logs import sentences
from sparkbook.logs.judging import Judged, evidence, next_steps, short
from sparkbook.logs.places import PASSES_ON, Place, part_of, place_of
from sparkbook.logs.reader import NO_EXCEPTION, Event
from sparkbook.logs.sentences import Sentence
from sparkbook.logs.states import unknown_fault, unknown_warning
from sparkbook.logs.vocabulary import Known, vocabularies
from sparkbook.logs.weight import Weight
from sparkbook.rules import Hit

_MOST = 50
_NEAR = 12


@dataclass
class Unexplained:
    """An event of weight that no signature knows.

    Attributes:
        known: the entry of a vocabulary that it has.
        near: texts of lines shortly before it, which may name files.
    """

    event: Event
    weight: Weight
    known: Known | None
    near: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """What it says, on one line."""
        event = self.event
        said = event.text
        if event.exceptions:
            said = said[max(said.rfind(event.exceptions[-1]), 0) :]
        elif event.is_traceback:
            said = f"the log ends inside a traceback, at {said}" if said != NO_EXCEPTION else said
        process = f"{event.line.process}: " if event.line.process else ""
        where = f" (in {event.frames[-1]})" if event.exceptions and event.frames else ""
        return f"{process}{short(' '.join(said.split()), 240)}{where}"

    @property
    def explained(self) -> bool:
        """Whether its vocabulary says more than that something went wrong."""
        return self.known is not None and not self.known.entry.generic

    @property
    def exact(self) -> bool:
        """Whether its vocabulary says as much as a signature would."""
        return self.known is not None and self.known.entry.exact

    def judged(self) -> Judged:
        """Return the judgement of it, as a cause."""
        place = place_of(self.event, self.near)
        if self.known is not None and self.explained:
            finding = self._of_vocabulary(self.known, place)
            by, collect = self._by(), self.known.entry.wanted
        else:
            said = self.sentence()
            part = place.part if place else None
            if said and (part is None or part.name in PASSES_ON):
                part = part_of(f"{said.module.replace('.', '/')}.py") or part
            about = f" {self.known.means}" if self.known else ""
            about += _of_sentence(said) if said else _of_place(place)
            advice = f"{self.known.do} " if self.known else ""
            advice += _options(said) + (f"{part.switch} " if part else "")
            (finding,) = unknown_fault.findings(self.said, evidence(self.event), about, advice)
            by = self._by()
            collect = ("the 50 lines before it", "the launch line", "the release")
            collect += part.collect if part else ()
        return Judged(
            finding=finding,
            role="cause",
            order=self.event.number,
            rank=1,
            alternatives=[],
            collect=collect,
            time_s=self.event.time_s,
            by=by,
        )

    def _by(self) -> str:
        """Return who says it, as the verdict names it."""
        if self.weight == "answer" and not self.event.line.where:
            return "client"
        return self.known.rule.by if self.known else self.event.line.source

    def sentence(self) -> Sentence | None:
        """Return what is known of the sentence, if a program is known to say it."""
        event = self.event
        text = event.exceptions[-1] if event.exceptions else event.text.split("\n", 1)[0]
        if event.exceptions:
            text = event.text[max(event.text.rfind(text), 0) :]
        where = f"[{event.line.where}] " if event.line.where else ""
        found = sentences.lookup(where + " ".join(text.split())[:2_000])
        return next((one for one in found if one.kind not in ("info", "text")), None)

    def _of_vocabulary(self, known: Known, place: Place | None) -> Finding:
        entry, said = known.entry, short(self.said, 200).rstrip(" .:")
        return known.rule.finding(
            Hit(
                f"{known.means}{_of_place(place)} The log says: {said}.",
                evidence=evidence(self.event),
                fix=f"{known.do}{next_steps(entry.wanted)}",
                kind=entry.kind or (place.part.kind if place else None),
            )
        )


def _of_place(place: Place | None) -> str:
    return f" It comes from {place.part.title} ({place.where})." if place else ""


def _of_sentence(said: Sentence) -> str:
    """Return who says a sentence, in which releases, under which condition."""
    first, last = said.releases[0][0], said.releases[-1][1]
    spans = f"{first} to {last}" if last else f"since {first}"
    name = "vLLM" if said.package == "vllm" else said.package
    function = f" in {said.function}" if said.function else ""
    fields = ", ".join(said.condition_fields[:4])
    condition = f"; it depends on {fields}" if fields else ""
    return f" {name} says it{function} ({said.module}; {name} {spans}){condition}."


def _options(said: Sentence | None) -> str:
    if said is None or not said.options:
        return ""
    return f"Check the options that it depends on: {', '.join(said.options[:4])}. "


_SPEAKER = re.compile(r"(?:\[?[IW]\d{4} [\d:.]+ +)?\d+ \S+:\d+\]")
"""The file that says a line: of a note, not the file that a fault near it comes from."""


@dataclass
class Gathered:
    """The lines of weight of a log that no signature knows, as they come."""

    faults: list[Unexplained] = field(default_factory=list)
    warnings: dict[int | None, Unexplained] = field(default_factory=dict)
    _near: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_NEAR))

    def notice(self, event: Event) -> None:
        """Remember a line for what comes next to it."""
        quiet = event.line.level in ("INFO", "WARNING")
        text = _SPEAKER.sub("", event.text[:400]) if quiet else event.text[:400]
        self._near.append((event.number, text))

    def add(self, event: Event, weight: Weight, known: Known | None) -> None:
        """Take in an event of weight."""
        near = tuple(text for number, text in self._near if event.number - number <= _NEAR)
        one = Unexplained(event, weight, known, near)
        if weight == "warning":
            if len(self.warnings) < _MOST:
                self.warnings.setdefault(event.shape, one)
        elif len(self.faults) < _MOST:
            self.faults.append(one)

    def root(self, before: int | None, after: int = 0) -> Unexplained | None:
        """Return the fault to look into first, of those between two lines."""
        faults = [
            one
            for one in self.faults
            if one.event.number > after and (before is None or one.event.number < before)
        ]
        order = {"fatal": 0, "answer": 0, "error": 1, "exit": 2, "warning": 3}
        return min(
            faults,
            key=lambda one: (
                order[one.weight],
                not one.explained,
                one.event.is_traceback and not one.event.exceptions,
                one.event.number,
            ),
            default=None,
        )

    def weighty(self, most: int) -> list[Unexplained]:
        """Return the first faults and warnings that nothing explains."""
        return [*self.faults[:most], *list(self.warnings.values())[:most]][:most]

    def about_warnings(self) -> tuple[list[Finding], list[Finding]]:
        """Return the findings of warnings that a vocabulary knows, and the first of the others."""
        known = [
            replace(one.judged().finding, severity="warning")
            for one in self.warnings.values()
            if one.explained
        ]
        others = (one for one in self.warnings.values() if not one.explained)
        if (one := next(others, None)) is None:
            return known[:2], []
        said = one.sentence()
        about = _of_sentence(said) if said else _of_place(place_of(one.event))
        return known[:2], list(
            unknown_warning.findings(one.said, evidence(one.event), about, one.event.repeats + 1)
        )


def known_of(event: Event) -> Known | None:
    """Return the vocabulary's entry that an event has."""
    return vocabularies().search(event)
