"""Gives broken inputs to whatever reads what other people, programs and servers wrote.

    python tools/fuzz.py seeds line 300000     # inputs 0 to 299,999 of a target, or of `all`
    python tools/fuzz.py atheris line 300000   # coverage-guided; needs `pip install atheris`

An input is a good example that was changed: a value of a document replaced, removed or doubled, a
word of the format put in, bytes flipped, cut or repeated. Whatever it is, the answer is a value or
a `SparkbookError` whose message can be printed. Anything else, or more than `SLOW_S` of processor
time, is reported with the input's number. The fast tests give 2,000 inputs to each target
(tests/test_fuzz.py), without the limit, which a busy machine would exceed.
"""

from __future__ import annotations

import collections
import copy
import functools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests/data"
SLOW_S = 2.0
LONGEST = 20_000
"""Bytes of an input; longer examples are cut."""
_ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 1e308, 2**63, -(2**70), 10**400, 0.1, "", " ", "\x00", "\ud800"),
    *("a\u202eb", "~", "../x", "/etc/passwd", "1.5", "nan", "0x10", "10_000", "--", "-e", "A=B"),
    *("$(id)", "'", "\\", "\n", "x" * 3000, [], {}, [[]], [None], {"": 1}, {"a": {"b": []}}),
    *([1, "a", None], "sha256:" + "0" * 64, "http://u:p@h:1/x", "http://[::1", "ssh://-x@h"),
]
_BYTES = [
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"\t",
        b"\x1b[31m",
        b"\x1b]0;",
    ),
    *(
        b"'",
        b'"',
        b"\\",
        b"`",
        b"$",
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b"- ",
        b"&a ",
        b"*a",
        b"%",
        b"#",
    ),
    *(b"!!python/object:os.system ", b"|", b";", b"--", b"=", b"NaN", b"Infinity", b"1e999", b"-"),
    *(
        b"9" * 23,
        b"0x",
        b"0x" + b"f" * 5000,
        b"2026-99-99",
        b",",
        "\u202e".encode(),
        "\U0001f600".encode(),
    ),
]


