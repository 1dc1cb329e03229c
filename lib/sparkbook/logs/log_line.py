"""One line of a log: what compose, docker, journald, vLLM and others put before a message, taken
off, and who speaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LINE = 1 << 16
"""A line longer than this many bytes is cut: nothing that matters is so far to the right."""

PROCESS = re.compile(
    rb"^\s*(\((?P<process>[A-Za-z][\w.: -]{0,100}?)(?:[ _]pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?)?\)\s?)"
)
_RAISE = re.compile(r"""raise ([\w.]+)\((["'])([^"'{}]+)\2\)""")
RANK = re.compile(rb"^\[rank(\d+)\]:\s?")
JOURNAL = re.compile(
    rb"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) \S+"
    rb" (?P<unit>[\w@./-]+?)(?:\[\d+\])?: "
)
_TOOL = re.compile(rb"^\[vllm\] ?", re.IGNORECASE)
"""What some programs that start vLLM put before each of its lines."""
_DOCKER_TIME = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")
_COMPOSE = re.compile(rb"^[\w.-]+\s+\|(?: |$)")
_BUILDKIT = re.compile(rb"^(?:#\d+ )?\d+\.\d{1,3} (?=.)")
"""What `docker build` puts before each line of a step: its number, and seconds."""
_QUOTED = re.compile(rb"^(?:> ?)+(?=\S)")
"""What Markdown puts before each line of a quotation, as in an issue or a mail."""
VLLM = re.compile(
    rb"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>(?:\d{4}-)?\d\d-\d\d"
    rb" \d\d:\d\d:\d\d(?:[.,]\d+)?) \[?(?P<where>[^\]\s]+)\] ?"
)
_UVICORN = re.compile(rb"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL):?\s+(?=\S)")
_LOGGING = re.compile(
    rb"^\[?(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?[ ,]+-?"
    rb" ?(?:LMCache )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)?\b[ :-]*"
)
_GLOG = re.compile(rb"^\[?(?P<level>[IWEF])(?P<stamp>\d{4} \d\d:\d\d:\d\d(?:\.\d+)?) ")
_GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_SOURCES = (
    ("nccl", r"\bNCCL (?:INFO|WARN|ERROR)\b|ProcessGroupNCCL|ncclInternal|\[c10d\]"),
    ("tensorrt-llm", r"\[TensorRT-LLM\]"),
    ("flashinfer", r"flashinfer\.(?:jit|\w+)|\[Autotuner\]"),
    ("ray", r"\braylet\b|\bray::|\bRay(?:Task|Channel|Actor)|\(raylet\)"),
    ("kernel", r"\bNVRM\b|\bXid\b|oom-kill|oom_reaper|invoked oom-killer|Out of memory: Kill"),
    ("docker", r"\bdocker:|Error response from daemon|\bOCI runtime\b|containerd"),
    ("systemd", r"\bsystemd\b|Main process exited"),
    ("cuda", r"\bptxas\b|\bnvcc\b|\bninja\b|CUDA error"),
)
_LITERALS = (
    *("NCCL", "nccl", "c10d", "TensorRT-LLM", "flashinfer", "Autotuner", "ray", "Ray", "NVRM"),
    *("Xid", "oom", "Out of memory", "docker", "daemon", "OCI", "containerd", "systemd"),
    *("Main process", "ptxas", "nvcc", "ninja", "CUDA error"),
)
"""Each form of `_SOURCES` has one of these, and looking for them takes less time."""
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
        message, found = self.message, None
        if any(literal in message for literal in _LITERALS):
            found = next((name for name, form in _SOURCES if re.search(form, message)), None)
        return found or self.by or "other"


def is_wrapped(block: list[bytes]) -> bool:
    """Whether most lines have a prefix that compose, `docker logs -t`, journald or a quotation gave
    them.
    """
    sample = [line for line in block[:200] if line.strip()]
    return sum(unwrapped(line) is not line for line in sample) * 2 > len(sample) > 0


def unwrapped(line: bytes) -> bytes:
    """Return a line without what a quotation, compose, docker or journald put before it. Lines of
    the kernel and of services keep their prefix, which says who speaks.
    """
    if match := _QUOTED.match(line) or _TOOL.match(line):
        return unwrapped(line[match.end() :])
    if match := _COMPOSE.match(line) or _DOCKER_TIME.match(line) or _BUILDKIT.match(line):
        return line[match.end() :]
    if (match := JOURNAL.match(line)) and match["unit"].decode("utf-8", "replace") not in _UNITS:
        return line[match.end() :]
    return line


def parse_line(raw: bytes | str) -> Line:
    """Take a line's wrapping off: compose, journald, docker time, process, rank, then the logger's
    own prefix.
    """
    rest = (raw.encode("utf-8", "replace") if isinstance(raw, str) else raw)[:MAX_LINE].rstrip()
    process, pid, level, where, source = "", None, "", "", ""
    time_s: float | None = None
    if match := _DOCKER_TIME.match(rest) or _COMPOSE.match(rest):
        rest = rest[match.end() :]
    if match := JOURNAL.match(rest):
        source = _UNITS.get(match["unit"].decode("utf-8", "replace"), "")
        rest = rest[match.end() :]
    for _ in range(2):  # a worker's line may have its engine's prefix before its own
        if not (match := PROCESS.match(rest)):
            break
        process = match["process"].decode("ascii", "replace")
        pid = int(match["pid"]) if match["pid"] and len(match["pid"]) < 12 else None
        rest = rest[match.end() :]
    if match := RANK.match(rest):
        process = process or f"rank{match[1].decode()}"
        rest = rest[match.end() :]
    if match := VLLM.match(rest):
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


def raised(code: list[str]) -> str:
    """Return the exception that the last of a traceback's lines of code raises, as Python prints
    it; empty where that line does not state a whole message.
    """
    match = _RAISE.fullmatch(code[-1]) if code else None
    return f"{match[1]}: {match[3]}" if match else ""
