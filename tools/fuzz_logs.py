"""Throws mutated logs at the log doctor: whatever a file holds, the answer is a diagnosis, and
soon.

python tools/fuzz_logs.py [--count 100000] [--seed 1]

Each log is a stretch of a recorded one, or examples of signatures, changed by a few of: bytes
flipped, cut, doubled, shuffled, numbers made huge or negative, colour codes, carriage returns,
NULs, broken UTF-8, UTF-16, brackets and quotes left open, lines glued together or very long. Every
tenth goes with facts that are mutated as well. A log that raises, or takes longer than the limit,
is printed with its seed and ends the run with status 1.
"""

import argparse
import random
import sys
import time
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.logs import diagnose, parse_facts, signatures

DATA = Path(__file__).parents[1] / "tests" / "data" / "logs"
FACTS = (
    b"MemTotal: 121.63 GiB\nMemAvailable: 101.4 GiB\nfraction: 0.8\nprocesses: [{name:"
    b" VLLM::EngineCore, pid: 41218, used: 104277 MiB}]\n"
)
LIMIT_S = 2.0


def corpus() -> list[bytes]:
    """Recorded logs, and every signature's examples."""
    logs = [path.read_bytes() for path in sorted(DATA.glob("*.log"))]
    logs += [
        "\n".join(s.fails for s in signatures()).encode(),
        "\n".join(s.passes for s in signatures()).encode(),
    ]
    return logs


def mutate(dice: random.Random, text: bytes) -> bytes:
    """One of many ways in which a log can come in bad shape."""
    if not text:
        return dice.randbytes(20)
    at = dice.randrange(len(text))
    match dice.randrange(17):
        case 0:
            return text[:at]
        case 1:
            return text[at:]
        case 2:
            return text[:at] + dice.randbytes(dice.randrange(1, 12)) + text[at:]
        case 3:
            data = bytearray(text)
            for _ in range(dice.randrange(1, 30)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            return bytes(data)
        case 4:
            lines = text.split(b"\n")
            dice.shuffle(lines)
            return b"\n".join(lines)
        case 5:
            lines = text.split(b"\n")
            return b"\n".join(line for line in lines for _ in range(dice.choice((1, 1, 1, 3))))
        case 6:
            return text.replace(
                b"\n",
                dice.choice((b"\r", b"\r\n", b"", b" ", b"\n\n", b"\x00")),
                dice.randrange(1, 20),
            )
        case 7:
            number = dice.choice(
                (
                    b"-1",
                    b"0",
                    b"99999999999999999999999",
                    b"1e309",
                    b"nan",
                    b"0.0",
                    b"1.2.3",
                    b",,,",
                    b".",
                )
            )
            return bytes(re_digits(dice, text, number))
        case 8:
            return (
                text[:at]
                + b"\x1b["
                + dice.choice((b"31m", b"0;1;2", b"K", b"]0;title\x07", b""))
                + text[at:]
            )
        case 9:
            try:
                return text.decode("utf-8", "replace").encode(
                    dice.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1")),
                    "replace",
                )
            except UnicodeError:
                return text
        case 10:
            return (
                text[:at]
                + dice.choice((b"(", b"{", b"'", b'"', b"[", b"non-default args: {" * 3))
                * dice.randrange(1, 60)
                + text[at:]
            )
        case 11:
            return (
                text[:at]
                + dice.choice((b"a", b" ", b"\t", b"9", b"\xff", b"GiB ")) * dice.randrange(1, 5000)
                + text[at:]
            )
        case 12:
            other = dice.choice(CORPUS)
            place = dice.randrange(len(other))
            return text[:at] + other[place : place + dice.randrange(2000)] + text[at:]
        case 13:
            return b"\n".join(
                b"(Worker_TP%d pid=%d) " % (dice.randrange(9), dice.randrange(99999)) + line
                for line in text.split(b"\n")
            )
        case 14:
            return b"\n".join(
                b"Nov 27 10:00:00 spark vllm[12]: " + line for line in text.split(b"\n")
            )
        case 15:
            width = dice.randrange(1, 120)
            return (
                b"\n".join(text[i : i + width] for i in range(0, len(text), width))
                if width > 10
                else text
            )
        case _:
            return text.swapcase()


def re_digits(dice: random.Random, text: bytes, number: bytes) -> bytes:
    """Some numbers of a text, replaced."""
    import re

    return re.sub(rb"\d+(?:\.\d+)?", lambda m: number if dice.random() < 0.3 else m[0], text)


CORPUS = corpus()


def one(seed: int) -> bytes:
    """The mutated log of a seed."""
    dice = random.Random(seed)
    text = dice.choice(CORPUS)
    begin = dice.randrange(len(text))
    text = text[begin : begin + dice.choice((200, 800, 2000, 4000))]
    for _ in range(dice.randrange(1, 5)):
        text = mutate(dice, text)[:20_000]
    return text


def judge(seed: int) -> float:
    """Diagnose the log of a seed; seconds of processor time."""
    text = one(seed)
    began = time.process_time()
    facts = None
    if seed % 10 == 0:
        try:
            facts = parse_facts(mutate(random.Random(seed), FACTS).decode("utf-8", "replace"))
        except SparkbookError:
            facts = None
    diagnosis = diagnose(text, facts)
    diagnosis.to_dict()
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    slowest, total, bad = 0.0, 0.0, 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            took = judge(seed)
        except Exception as error:  # noqa: BLE001 - the very thing that is looked for
            bad += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        total += took
        slowest = max(slowest, took)
        if took > LIMIT_S:
            bad += 1
            print(f"seed {seed}: {took:.1f} s")
    print(
        f"{options.count} mutated logs, {bad} bad; {total:.0f} s of processor time, the slowest"
        f" {slowest * 1000:.0f} ms"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
