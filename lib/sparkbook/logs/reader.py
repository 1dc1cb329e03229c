"""Reading what engines print: any size, any encoding, in memory that does not grow.

A log of a start is a braid: several processes of vLLM, each line with its prefix; uvicorn; progress
bars that rewrite one line; tracebacks over eighty lines; NCCL, FlashInfer, TensorRT-LLM, Ray;
around them the container engine, systemd and the kernel. `events` yields what belongs together as
one `Event`, whatever the release (0.11 to 0.33) wrapped around it.

Most lines of a long log say nothing new. A line is examined closely only if it holds one of the
words that somebody waits for, which is found out for many lines at once; of lines that are alike
but for their digits, ever fewer are. That is what makes 200 MB a matter of seconds.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from sparkbook.logs.log_line import (
    MAX_LINE,
    PROCESS,
    RANK,
    VLLM,
    Line,
    is_wrapped,
    parse_line,
    raised,
    unwrapped,
)
from sparkbook.util import limits

CHUNK = 1 << 20
_MAX_SHAPES = 20_000
_MAX_PROCESSES = 1_000
_OFTEN = 4
_RECENT = 4
_SAMPLE = 400
_MAX_EVENT_LINES = 400
_MAX_TAIL_LINES = 8
_MAX_AGE = 400

_DIGITS = b"0123456789"
_WORDS = bytes(c + 32 if 65 <= c <= 90 else c if 97 <= c <= 122 else 32 for c in range(256))
_LINES = _WORDS[:10] + b"\n" + _WORDS[11:]
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_RECORD = re.compile(
    rb"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]|\d{4}-\d\d-\d\d[ T]|\[?[IWEF]\d{4}"
    rb" \d\d:|\[rank\d+\]:|Traceback \(most|\[TensorRT|"
    rb"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b|[A-Z][\w"
    rb" ,()/-]{3,80}:\s+\d+%|/\S+\.py:\d+: |"
    rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\S+:\d+:\d+ \[\d+\] NCCL|INFO:|\+ |FAILED:|ninja:|"
    rb"\(raylet[),]|\["
    rb" ?\d+\.\d+\] )"
)
_KNOWN = re.compile(
    rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+\S|\[?[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d["
    rb" T]\d\d:|\([A-Za-z][\w.:-]*?[ _]pid=\d|"
    rb"\[rank\d+\]:|Traceback \(most|\S+\.py:\d+: |\S*Warning: |[A-Z][\w"
    rb" ,()/-]{3,80}:\s+\d+%|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |"
    rb"\S+:\d+:\d+ \[\d+\] NCCL|\[TensorRT|kernel: |=+ ?$|== |"
    rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+\] LMCache "
)
"""How a line begins that a start of an engine prints, whoever prints it; the container's banner is
among them.
"""
_CLIENTS = re.compile(
    rb"\[[\w./-]+:\d+\] (?:Received request|Generated response|Request .*? details:) [^\n]*"
)
"""What vLLM logs of a request or an answer: a client chose the words, and its id as well."""
_CLIENTS_WORDS = (
    b"] Received request ",
    b"] Generated response ",
    b" details: prompt",
    b"The model `",
)
_CLIENTS_MODEL = re.compile(rb"(?<=ErrorInfo\(message=.The model `)[^\n]*(?=` does not exist)")
_ANSWERED = re.compile(
    rb"^[^\"'\n]{0,160}(?<=[\d ] - )\"(POST /v1/(?=\S)|[A-Z]+ /)\S* HTTP/1\.[01]\" 200\b",
    re.MULTILINE,
)
"""The web server's own line of a request that was answered with 200: nothing quoted before it."""
_EXCEPTION = re.compile(
    rb"^(?P<name>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Fault)\d*(?:_[A-Z]\w*)?|StopIteration|Exception(?=:)))(?:\b|:)"
)
_WEIGHTY = (b"rror", b"xception", b"Timeout", b"Fault", b'File "', b"vllm/", b"-packages/")
"""What a line may have in it that says what went wrong, or where, without an awaited word."""
_FRAME = re.compile(rb'^\s*File "[^"\n]{1,300}", line \d+(?:, in \S+)?\s*$')
_IGNORED = b"Exception ignored "
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
NO_EXCEPTION = "Traceback without an exception: the log ends inside it"


