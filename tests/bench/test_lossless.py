"""Does an option keep what it promises? Invented replies, a stand-in server that answers what it is
told to, and what was recorded.
"""

import json
import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from sparkbook.bench import lossless
from sparkbook.bench.equality import Answer
from sparkbook.bench.lossless import Record, Scores, shift, tasks, trial
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.plots import measurements as plots
from typer.testing import CliRunner


def test_forty_tasks_and_what_is_right():
    found = {task.prompt.id: task for task in tasks()}
    assert len(found) == 40 and len({task.prompt.text for task in tasks()}) == 40
    assert all(task.right(f" {task.answer}\nand more") and not task.right("no") for task in tasks())
    assert found["json-0"].right('{"age": 31,  "name": "Anna"}') and not found["json-0"].right(
        '{"name": "Anna"'
    )
    assert not found["sum-0"].right("13") and not found["copy-0"].right("the candle")


def test_prompts_with_a_common_beginning_that_a_cache_block_fits_in():
    shared = [p.text for p in lossless.texts(2) if p.id.startswith("shared")]
    assert len(lossless.texts(2)) == 8 and len(shared) == 2 and shared[0] != shared[1]
    alike = next(i for i, (a, b) in enumerate(zip(*shared, strict=False)) if a != b)
    assert alike > 700, "a block of the CPU build is 128 tokens"


def test_the_paired_interval_covers_what_it_claims():
    """Two arms that solve 60 % each, alike in most tasks: the interval of their difference must
    hold 0 in about 95 of 100 runs.
    """
    rng, held = random.Random(1), 0
    for _ in range(1000):
        pairs = []
        for _ in range(40):
            a = rng.random() < 0.6
            pairs.append((a, a if rng.random() < 0.8 else rng.random() < 0.6))
        found = Scores(
            40, pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True))
        )
        _, low, high = found.difference
        held += low <= 0 <= high
    assert 0.93 <= held / 1000 <= 0.995


@pytest.mark.parametrize(
    ("found", "difference", "p"),
    [
        (Scores(40, 30, 0, 0), 0.0, 1.0),
        (Scores(40, 30, 10, 0), -0.25, 2 / 2**10),
        (Scores(40, 20, 3, 5), 0.05, 0.7265625),
    ],
)
def test_gained_and_lost(found, difference, p):
    share, low, high = found.difference
    assert (
        share == pytest.approx(difference) and low <= share <= high and found.p == pytest.approx(p)
    )
    assert (low <= 0 <= high) == (p > 0.05)


def test_all_right_and_none_right_have_an_interval():
    for found in (Scores(8, 8, 0, 0), Scores(8, 0, 0, 0), Scores(8, 0, 8, 0)):
        share, low, high = found.difference
        assert -1 <= low <= share <= high <= 1


def answers(word, logprob=-0.1, right=True, other="z", margin=2.0):
    tops = ({word: logprob, other: logprob - margin},)
    free = [Answer(f"code-{i:03}", (word,), tops) for i in range(4)]
    return free + [Answer(t.prompt.id, (word,), tops, t.answer if right else "?") for t in tasks()]


def test_three_verdicts():
    base = answers("a")
    assert trial("same", base, base, answers("a", -0.15)).verdict == "identical"
    assert (
        trial("ties", answers("a", margin=0.01), answers("a"), answers("z")).verdict == "near-ties"
    )
    assert trial("other text", base, base, answers("z", other="a")).verdict == "changed"
    broken = trial("tasks fail", base, base, answers("a", right=False))
    assert broken.verdict == "changed" and broken.equality.passed, (
        "the replies passed, the tasks did not"
    )
    # A server that does to itself what the option does says nothing against the option.
    assert (
        trial("noise", base, answers("z", other="a"), answers("z", other="a")).verdict
        == "near-ties"
    )


def test_how_far_the_probabilities_moved():
    assert shift(answers("a"), answers("a", -0.3)) == pytest.approx(0.2)
    assert shift(answers("a"), answers("a")) == 0
    assert shift(answers("a"), answers("z")) is None, "nothing was written alike"


