"""The reader: prefixes of processes and ranks, progress bars, colours, encodings, tracebacks, and
memory that does not grow.
"""

import io
import tracemalloc

import pytest
from sparkbook import logs
from sparkbook.errors import SparkbookError
from sparkbook.logs.reader import Reader, blocks, events, parse_line


def flat(source):
    return [line for block in blocks(source) for line in block]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "(EngineCore_DP0 pid=272) INFO 11-27 23:57:14 [core.py:114] hello",
            ("EngineCore_DP0", "INFO", "core.py:114", "hello", "vllm"),
        ),
        (
            "(EngineCore_0 pid=272) ERROR 2025-10-03 23:57:14 [core.py:114] hello",
            ("EngineCore_0", "ERROR", "core.py:114", "hello", "vllm"),
        ),
        (
            "(Worker_TP1 pid=9) WARNING 11-27 23:57:14.123 [x.py:1] w",
            ("Worker_TP1", "WARNING", "x.py:1", "w", "vllm"),
        ),
        (
            "INFO 11-27 23:57:14 [core.py:114] no process",
            ("", "INFO", "core.py:114", "no process", "vllm"),
        ),
        (
            "INFO:     Application startup complete.",
            ("", "INFO", "", "Application startup complete.", "uvicorn"),
        ),
        (
            "[rank3]:[W1127 23:51:28.977372923 ProcessGroupNCCL.cpp:1575] Warning: x",
            ("rank3", "WARNING", "", None, "nccl"),
        ),
        (
            (
                "(EngineCore pid=94) 2026-04-01 17:57:12,303 - INFO - autotuner.py:455 -"
                " flashinfer.jit: [Autotuner]: x"
            ),
            ("EngineCore", "INFO", "", None, "flashinfer"),
        ),
        ("[TensorRT-LLM][DEBUG] SM121: skipping", ("", "", "", None, "tensorrt-llm")),
        ("Nov 27 10:00:00 spark kernel: NVRM: Xid 31", ("", "", "", "NVRM: Xid 31", "kernel")),
        (
            "Nov 27 10:00:00 spark vllm[12]: (EngineCore pid=1) ERROR 11-27 10:00:00 [c.py:1] boom",
            ("EngineCore", "ERROR", "c.py:1", "boom", "vllm"),
        ),
        (
            "2026-11-27T10:00:00.123456789Z INFO 11-27 10:00:00 [c.py:1] docker logs -t",
            ("", "INFO", "c.py:1", "docker logs -t", "vllm"),
        ),
        (
            "vllm-1  | INFO 11-27 10:00:00 [c.py:1] compose",
            ("", "INFO", "c.py:1", "compose", "vllm"),
        ),
        (
            "(RayWorkerWrapper pid=8, ip=10.0.0.2) INFO 11-27 10:00:00 [c.py:1] ray",
            ("RayWorkerWrapper", "INFO", "c.py:1", "ray", "vllm"),
        ),
    ],
)
def test_prefixes(raw, expected):
    line = parse_line(raw)
    process, level, where, message, source = expected
    assert (line.process, line.level, line.where, line.source) == (process, level, where, source)
    assert message is None or line.message == message


def test_times_are_in_order():
    stamps = ["11-27 23:59:59", "11-28 00:00:01", "12-31 23:59:59"]
    times = [parse_line(f"INFO {stamp} [x.py:1] x").time_s for stamp in stamps]
    assert times == sorted(times) and times[1] - times[0] == 2
    assert parse_line("INFO 13-45 99:00:00 [x.py:1] x").time_s is None