@dataclass
class Event:
    """What belongs together: a line and its continuation, or a whole traceback.

    Attributes:
        number: number of its first line, from 1.
        line: its first line, parsed; of a traceback, the line of the exception.
        text: first line and continuation lines without prefixes; of a traceback, only the
            exceptions and what they say.
        frames: of a traceback, its `file, function` places in order.
        exceptions: of a traceback, its exception lines in order: with chained ones, the cause comes
            first.
        time_s: the line's own time, or the last one its process gave before.
        words: the words for which it was picked out.
        repeats: how many lines like this one (digits aside) came before.
        rows: numbers of the continuation lines in `text`, which other processes' lines may stand
            between; none of a traceback.
        shape: what lines that are alike but for their digits share; None of a very long line.
        paths: of a traceback, the file of each frame as printed.
        code: of half a traceback, one without its head, the lines of code in it.
        ignored: whether Python said before it that the exception is ignored, as at the end of a
            process: it is nobody's cause.
    """

    number: int
    line: Line
    text: str
    frames: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    time_s: float | None = None
    words: frozenset[bytes] = frozenset()
    repeats: int = 0
    rows: list[int] = field(default_factory=list)
    shape: int | None = None
    paths: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    ignored: bool = False

    @property
    def flat(self) -> str:
        """The text on one line, for patterns that must not care where it was wrapped."""
        return " ".join(self.text.split())

    @property
    def is_traceback(self) -> bool:
        """Whether this is a traceback."""
        return bool(self.frames or self.exceptions)


def blocks(source: str | bytes | Path | BinaryIO | Iterable[bytes | str]) -> Iterator[list[bytes]]:
    """A log as lists of lines: colour codes removed, carriage returns of progress bars made line
    ends, UTF-16 and byte order marks undone.

    A `str` or `bytes` is the log itself; a `Path` or a binary file is read piece by piece.
    """
    decoder = None
    rest, first = b"", True
    for piece in _pieces(source):
        if first:
            first = False
            decoder, piece = _encoding(piece)
        if decoder:
            piece = decoder.decode(piece).encode("utf-8", "replace")
        if b"\x1b" in piece:
            piece = _ANSI.sub(b"", piece)
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if len(rest) > CHUNK:
            lines.append(rest[:MAX_LINE])
            rest = b""
        yield lines
    if rest:
        yield [rest]


def _pieces(source: str | bytes | Path | BinaryIO | Iterable[bytes | str]) -> Iterator[bytes]:
    if isinstance(source, str):
        source = source.encode("utf-8", "replace")
    if isinstance(source, bytes):
        for begin in range(0, len(source), CHUNK):
            yield source[begin : begin + CHUNK]
    elif isinstance(source, Path):
        with source.open("rb") as file:
            limits.refuse_device(file, str(source))
            yield from _pieces(file)
    elif hasattr(source, "read"):
        while piece := source.read(CHUNK):
            yield piece.encode("utf-8", "replace") if isinstance(piece, str) else piece
    else:
        for item in source:
            yield (item.encode("utf-8", "replace") if isinstance(item, str) else item).rstrip(
                b"\r\n"
            ) + b"\n"