class Target(NamedTuple):
    """What reads, and good examples for it.

    Attributes:
        read: gets an input; raises `SparkbookError` for one that it refuses.
        examples: the inputs that are changed: values of a document, or texts.
    """

    read: Callable[[bytes], object]
    examples: list[Any]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Hand a reader of files a file with the input."""
    place = Path(
        tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )

    def through_file(data: bytes) -> object:
        file = place / "input"
        file.write_bytes(data)
        return read(file)

    return through_file


def _recipe() -> Target:
    from sparkbook import recipes
    from sparkbook.formats import FORMATS, own

    def read(data: bytes) -> object:
        recipe = own.read(_text(data)).recipe
        return FORMATS["docker"].write(recipe) if recipe.image else recipe.served_name

    whole = [one.model_dump(mode="json", exclude_defaults=True) for one in recipes.all()[:12]]
    return Target(read, [*whole, (DATA / "formats/recipe.yaml").read_bytes()])


def _line() -> Target:
    from sparkbook.formats import docker_run, shell
    from sparkbook.launch.reader import read_script

    def read(data: bytes) -> object:
        text = _text(data)
        line = read_script(text)
        reader = docker_run if text.lstrip().startswith("docker") else shell
        return line, reader.read(text)

    return Target(read, [path.read_bytes() for path in sorted(DATA.glob("formats/*.sh"))])


def _inventory() -> Target:
    from sparkbook.cluster import inventory

    def read(data: bytes) -> object:
        return repr(inventory.parse(_text(data)))

    spark = {"ssh": "nvidia@spark-2:22", "address": "192.168.100.2", "hca": "rocep1s0f0"}
    return Target(
        read,
        [
            {
                "name": "two",
                "nodes": [{"host": "a", "address": "192.168.100.1"}, {"host": "b", **spark}],
            },
            {
                "nodes": [{"host": "a", "via": ["ip", "netns", "exec", "a"], "env": {"A": "1"}}],
                "link_gbit": 200,
            },
        ],
    )


def _lock() -> Target:
    from sparkbook import lock, recipes
    from sparkbook.host.access import Ran

    recipe = recipes.load("gpt-oss-120b")
    good = lock.make(recipe.launch, recipe, runner=lambda _words: Ran(0, "x86_64", ""))
    before = json.loads(lock.dumps(good))

    def read(file: Path) -> object:
        found = lock.read(file)
        lock.recipe_of(found)
        return lock.judge(lock.diff(before, found)).to_dict(), lock.dumps(found)

    return Target(_file(read), [before])


def _result() -> Target:
    from sparkbook.bench import exchange

    def read(file: Path) -> object:
        report = exchange.read(file)
        return [
            report.model_dump_json(),
            *(exchange.to_vllm(report, cell) for cell in report.cells),
        ]

    files = sorted(DATA.glob("bench/*.json"))
    whole = [json.loads(file.read_bytes()) for file in files if file.stat().st_size < 200_000]
    return Target(_file(read), [_thinned(value) for value in whole])


def _thinned(value: Any) -> Any:
    """A document with at most three items in each list: as deep, and fast to change."""
    if isinstance(value, dict):
        return {key: _thinned(item) for key, item in value.items()}
    return [_thinned(item) for item in value[:3]] if isinstance(value, list) else value


def _log() -> Target:
    from sparkbook import logs

    def read(data: bytes) -> object:
        return logs.diagnose(data).to_dict()

    pieces = []
    for path in sorted(DATA.glob("logs/*.log")):
        text = path.read_bytes()
        pieces += [text[at : at + 700] for at in range(0, len(text), 9000)]
    return Target(read, pieces + [one.fails.encode() for one in logs.signatures()])


def _metrics() -> Target:
    from sparkbook.metrics import Metrics
    from sparkbook.metrics.diagnose import diagnose_metrics

    pages = [path.read_bytes() for path in sorted(DATA.glob("metrics/*.txt"))]
    wanted = (
        b"vllm:generation",
        b"vllm:num_requests",
        b"vllm:spec",
        b"vllm:cache_config",
    )
    short = [
        b"\n".join(line for line in page.split(b"\n") if line.startswith(wanted)) for page in pages
    ]
    before = Metrics.parse(short[0].decode())

    def read(data: bytes) -> object:
        change, findings = diagnose_metrics(before, Metrics.parse(_text(data)), 10.0)
        return repr(change), findings.to_dict()

    return Target(read, short)


def _hub() -> Target:
    from sparkbook.checkpoint import reply
    from sparkbook.util.inside import checked
    from sparkbook.weights.hub_client import needed

    def read(data: bytes) -> object:
        listing = reply.listing(data)
        names = needed([one.rfilename for one in listing.siblings], False)
        return [checked(name) for name in names]

    files = [
        {"rfilename": "config.json", "size": 700, "blobId": "a" * 40},
        {"rfilename": "model-00001-of-00002.safetensors", "size": 5, "lfs": {"sha256": "b" * 64}},
        {"rfilename": "consolidated.safetensors", "size": 5, "lfs": {"sha256": "b" * 64}},
        {"rfilename": "original/tokenizer.model", "size": 5, "blobId": "c" * 40},
    ]
    return Target(read, [{"sha": "d" * 40, "siblings": files}])


def _sse() -> Target:
    from sparkbook.bench import load
    from sparkbook.bench.client import Reply, record

    chunk = {
        "choices": [{"delta": {"content": "a"}, "index": 0, "token_ids": [1, 2]}],
        "usage": None,
    }
    usage = {
        "choices": [],
        "usage": {
            "completion_tokens": 2,
            "prompt_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
    tool = {
        "choices": [
            {
                "delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
                "finish_reason": "stop",
            }
        ]
    }
    stream = b"".join(
        b"data: " + json.dumps(one).encode() + b"\n\n" for one in (chunk, tool, usage)
    )
    stream += b": ping\n\ndata: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(stream), stream)

    def read(data: bytes) -> object:
        reply = Reply(0, 0, None)
        reply.status, reply.mode = (200, "chunked") if len(data) % 2 else (200, "close")
        if len(data) % 11 == 0:
            reply.status = 500
        reply.head = head
        cut = len(data) // 2
        reply.reads = [(0.1, head + data[:cut]), (0.2, data[cut:])]
        seen = record(reply)
        json.dumps(seen).encode("utf-8")
        return load._request(seen, "p", 0.0, True).model_dump_json()

    return Target(read, [stream, framed, stream.replace(b"\n", b"\r\n")])


TARGETS: dict[str, Callable[[], Target]] = {
    "recipe": _recipe, "line": _line, "inventory": _inventory, "lock": _lock, "result": _result,
    "log": _log, "metrics": _metrics, "hub": _hub, "sse": _sse,
}  # fmt: skip


@functools.cache
def target(name: str) -> Target:
    return TARGETS[name]()


def changed_value(dice: random.Random, value: Any) -> Any:
    """A document with one to four values replaced, removed, doubled or put somewhere else."""
    value = copy.deepcopy(value)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        node, places = value, []
        while isinstance(node, dict | list) and node:
            key = dice.choice(list(node)) if isinstance(node, dict) else dice.randrange(len(node))
            places.append((node, key))
            node = node[key]
        if not places:
            return dice.choice(_ODD)
        node, key = dice.choice(places)
        match dice.randrange(6):
            case 0:
                del node[key]
            case 1 if isinstance(node, list):
                node += [copy.deepcopy(node[key])] * dice.choice((1, 3, 50))
            case 2 if isinstance(node, dict):
                node[dice.choice(("", "extends", "__proto__", "a.b", "x" * 300, "é\u202e"))] = (
                    node.pop(key)
                )
            case 3:
                other, place = dice.choice(places)
                node[key] = (
                    copy.deepcopy(other[place])
                    if place in other or (isinstance(other, list) and other)
                    else None
                )
            case _:
                node[key] = copy.deepcopy(dice.choice(_ODD))
    return value


def changed_bytes(dice: random.Random, text: bytes, examples: list[Any]) -> bytes:
    """A text with bytes flipped, cut, repeated, or put in."""
    at = dice.randrange(len(text) + 1)
    end = min(len(text), at + dice.choice((1, 4, 30, 300)))
    match dice.randrange(7):
        case 0:
            return text[:at] + text[end:]
        case 1:
            return text[:at] + text[at:end] * dice.choice((2, 2, 20)) + text[end:]
        case 2:
            return text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :]
        case 3:
            return text[: max(at, 1)]
        case 4:
            other = dice.choice(examples)
            other = other if isinstance(other, bytes) else json.dumps(other).encode()
            place = dice.randrange(len(other) + 1)
            return text[:at] + other[place : place + 200] + text[at:]
        case _:
            return (
                text[:at]
                + dice.choice(_BYTES) * dice.choice((1, 1, 1, 60))
                + text[end if dice.random() < 0.5 else at :]
            )


def made(name: str, number: int) -> bytes:
    """The input of a target with this number."""
    dice, examples = random.Random(f"{name}/{number}"), target(name).examples
    text = dice.choice(examples)
    if not isinstance(text, bytes):
        text = json.dumps(changed_value(dice, text) if dice.random() < 0.8 else text).encode()
        if dice.random() < 0.7:
            return text[:LONGEST]
    for _ in range(dice.randrange(1, 4)):
        text = changed_bytes(dice, text, examples)[:LONGEST]
    return text


def give(name: str, data: bytes, slow_s: float = SLOW_S) -> bool:
    """Give a target an input; whether it was taken.

    Raises:
        Exception: any but `SparkbookError`: a fault of the target.
        TimeoutError: it took more than `slow_s` of this thread's processor time.
    """
    from sparkbook.errors import SparkbookError

    began, taken = time.thread_time(), True
    try:
        target(name).read(data)
    except SparkbookError as error:
        str(error).encode("utf-8", "strict" if name != "line" else "replace")
        taken = False
    if (took := time.thread_time() - began) > slow_s:
        raise TimeoutError(f"{took:.1f} s")
    return taken


def seeds(name: str, count: int, first: int = 0, slow_s: float = SLOW_S) -> dict[str, Any]:
    """Give inputs by their numbers; figures of the run, with the inputs that broke the target."""
    taken, slowest, broken = 0, 0.0, collections.defaultdict(list)
    began = time.thread_time()
    for number in range(first, first + count):
        data, start = made(name, number), time.thread_time()
        try:
            taken += give(name, data, slow_s)
        except Exception as error:  # noqa: BLE001 - the very thing that is looked for
            broken[f"{type(error).__name__}: {error}"[:160]].append(number)
        slowest = max(slowest, time.thread_time() - start)
    return {
        "target": name,
        "inputs": count,
        "taken": taken,
        "cpu_s": round(time.thread_time() - began),
        "slowest_ms": round(1000 * slowest),
        "broken": {kind: numbers[:5] for kind, numbers in broken.items()},
    }


def with_atheris(name: str, count: int) -> None:
    """Let atheris look for inputs that take new ways through a target."""
    import atheris

    with atheris.instrument_imports(include=["sparkbook"]):
        one = target(name)
    folder = ROOT / "_build/fuzz" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(one.examples):
        text = example if isinstance(example, bytes) else json.dumps(example).encode()
        (folder / f"example-{number}").write_bytes(text)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if dice.random() < 0.5:
            return atheris.Mutate(data, most)
        try:
            value = json.loads(data)
        except ValueError:
            return changed_bytes(dice, data, one.examples)[:most]
        return json.dumps(changed_value(dice, value)).encode()[:most]

    words = [f"-runs={count}", f"-max_len={LONGEST}", "-timeout=10", str(folder)]
    atheris.Setup([sys.argv[0], *words], lambda data: give(name, data), custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    sys.path.insert(0, str(ROOT / "lib"))
    driver, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if driver == "atheris":
        with_atheris(name, count)
        return 0
    reports = [
        seeds(one, count, int(sys.argv[4]) if len(sys.argv) > 4 else 0)
        for one in (TARGETS if name == "all" else [name])
    ]
    for report in reports:
        print(json.dumps(report), flush=True)
    return 1 if any(report["broken"] for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