def test_bars_colours_and_encodings():
    assert flat("a 0%\ra 50%\ra 100%\nb\r\nc") == [b"a 0%", b"a 50%", b"a 100%", b"b", b"c"]
    assert flat(b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b[K") == [b"red x"]
    text = "INFO 11-27 10:00:00 [x.py:1] Größe ▄█\nOSError: [Errno 98] Address already in use\n"
    for name in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"):
        assert logs.diagnose(text.encode(name)).primary.kind == "port-in-use", name
    assert logs.diagnose(text.encode("latin-1", "replace")).primary.kind == "port-in-use"


def test_sources(tmp_path):
    text = "OSError: [Errno 98] Address already in use\n"
    file = tmp_path / "a.log"
    file.write_text(text)
    for source in (text, text.encode(), file, io.BytesIO(text.encode()), text.splitlines()):
        assert logs.diagnose(source).primary.kind == "port-in-use"


TRACE = """\
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512] Traceback (most recent call last):
(APIServer pid=1) INFO 11-28 00:14:49 [x.py:1] in between
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512]   File "/usr/lib/vllm/v1/worker/gpu_worker.py", line 12, in load
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512]     raise ValueError("no")
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512] ValueError: the first
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512]
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512] The above exception was the direct cause of the following exception:
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512]
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512]   File "/usr/lib/vllm/v1/engine/core.py", line 9, in run
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512]     go()
(EngineCore pid=5) ERROR 11-28 00:14:49 [core.py:1512] RuntimeError: the second
(EngineCore pid=5)   and what it goes on to say
(EngineCore pid=5) INFO 11-28 00:14:50 [core.py:1] afterwards
"""


def test_a_traceback_is_one_event():
    found = [event for event in events(TRACE) if event.is_traceback]
    assert len(found) == 1
    assert found[0].exceptions == ["ValueError: the first", "RuntimeError: the second"]
    assert found[0].frames == ["gpu_worker.py, load", "core.py, run"]
    assert (
        "goes on" in found[0].text
        and "afterwards" not in found[0].text
        and found[0].line.process == "EngineCore"
    )


def test_an_unknown_fault_is_quoted():
    diagnosis = logs.diagnose(TRACE)
    assert diagnosis.verdict == "fault, cause unknown" and diagnosis.primary.rule == "LOG900"
    assert (
        "RuntimeError: the second" in diagnosis.primary.message
        and "core.py, run" in diagnosis.primary.message
    )
    assert "EngineCore" in diagnosis.primary.evidence


def test_the_first_fault_of_any_rank_wins():
    text = (
        "(Worker_TP0 pid=1) INFO 11-28 10:00:00 [x.py:1] fine\n(Worker_TP1 pid=2) ERROR 11-28"
        " 10:00:01 [x.py:1] RuntimeError: CUDA error: an illegal instruction was"
        " encountered\n(Worker_TP0 pid=1) ERROR 11-28 10:00:09 [x.py:1] TimeoutError: RPC call to"
        " sample_tokens timed out.\n[rank0]:[W1128 10:00:09.1 TCPStore.cpp:106] [c10d] sendBytes"
        " failed: Broken pipe\n"
    )
    diagnosis = logs.diagnose(text)
    assert diagnosis.primary.kind == "illegal-instruction"
    assert {f.rule for f in diagnosis.consequences} == {"LOG505", "LOG511"}
    assert [f.severity for f in diagnosis.findings if f.rule == "LOG511"] == ["info"]


def test_wrapped_lines_are_read_together():
    line = (
        "ValueError: Free memory on device cuda:0 (98.9/121.69 GiB) on startup is less than desired"
        " GPU memory utilization (0.92, 111.95 GiB). Decrease GPU memory utilization or reduce GPU"
        " memory used by other processes."
    )
    for width in (80, 100, 120):
        wrapped = "\n".join(line[i : i + width] for i in range(0, len(line), width))
        assert logs.diagnose(wrapped).primary.kind == "oom-startup-check", width


@pytest.mark.slow
def test_memory_stays_small():
    """At 12,000 lines of 12,000 processes the peak is 1.7 MiB, and 1.8 at twice as many; a reader
    that kept its lines would pass 3 MiB.
    """

    def endless():
        for number in range(12_000):
            yield (
                f"(P{number} pid={number}) INFO 11-28 00:00:00 [x.py:1] request {number:x} of"
                f" {number * 7:x} waits in graph took\n"
            ).encode()

    reader = Reader({"graph", "took"})
    tracemalloc.start()
    for _ in reader.read(endless()):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reader.lines == 12_000 and peak < 3 * 2**20


def test_one_line_without_an_end_is_cut():
    diagnosis = logs.diagnose(b"x" * 5_000_000 + b"\nOSError: [Errno 98] Address already in use\n")
    assert diagnosis.primary.kind == "port-in-use"


@pytest.mark.parametrize(
    "text",
    [
        "MemTotal:       127537152 kB\nMemFree:  1 kB\nMemAvailable:   106325606 kB\n",
        '{"host": {"memory": {"total_bytes": 130597904384, "available_bytes": 108877420544}}}',
        "total: 121.63 GiB\nMemAvailable: 101.4",
        "memory_total_gib: 121.63\nmemory_available_gib: 101.4\n",
    ],
)
def test_facts(text):
    facts = logs.parse_facts(text)
    assert facts.total_gib == pytest.approx(
        121.63, abs=0.01
    ) and facts.available_gib == pytest.approx(101.4, abs=0.01)


def test_no_facts():
    with pytest.raises(SparkbookError, match="nothing that is known"):
        logs.parse_facts("hello: world")


def test_an_exception_that_python_ignores_is_no_cause():
    """What a process prints at its end, after another one was killed."""
    log = (
        "(Worker_TP0 pid=2) ERROR 11-29 17:18:19 [multiproc_executor.py:1] WorkerProc hit an"
        " exception.\n"
        "Exception ignored in: <function ShmRingBuffer.__del__ at 0x7fb03d153d80>\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/engine/vllm/distributed/shm_broadcast.py", line 386, in __del__\n'
        "    self.shared_memory.unlink()\n"
        "FileNotFoundError: [Errno 2] No such file or directory: '/psm_0d983af6'\n"
    )
    last = list(events(log))[-1]
    assert last.is_traceback and last.ignored
    ignored = {one.rule for one in logs.diagnose(log).findings}
    told = {
        one.rule for one in logs.diagnose(log.replace("Exception ignored in", "It said")).findings
    }
    assert "LOG405" in told - ignored and "LOG510" in ignored