class Server(BaseHTTPRequestHandler):
    """Answers every prompt with its own length; one that is `odd` answers otherwise."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: in two, each reply waits for an acknowledgement

    def do_GET(self):
        self.reply(
            {
                "object": "list",
                "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "x"}],
            }
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        token = f"token_id:{len(text) + self.server.odd}"
        top = {token: -0.1, "token_id:1": -4.0}
        if "prompt" in body:
            found = {
                "text": " x",
                "logprobs": {
                    "tokens": [token],
                    "token_logprobs": [-0.1],
                    "top_logprobs": [top],
                    "text_offset": [0],
                },
            }
        else:
            listed = [{"token": t, "logprob": p, "bytes": None} for t, p in top.items()]
            found = {
                "message": {"role": "assistant", "content": "x"},
                "logprobs": {"content": [listed[0] | {"top_logprobs": listed}]},
            }
        if self.server.mute:
            found["logprobs"] = None
        self.reply(
            {
                "id": "1",
                "object": "o",
                "created": 0,
                "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop", **found}],
            }
        )

    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def servers():
    found = {}
    for name, odd, mute in (("a", 0, False), ("odd", 7, False), ("mute", 0, True)):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        server.odd, server.mute = odd, mute
        Thread(target=server.serve_forever, daemon=True).start()
        found[name] = (server, f"http://127.0.0.1:{server.server_port}")
    yield {name: url for name, (_, url) in found.items()}
    for server, _ in found.values():
        server.shutdown()
        server.server_close()


def equal(*words):
    return CliRunner().invoke(app, ["equal", *words, "--each", "1"])


def test_the_verb_compares_two_servers(servers):
    same = equal(servers["a"], servers["a"])
    assert (
        same.exit_code == 0
        and "B: identical" in same.output
        and "44 of 44 identical" in same.output
    )
    other = equal(servers["a"], servers["odd"], "--option", "fp8", "--json")
    told = json.loads(other.output)
    assert (
        other.exit_code == 1
        and told["summary"] == {"verdict": "changed"}
        and told["trial"]["option"] == "fp8"
    )


@pytest.mark.parametrize(
    ("b", "words"), [("mute", "no log-probabilities"), (None, "is no server: write an address")]
)
def test_what_cannot_be_compared_is_said(servers, b, words):
    found = equal(servers["a"], servers[b] if b else "localhost")
    assert isinstance(found.exception, SparkbookError) and words in str(found.exception)


def test_a_record_is_read_as_it_was_written(tmp_path):
    base = answers("a")
    record = Record(
        {"engine": "e"},
        (
            trial(
                "line\u2028separator",
                base,
                base,
                answers("z", other="a"),
                claims=False,
                engine="drafts 3",
            ),
        ),
    )
    record.write(tmp_path / "r.jsonl")
    assert Record.read(tmp_path / "r.jsonl") == record
    (tmp_path / "r.jsonl").write_text("{}\n{}\n")
    with pytest.raises(SparkbookError, match="not a recorded comparison"):
        Record.read(tmp_path / "r.jsonl")


def test_what_was_recorded_is_told_apart(tmp_path):
    """The options that keep their promise, the one that does not, and the control that must fail."""
    record = lossless.recorded()
    verdicts = {t.option: t.verdict for t in record.trials}
    assert (
        verdicts["no prefix caching"] == "identical"
        and verdicts["n-gram drafts, K = 4"] == "near-ties"
    )
    assert [name for name, verdict in verdicts.items() if verdict == "changed"] == [
        "KV cache in fp8",
        "temperature 0.7",
    ]
    moved = {t.option: t.shift for t in record.trials}
    assert (
        moved["KV cache in fp8"]
        > 3 * moved["float16 for bfloat16"]
        > moved["no prefix caching"]
        == 0
    )
    record.write(tmp_path / "again.jsonl")
    assert Record.read(tmp_path / "again.jsonl") == record


def test_the_picture_says_what_was_found():
    record = lossless.recorded()
    chart = plots.lossless(record.trials, "T")
    assert (
        "nothing: asked twice: 52 identical" in chart.alt
        and "KV cache in fp8: 35 identical, 11 near-tie, 6 really different" in chart.alt
    )
    with pytest.raises(SparkbookError):
        plots.lossless([], "T")


def test_the_gpus_records_hold_what_the_chapter_says():
    gpu = {t.option: t for t in lossless.recorded("lossless-h200").trials}
    assert not [
        name
        for name, t in gpu.items()
        if t.claims and t.verdict == "changed" and not name.startswith(("FP8 experts", "KV"))
    ]
    assert (
        gpu["temperature 0.7"].verdict == "changed"
        and gpu["KV cache in fp8"].equality.count("real") > 3
    )
    assert (
        gpu["FP8 experts: Triton by name"].equality.control.count("real") > 0
    )  # the same server differs from itself
    plugin = {t.option: t for t in lossless.recorded("nvfp4-h200").trials}
    for name in ("plug-in", "experts: plug-in"):
        assert plugin[name].verdict == "near-ties" and "Marlin" in plugin[name].engine
        emulated = plugin[name.replace("plug-in", "W4A4 emulated")]
        assert emulated.equality.count("real") > 10 and plugin[name].shift < emulated.shift / 4
    ours = [t for name, t in plugin.items() if "plug-in" in name and t.claims]
    assert len(ours) == 10 and sum(t.equality.count("real") for t in ours) <= 2
