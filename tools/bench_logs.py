"""How fast the log doctor reads: MB/s on one core and peak memory, over a generated log.

python tools/bench_logs.py [--mb 200] [--unique]

The log is made of recorded starts and of what an engine prints while it serves: request lines, its
own reports, speculation, warnings that come again and again. With `--unique` every line also holds
a word of its own, so that nothing can be recognized as seen before. The log is written to a
temporary file first; only reading and judging it is timed, with all signatures active.
"""

import argparse
import random
import resource
import tempfile
import time
from pathlib import Path

from sparkbook.logs import diagnose, signatures

DATA = Path(__file__).parents[1] / "tests" / "data" / "logs"


def lines(seed: int, unique: bool):
    """An endless healthy log."""
    dice = random.Random(seed)
    starts = [
        line
        for name in ("h100-0.24.0-ngram", "cpu-0.32.0-tiny35_mtp3", "gb10-nightly-2026-04-01")
        for line in (DATA / f"{name}.log").read_text(encoding="utf-8").splitlines()
    ]
    yield from starts
    second = 0
    while True:
        second += 10
        clock = f"11-28 {second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        for _ in range(dice.randrange(20, 120)):
            word = f" trace={dice.getrandbits(64):x}" if unique else ""
            yield (
                f"(APIServer pid=4980) INFO:     127.0.0.1:{dice.randrange(30000, 60000)} - "
                f'"POST /v1/chat/completions HTTP/1.1" 200 OK{word}'
            )
        if dice.random() < 0.2:
            yield (
                f"(APIServer pid=4980) INFO {clock} [logger.py:40] Received request"
                f" chatcmpl-{dice.getrandbits(128):032x}: params: SamplingParams(n=1,"
                f" temperature={dice.random():.2f}, max_tokens={dice.randrange(4000)})"
            )
        yield (
            f"(APIServer pid=4980) INFO {clock} [loggers.py:273] Engine 000: Avg prompt throughput:"
            f" {dice.random() * 900:.1f} tokens/s, Avg generation throughput:"
            f" {dice.random() * 500:.1f} tokens/s, Running: {dice.randrange(16)} reqs, Waiting: 0"
            f" reqs, GPU KV cache usage: {dice.random() * 90:.1f}%, Prefix cache hit rate:"
            f" {dice.random() * 90:.1f}%"
        )
        yield (
            f"(APIServer pid=4980) INFO {clock} [metrics.py:120] SpecDecoding metrics: Mean"
            " acceptance length: 2.22, Accepted throughput: 47.45 tokens/s, Drafted throughput:"
            f" 116.67 tokens/s, Accepted: {dice.randrange(900)} tokens, Drafted: 1308 tokens,"
            " Per-position acceptance rate: 0.613, 0.369, 0.240, Avg Draft acceptance rate:"
            f" {20 + dice.random() * 60:.1f}%"
        )
        if dice.random() < 0.05:
            yield (
                f"(EngineCore pid=5103) WARNING {clock} [jit_monitor.py:106] Triton kernel JIT"
                " compilation during inference: fused_moe_kernel."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200, help="size of the log in 10^6 bytes")
    parser.add_argument(
        "--unique", action="store_true", help="a word of its own in every request line"
    )
    options = parser.parse_args()
    signatures()
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        written = count = 0
        for line in lines(7, options.unique):
            written += file.write(line.encode() + b"\n")
            count += 1
            if written >= options.mb * 10**6:
                break
        file.flush()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        began, used = time.perf_counter(), time.process_time()
        diagnosis = diagnose(Path(file.name))
        wall, cpu = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{written / 1e6:.0f} MB, {count} lines, {len(signatures())} signatures:"
        f" {diagnosis.verdict}, {len(diagnosis.findings)} findings"
    )
    print(
        f"{written / 1e6 / cpu:.0f} MB/s of processor time ({wall:.2f} s wall, {cpu:.2f} s"
        " processor)"
    )
    print(f"peak memory {peak:.0f} MiB (before reading: {before:.0f} MiB)")


if __name__ == "__main__":
    main()