def _encoding(piece: bytes) -> tuple[codecs.IncrementalDecoder | None, bytes]:
    """A decoder where the bytes are not UTF-8 or its like already; the first piece without its byte
    order mark.
    """
    for mark, name in (
        (codecs.BOM_UTF8, None),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if piece.startswith(mark):
            return name and codecs.getincrementaldecoder(name)("replace"), piece[len(mark) :]  # type: ignore[return-value]
    sample = piece[:4096]
    if len(sample) > 8 and sample.count(0) > len(sample) * 0.3:
        name = "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
        return codecs.getincrementaldecoder(name)("replace"), piece
    return None, piece


class _Open:
    """An event whose lines are still coming."""

    __slots__ = (
        "chained",
        "event",
        "half",
        "indent",
        "lines",
        "raised",
        "tail",
        "traceback",
        "wide",
    )

    def __init__(self, event: Event, traceback: bool, wide: bool):
        self.event, self.traceback, self.wide = event, traceback, wide
        self.half = False
        self.indent = 0
        self.lines = 1
        self.tail = 0
        self.raised = False
        self.chained = False


def is_known(line: bytes) -> bool:
    """Return whether a line has the form that an engine, or what surrounds it, gives its lines."""
    return bool(_KNOWN.match(line.lstrip()[:400])) or b'HTTP/1.1" ' in line


def tokens(line: bytes) -> frozenset[bytes]:
    """The words of a line: runs of letters, in lower case."""
    return frozenset(line.translate(_WORDS).split())


class Reader:
    """Reads a log once and yields the events that hold one of `words` (all events where `words` is
    None).

    Attributes:
        lines: how many lines were read.
        answered: how many requests were answered with 200, by the lines of the web server.
        served: how many of them let the engine generate (POST to /v1/…).
        bytes: how many bytes, line ends not counted.
        last: the last line of each process, by its prefix, as read.
        known: whether any line has the form that an engine, or what surrounds it, gives its lines.
        tail: the last line that says something.
    """

    def __init__(self, words: Iterable[str] | None = None):
        self._words = (
            None if words is None else frozenset(word.encode() for word in words) | {b"traceback"}
        )
        self.lines = 0
        self.answered = 0
        self.served = 0
        self.bytes = 0
        self.last: dict[bytes, bytes] = {}
        self.known = False
        self.tail = b""
        self._wrapped: bool | None = None
        self._shapes: dict[bytes, int] = {}
        self._open: dict[bytes, _Open] = {}
        self._ignored: set[bytes] = set()
        self._clock: float | None = None
        self._recent: dict[bytes, deque[tuple[int, bytes, bytes, int]]] = {}

    def read(
        self, source: str | bytes | Path | BinaryIO | Iterable[bytes | str], *, more: bool = False
    ) -> Iterator[Event]:
        """Yield events in the order in which they are complete. With `more`, the last ones stay
        open for lines that are still to come.
        """
        opened = self._open
        for block in blocks(source):
            self.bytes += sum(map(len, block))
            if self._wrapped is None and any(line.strip() for line in block):
                self._wrapped = is_wrapped(block)
            if self._wrapped:
                block = [unwrapped(line) for line in block]
            block = _without_clients_words(block)
            self.tail = next((one for one in reversed(block) if one.strip()), self.tail)
            awaited = self._awaited(block)
            begin, number = 0, self.lines
            while begin < len(block):
                end = begin if opened else awaited.find(1, begin)
                if end != begin:  # nothing is open, and nobody waits for what these lines say
                    end = len(block) if end < 0 else end
                    self._pass_over(block[begin:end])
                    begin = end
                    continue
                yield from self._take(number + begin + 1, block[begin], bool(awaited[begin]))
                begin += 1
            self.lines = number + len(block)
            if len(self.last) > _MAX_PROCESSES:
                self.last.clear()
        if not more:
            yield from self.flush()

    def _awaited(self, block: list[bytes]) -> bytes:
        """Return for each line whether somebody waits for what it says: 1, or 0."""
        words = self._words
        if words is None:
            return bytes([1]) * len(block)
        whole = b"\n".join(block)
        sample = block[:_SAMPLE]
        if len({line.translate(None, _DIGITS) for line in sample}) * 4 < len(sample):
            shapes = whole.translate(None, _DIGITS).split(b"\n")
            examples = dict(zip(shapes, block, strict=True))
            silent = {
                shape: words.isdisjoint(line.translate(_WORDS).split())
                for shape, line in examples.items()
            }
            plain = [silent[shape] for shape in shapes]
        else:
            lines = whole.translate(_LINES).split(b"\n")
            plain = [words.isdisjoint(line.split()) for line in lines]
        for part in _WEIGHTY:
            if part in whole:
                for place, line in enumerate(block):
                    if plain[place] and part in line:
                        plain[place] = False
        return bytes(not one for one in plain)

    def _pass_over(self, lines: list[bytes]) -> None:
        """Take notice of lines that nobody waits for."""
        self.known = self.known or any(map(is_known, lines))
        answered = _ANSWERED.findall(b"\n".join(lines))
        self.answered += len(answered)
        self.served += answered.count(b"POST /v1/")
        self.last.update(
            (line[: line.find(b")", 0, 80) + 1], line)
            for line in lines
            if line[:1] == b"(" and b")" in line[:80]
        )

    def _take(self, number: int, line: bytes, awaited: bool) -> Iterator[Event]:
        """Give a line to the event of its process that is open, or begin a new one with it."""
        opened, shapes = self._open, self._shapes
        prefix = line[: line.find(b")", 0, 80) + 1] if line[:1] == b"(" else b""
        before = self.last.get(prefix)
        if prefix:
            self.last[prefix] = line
        if prefix in opened:
            if self._continue(prefix, line, number):
                return
            yield from self._close(prefix)
        elif opened and not number & 255:
            yield from self._expire(number)
        if not awaited:
            self._pass_over([line])
            return
        self.known = self.known or is_known(line)
        shape = line.translate(None, _DIGITS)
        seen = shapes.get(shape, 0)
        if len(shapes) > _MAX_SHAPES:
            shapes.clear()
            self._recent.clear()
        if len(shape) < 4096:
            shapes[shape] = seen + 1
        # Of a line that comes again and again, ever fewer are looked at; the last ones are kept,
        # since the end is what counts. Of the engine's own reports (tokens per second) hundreds
        # are, for the curve.
        if seen > _OFTEN:
            halvings = seen.bit_length() - (9 if b"throughput" in line else 3)
            if halvings > 0 and seen & ((1 << halvings) - 1):
                kept = self._recent.setdefault(shape, deque(maxlen=_RECENT))
                kept.append((number, prefix, line, seen))
                return
        self._begin(number, prefix, line, before, (seen, hash(shape)))
        if _IGNORED in line:
            self._ignored.add(prefix)

    def flush(self) -> Iterator[Event]:
        """The events that were still open, as they are."""
        for key in list(self._open):
            yield from self._close(key)
        passed_over = sorted(
            (*entry, hash(shape)) for shape, kept in self._recent.items() for entry in kept
        )
        self._recent.clear()
        for number, prefix, line, seen, shape in passed_over:
            self._begin(number, prefix, line, None, (seen, shape))
            if prefix in self._open:
                yield from self._close(prefix)

    def _expire(self, number: int) -> Iterator[Event]:
        """Close events whose process has been silent for long."""
        for key, other in list(self._open.items()):
            if number - other.event.number - other.lines > _MAX_AGE:
                yield from self._close(key)

    def _begin(
        self,
        number: int,
        prefix: bytes,
        raw: bytes,
        before: bytes | None,
        alike: tuple[int, int],
    ) -> None:
        line = parse_line(raw)
        if not line.message.strip() and self._words is not None:
            return
        time_s = line.time_s
        if time_s is None and before is not None:
            time_s = parse_line(before).time_s
        if time_s is None:
            time_s = self._clock
        self._clock = time_s
        picked = tokens(raw[:MAX_LINE])
        frame = _FRAME.match(line.message.encode("utf-8", "replace"))
        traceback = bool(frame) or line.message.lstrip().startswith("Traceback (most recent call")
        ignored = traceback and prefix in self._ignored
        self._ignored.discard(prefix)
        event = Event(
            number,
            line,
            "" if traceback else line.message,
            ignored=ignored,
            time_s=time_s,
            repeats=alike[0],
            words=picked,
            shape=alike[1] if len(raw) < 4096 else None,
        )
        current = self._open[prefix] = _Open(event, traceback, len(raw) >= 70)
        indent = len(line.message) - len(line.message.lstrip())
        if frame:  # half a traceback: its head was not pasted
            current.half, indent = True, max(indent - 2, 0)
            _add_frame(event, line.message.strip().encode("utf-8", "replace"))
        current.indent = indent if traceback else 0

    def _continue(self, prefix: bytes, raw: bytes, number: int) -> bool:
        """Give a line to the open event of its process; False where it belongs to something new."""
        current = self._open[prefix]
        body, where = _bare(raw, prefix)
        if where and not (current.traceback and where == current.event.line.where):
            # a logger's line begins something new, unless the logger prints the traceback line by
            # line
            return False
        if current.traceback:
            return self._in_traceback(current, body)
        if (
            current.lines > _MAX_TAIL_LINES
            or not body.strip()
            or _RECORD.match(body.lstrip() if prefix else body)
            or not (body[:1] in b" \t" or current.wide)
        ):
            return False
        current.event.text += "\n" + body[:MAX_LINE].decode("utf-8", "replace")
        current.event.rows.append(number)
        current.lines += 1
        current.wide = len(raw) >= 70
        return True

    @staticmethod
    def _in_traceback(current: _Open, body: bytes) -> bool:
        event = current.event
        stripped = body.strip()
        if current.lines >= _MAX_EVENT_LINES:
            return False
        if not stripped:
            # An empty line may stand between chained tracebacks, or end the last one.
            current.tail += 1
            return current.tail <= 2 or not current.raised
        if stripped.startswith(_CHAINED):
            current.lines += 1
            current.raised, current.chained, current.tail = False, True, 0
            return True
        if stripped.startswith(b"Traceback (most recent"):
            if current.raised and not current.chained:
                return False
            current.raised, current.chained, current.tail = False, False, 0
            return True
        if not current.raised:
            return Reader._before_the_exception(current, body, stripped)
        # After the exception: its message may go on for a few lines.
        if _RECORD.match(body) or current.tail >= _MAX_TAIL_LINES:
            return False
        current.tail += 1
        current.lines += 1
        event.text += "\n" + body.rstrip().decode("utf-8", "replace")
        return True

    @staticmethod
    def _before_the_exception(current: _Open, body: bytes, stripped: bytes) -> bool:
        event, indent = current.event, len(body) - len(body.lstrip())
        current.lines += 1
        if _EXCEPTION.match(stripped):
            if indent <= current.indent:
                text = stripped.decode("utf-8", "replace")
                event.exceptions.append(text)
                event.text += ("\n" if event.text else "") + text
                current.raised, current.tail = True, 0
        elif stripped.startswith(b"File "):
            _add_frame(event, stripped)
        elif not indent and (_RECORD.match(body) or stripped.startswith(b'{"')):
            return False
        elif current.half:
            event.code.append(stripped.decode("utf-8", "replace"))
        return True

    def _close(self, key: bytes) -> Iterator[Event]:
        current = self._open.pop(key)
        event = current.event
        if current.traceback and not event.text:
            said = raised(event.code)
            event.exceptions += [said] if said else []
            event.text = said or (event.frames[-1] if event.frames else NO_EXCEPTION)
        if current.traceback:
            said = "\n".join([event.text, *event.code])
            event.words = tokens(said.encode("utf-8", "replace")) | {b"traceback"}
        elif "\n" in event.text:
            event.words = tokens(event.text.encode("utf-8", "replace"))
        yield event


def _without_clients_words(block: list[bytes]) -> list[bytes]:
    """Return lines without what clients made the engine log: nobody may forge a fault with it."""
    whole = b"\n".join(block)
    if any(part in whole for part in _CLIENTS_WORDS):
        return [_CLIENTS_MODEL.sub(b"...", _CLIENTS.sub(_head, line)) for line in block]
    return block


def _head(match: re.Match[bytes]) -> bytes:
    place, _, said = match[0].partition(b"] ")
    return place + b"] " + b" ".join(said.split(b" ", 2)[:2])


def _bare(raw: bytes, prefix: bytes) -> tuple[bytes, str]:
    """A line without its process, rank and logger prefix, its own indentation kept; and the
    logger's place, where it has one.
    """
    body = raw[len(prefix) :] if prefix else raw
    if prefix and body[:1] == b" ":
        body = body[1:]
    if body[:1] == b"(" and prefix and b"pid=" in body[:40] and (own := PROCESS.match(body)):
        body = body[own.end() :]
    if match := VLLM.match(body):
        return body[match.end() :], match["where"].decode("utf-8", "replace")
    if match := RANK.match(body):
        return body[match.end() :], ""
    return body, ""


def _add_frame(event: Event, line: bytes) -> None:
    match = re.match(rb'File "((?:.*/)?([^"/]+))", line \d+(?:, in (\S+))?', line)
    path, file, function = (
        ((part or b"?").decode("utf-8", "replace") for part in match.groups())
        if match
        else ("", "", "")
    )
    event.paths.append(path)
    event.frames.append(f"{file}, {function}" if match else "")


def events(
    source: str | bytes | Path | BinaryIO | Iterable[bytes | str],
    words: Iterable[str] | None = None,
) -> Iterator[Event]:
    """The events of a log; with `words`, only those that hold one of them. See `Reader`."""
    return Reader(words).read(source)
