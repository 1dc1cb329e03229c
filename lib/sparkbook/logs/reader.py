"""Reading what engines print: any size, any encoding, in memory that does not grow.

A log of a start is a braid: several processes of vLLM, each line with its prefix; uvicorn; progress
bars that rewrite one line; tracebacks over eighty lines; NCCL, FlashInfer, TensorRT-LLM, Ray;
around them the container engine, systemd and the kernel. `events` yields what belongs together as
one `Event`, whatever the release (0.11 to 0.33) wrapped around it.

Most lines of a long log say nothing new. A line is examined closely only if it holds one of the
words that somebody waits for; of lines that are alike but for their digits, only the first is even
split into words. That is what makes 200 MB a matter of seconds.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
MAX_LINE = 1 << 16
"""A line longer than this many bytes is cut: nothing that matters stands so far to the right."""
_MAX_SHAPES = 20_000
_MAX_PROCESSES = 1_000
_OFTEN = 4
_RECENT = 4
_BORING, _SERVED = -1, -2
_MAX_EVENT_LINES = 400
_MAX_TAIL_LINES = 8
_MAX_AGE = 400

_DIGITS = b"0123456789"
_WORDS = bytes(c + 32 if 65 <= c <= 90 else c if 97 <= c <= 122 else 32 for c in range(256))
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

_PROCESS = re.compile(
    rb"^\s*(\((?P<process>[A-Za-z][\w.:-]*?)(?:[ _]pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?)?\)\s?)"
)
_RANK = re.compile(rb"^\[rank(\d+)\]:\s?")
_JOURNAL = re.compile(
    rb"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) \S+"
    rb" (?P<unit>[\w@./-]+?)(?:\[\d+\])?: "
)
_DOCKER_TIME = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")
_COMPOSE = re.compile(rb"^[\w.-]+\s+\| ")
_VLLM = re.compile(
    rb"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>(?:\d{4}-)?\d\d-\d\d"
    rb" \d\d:\d\d:\d\d(?:[.,]\d+)?) \[(?P<where>[^\]\s]+)\] ?"
)
_UVICORN = re.compile(rb"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+(?=\S)")
_LOGGING = re.compile(
    rb"^(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)[ ,]+-?"
    rb" ?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)?\b[ :-]*"
)
_GLOG = re.compile(rb"^\[?(?P<level>[IWEF])(?P<stamp>\d{4} \d\d:\d\d:\d\d(?:\.\d+)?) ")
_GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_RECORD = re.compile(
    rb"^(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[ :]|\d{4}-\d\d-\d\d[ T]|\[?[IWEF]\d{4}"
    rb" \d\d:|\[rank\d+\]:|Traceback \(most|\[TensorRT|"
    rb"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b|[A-Z][\w"
    rb" ,()/-]{3,80}:\s+\d+%|/\S+\.py:\d+: |"
    rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\S+:\d+:\d+ \[\d+\] NCCL|INFO:|\+ |FAILED:|ninja:|\["
    rb" ?\d+\.\d+\] )"
)
_KNOWN = re.compile(
    rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+\S|\[?[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d["
    rb" T]\d\d:|\([A-Za-z][\w.:-]*?[ _]pid=\d|"
    rb"\[rank\d+\]:|Traceback \(most|\S+\.py:\d+: |\S*Warning: |[A-Z][\w"
    rb" ,()/-]{3,80}:\s+\d+%|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |"
    rb"\S+:\d+:\d+ \[\d+\] NCCL|\[TensorRT|kernel: |=+ ?$|== "
)
"""How a line begins that a start of an engine prints, whoever prints it; the container's banner is
among them.
"""
_EXCEPTION = re.compile(
    rb"^(?P<name>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Fault)\d*|StopIteration))(?:\b|:)"
)
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_SOURCES = (
    ("nccl", re.compile(r"\bNCCL (?:INFO|WARN|ERROR)\b|ProcessGroupNCCL|ncclInternal|\[c10d\]")),
    ("tensorrt-llm", re.compile(r"\[TensorRT-LLM\]")),
    ("flashinfer", re.compile(r"flashinfer\.(?:jit|\w+)|\[Autotuner\]")),
    ("ray", re.compile(r"\braylet\b|\bray::|\bRay(?:Task|Channel|Actor)|\(raylet\)")),
    (
        "kernel",
        re.compile(r"\bNVRM\b|\bXid\b|oom-kill|oom_reaper|invoked oom-killer|Out of memory: Kill"),
    ),
    ("docker", re.compile(r"\bdocker:|Error response from daemon|\bOCI runtime\b|containerd")),
    ("systemd", re.compile(r"\bsystemd\b|Main process exited")),
    ("cuda", re.compile(r"\bptxas\b|\bnvcc\b|\bninja\b|CUDA error")),
)
_UNITS = {
    "kernel": "kernel",
    "systemd": "systemd",
    "dockerd": "docker",
    "containerd": "docker",
    "earlyoom": "earlyoom",
}


@dataclass(frozen=True)
class Line:
    """One line, its wrapping taken off.

    Attributes:
        message: what is left when prefixes are gone.
        process: `EngineCore`, `APIServer`, `Worker_TP1`, `rank0`, ...; empty where the line does
            not say.
        pid: process id, where the line says it.
        level: `INFO`, `WARNING`, ...; empty where the line has none.
        time_s: seconds since the turn of the year (logs give no year); None where the line has no
            time.
        where: file and line in the engine's source, such as `gpu_worker.py:436`.
        by: who wrote it, where the wrapping says so: `vllm`, `uvicorn`, `kernel`, `systemd`,
            `docker`.
    """

    message: str
    process: str = ""
    pid: int | None = None
    level: str = ""
    time_s: float | None = None
    where: str = ""
    by: str = ""

    @property
    def source(self) -> str:
        """Who speaks, also where only the words tell: `vllm`, `uvicorn`, `nccl`, `flashinfer`,
        `kernel`, `docker`, ..., `other`.
        """
        if self.by not in ("", "uvicorn", "vllm"):
            return self.by
        return (
            next((name for name, pattern in _SOURCES if pattern.search(self.message)), self.by)
            or "other"
        )


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


def parse_line(raw: bytes | str) -> Line:
    """Take a line's wrapping off: compose, journald, docker time, process, rank, then the logger's
    own prefix.
    """
    rest = (raw.encode("utf-8", "replace") if isinstance(raw, str) else raw)[:MAX_LINE].rstrip()
    process, pid, level, where, source = "", None, "", "", ""
    time_s: float | None = None
    if match := _DOCKER_TIME.match(rest) or _COMPOSE.match(rest):
        rest = rest[match.end() :]
    if match := _JOURNAL.match(rest):
        source = _UNITS.get(match["unit"].decode("utf-8", "replace"), "")
        rest = rest[match.end() :]
    if match := _PROCESS.match(rest):
        process = match["process"].decode("ascii", "replace")
        pid = int(match["pid"]) if match["pid"] and len(match["pid"]) < 12 else None
        rest = rest[match.end() :]
    if match := _RANK.match(rest):
        process = process or f"rank{match[1].decode()}"
        rest = rest[match.end() :]
    if match := _VLLM.match(rest):
        level, where, source = (
            match["level"].decode(),
            match["where"].decode("utf-8", "replace"),
            source or "vllm",
        )
        time_s = _seconds(match["stamp"])
        rest = rest[match.end() :]
    elif match := _GLOG.match(rest):
        level, time_s = _GLOG_LEVELS[match["level"].decode()], _seconds(match["stamp"])
        rest = rest[match.end() :]
    elif match := _LOGGING.match(rest):
        level, time_s = (match["level"] or b"").decode(), _seconds(match["stamp"])
        rest = rest[match.end() :]
    elif match := _UVICORN.match(rest):
        level, source = match["level"].decode(), source or "uvicorn"
        rest = rest[match.end() :]
    message = rest.decode("utf-8", "replace")
    return Line(message, process, pid, level, time_s, where, source)


def _seconds(stamp: bytes) -> float | None:
    """Seconds since the turn of the year; a 29th of February is always counted, so that the order
    of days never depends on a year.
    """
    numbers = [int(n) for n in re.findall(rb"\d+", stamp.split(b".")[0].split(b",")[0])]
    if len(numbers) == 4:  # MMDD hh:mm:ss
        numbers = [*divmod(numbers[0], 100), *numbers[1:]]
    month, day, hour, minute, second = numbers[-5:] if len(numbers) >= 5 else (0, 0, 0, 0, 0)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    fraction = re.search(rb"[.,](\d{1,6})", stamp)
    days = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)[month - 1] + day - 1
    return (
        days * 86400
        + hour * 3600
        + minute * 60
        + second
        + (float(b"0." + fraction[1]) if fraction else 0.0)
    )


class _Open:
    """An event whose lines are still coming."""

    __slots__ = ("chained", "event", "lines", "raised", "tail", "traceback", "wide")

    def __init__(self, event: Event, traceback: bool, wide: bool):
        self.event, self.traceback, self.wide = event, traceback, wide
        self.lines = 1
        self.tail = 0
        self.raised = False
        self.chained = False


def tokens(line: bytes) -> frozenset[bytes]:
    """The words of a line: runs of letters, in lower case."""
    return frozenset(line.translate(_WORDS).split())


class Reader:
    """Reads a log once and yields the events that hold one of `words` (all events where `words` is
    None).

    Attributes:
        lines: how many lines were read.
        served: how many requests were answered with 200, by the lines of the web server.
        bytes: how many bytes, line ends not counted.
        last: the last line of each process, by its prefix, as read.
        known: whether any line has the form that an engine, or what surrounds it, gives its lines.
    """

    def __init__(self, words: Iterable[str] | None = None):
        self._words = (
            None if words is None else frozenset(word.encode() for word in words) | {b"traceback"}
        )
        self.lines = 0
        self.served = 0
        self.bytes = 0
        self.last: dict[bytes, bytes] = {}
        self.known = False
        self._shapes: dict[bytes, int] = {}
        self._open: dict[bytes, _Open] = {}
        self._clock: float | None = None
        self._recent: dict[bytes, deque[tuple[int, bytes, bytes, int]]] = {}

    def read(  # noqa: C901 - every line of a log runs through here; a call a line would double it
        self, source: str | bytes | Path | BinaryIO | Iterable[bytes | str], *, more: bool = False
    ) -> Iterator[Event]:
        """Yield events in the order in which they are complete. With `more`, the last ones stay
        open for lines that are still to come.
        """
        shapes, last, opened, words = self._shapes, self.last, self._open, self._words
        number, served, recent = self.lines, 0, self._recent
        for block in blocks(source):
            self.bytes += sum(map(len, block))
            for line in block:
                number += 1
                prefix = line[: line.find(b")", 0, 80) + 1] if line[:1] == b"(" else b""
                if opened:
                    if prefix in opened:
                        if self._continue(prefix, line, number):
                            if prefix:
                                last[prefix] = line
                            continue
                        yield from self._close(prefix)
                    elif not number & 255:
                        yield from self._expire(number)
                shape = line.translate(None, _DIGITS)
                seen = shapes.get(shape)
                if seen == _BORING:
                    if prefix:
                        last[prefix] = line
                    continue
                if seen == _SERVED:
                    served += 1
                    continue
                before = last.get(prefix)
                if prefix:
                    last[prefix] = line
                if seen is None:
                    if not self.known:
                        compose = _COMPOSE.match(line)
                        bare = line[compose.end() :] if compose else line
                        self.known = (
                            bool(_KNOWN.match(bare.lstrip()[:400])) or b'HTTP/1.1" ' in line
                        )
                    if len(shapes) > _MAX_SHAPES:
                        shapes.clear()
                        recent.clear()
                    seen = 0
                    if words is not None and words.isdisjoint(
                        line[:MAX_LINE].translate(_WORDS).split()
                    ):
                        answered = b'HTTP/1.1" 200' in line
                        served += answered
                        if len(shape) < 4096:
                            shapes[shape] = _SERVED if answered else _BORING
                        continue
                if len(shape) < 4096:
                    shapes[shape] = seen + 1
                # Of a line that comes again and again, ever fewer are looked at; the last ones are
                # kept, since the end is what counts. Of the engine's own reports (tokens per
                # second) hundreds are, for the curve.
                if seen > _OFTEN:
                    halvings = seen.bit_length() - (9 if b"throughput" in line else 3)
                    if halvings > 0 and seen & ((1 << halvings) - 1):
                        kept = recent.get(shape)
                        if kept is None:
                            kept = recent[shape] = deque(maxlen=_RECENT)
                        kept.append((number, prefix, line, seen))
                        continue
                self._begin(number, prefix, line, before, seen)
            self.lines, self.served = number, self.served + served
            served = 0
            if len(last) > _MAX_PROCESSES:
                last.clear()
        if not more:
            yield from self.flush()

    def flush(self) -> Iterator[Event]:
        """The events that were still open, as they are."""
        for key in list(self._open):
            yield from self._close(key)
        passed_over = sorted(entry for kept in self._recent.values() for entry in kept)
        self._recent.clear()
        for number, prefix, line, seen in passed_over:
            self._begin(number, prefix, line, None, seen)
            if prefix in self._open:
                yield from self._close(prefix)

    def _expire(self, number: int) -> Iterator[Event]:
        """Close events whose process has been silent for long."""
        for key, other in list(self._open.items()):
            if number - other.event.number - other.lines > _MAX_AGE:
                yield from self._close(key)

    def _begin(
        self, number: int, prefix: bytes, raw: bytes, before: bytes | None, seen: int
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
        traceback = line.message.lstrip().startswith("Traceback (most recent call last)")
        event = Event(
            number,
            line,
            "" if traceback else line.message,
            time_s=time_s,
            repeats=seen,
            words=picked,
        )
        self._open[prefix] = _Open(event, traceback, len(raw) >= 70)

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
            current.lines += 1
            if _EXCEPTION.match(stripped):
                if body[:1] not in b" \t":
                    text = stripped.decode("utf-8", "replace")
                    event.exceptions.append(text)
                    event.text += ("\n" if event.text else "") + text
                    current.raised, current.tail = True, 0
                    return True
                return True
            if stripped.startswith(b"File "):
                event.frames.append(_frame(stripped))
            elif body[:1] not in b" \t" and _RECORD.match(body):
                return False
            return True
        # After the exception: its message may go on for a few lines.
        if _RECORD.match(body) or current.tail >= _MAX_TAIL_LINES:
            return False
        current.tail += 1
        current.lines += 1
        event.text += "\n" + body.rstrip().decode("utf-8", "replace")
        return True

    def _close(self, key: bytes) -> Iterator[Event]:
        current = self._open.pop(key)
        event = current.event
        if current.traceback and not event.text:
            event.text = (
                event.frames[-1]
                if event.frames
                else "Traceback without an exception: the log ends inside it"
            )
        if current.traceback:
            event.words = tokens(event.text.encode("utf-8", "replace")) | {b"traceback"}
        elif "\n" in event.text:
            event.words = tokens(event.text.encode("utf-8", "replace"))
        yield event


def _bare(raw: bytes, prefix: bytes) -> tuple[bytes, str]:
    """A line without its process, rank and logger prefix, its own indentation kept; and the
    logger's place, where it has one.
    """
    body = raw[len(prefix) :] if prefix else raw
    if prefix and body[:1] == b" ":
        body = body[1:]
    if match := _VLLM.match(body):
        return body[match.end() :], match["where"].decode("utf-8", "replace")
    if match := _RANK.match(body):
        return body[match.end() :], ""
    return body, ""


def _frame(line: bytes) -> str:
    match = re.match(rb'File "(?:.*/)?([^"/]+)", line \d+(?:, in (\S+))?', line)
    return (
        f"{match[1].decode('utf-8', 'replace')}, {(match[2] or b'?').decode('utf-8', 'replace')}"
        if match
        else ""
    )


def events(
    source: str | bytes | Path | BinaryIO | Iterable[bytes | str],
    words: Iterable[str] | None = None,
) -> Iterator[Event]:
    """The events of a log; with `words`, only those that hold one of them. See `Reader`."""
    return Reader(words).read(source)
