"""The measuring client against the truth server, and against bytes that come in every awkward way.

Client and server read the same clock. What comes before what is asserted here, on any machine; how
near the client's times are to the truth is measured by benchmark_client.py.
"""

import asyncio
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sparkbook import bench
from sparkbook.bench import client, load, prompts
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint

SPECULATIVE = [4, 2, 6, 1, 3]
ROUNDED_S = 1e-5
"""Times are kept to the microsecond."""


class Quiet:
    """No telemetry: these tests look at the client alone."""

    interval_s = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def trace(self, begin_s, end_s):
        from sparkbook.bench.telemetry import Trace

        return Trace((), begin_s, end_s)


def measured(endpoint, slots=1, requests=4, max_tokens=32, truth=None, **plan):
    options = bench.BenchPlan(
        classes=["code"],
        concurrency=[slots],
        requests=requests,
        max_tokens=max_tokens,
        waves=plan.pop("waves", 1),
        extra={"truth": truth or {}},
        **plan,
    )
    httpx.get(f"{endpoint.url}/truth")
    report = bench.measure(endpoint, options, source=Quiet())
    told = httpx.get(f"{endpoint.url}/truth").json()[-requests:]
    return report, report.cells[0], told


def job(endpoint, bodies, **more):
    host, port = endpoint.url.removeprefix("http://").split(":")
    return {
        "host": host,
        "port": int(port),
        "tls": False,
        "path": "/v1/chat/completions",
        "bodies": bodies,
        "slots": 1,
        **more,
    }


def body(tokens=9, **truth_options):
    message = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": tokens,
        "stream": True,
        "return_token_ids": True,
    }
    return json.dumps(
        {**message, "stream_options": {"include_usage": True}, "truth": truth_options}
    )


def asked(endpoint, bodies, **more):
    """Requests as the client of this process measures them."""
    outcome = asyncio.run(client.run(job(endpoint, bodies, **more)))
    return load.requests_of(
        outcome, [prompts.Prompt(f"x-{n}", "x") for n in range(len(bodies))], True
    )


@pytest.mark.parametrize("slots", [1, 16])
def test_times_and_rates_follow_from_the_truth(truth, slots):
    report, cell, told = measured(
        truth, slots, 2 * slots + 2, 48, {"ttft": 0.06, "step": 0.006, "pattern": SPECULATIVE}
    )
    by_prompt = {entry["prompt"]: entry for entry in told}
    assert len(by_prompt) == len(cell.requests)
    texts = {
        p.id: p.text
        for p in prompts.make("code", len(told), salt=f"{report.salt}/run/code c={slots}")
    }
    before_the_next = 0
    for request in cell.requests:
        entry, read = by_prompt[texts[request.prompt]], request.stamps_s
        assert request.chunk_tokens == entry["tokens"]
        written = [stamp - entry["begin"] for stamp in entry["stamps"]]
        # The client's clock starts first, and each event is read after it was written; not one
        # before the next was written would be a client that is late by itself.
        assert all(got >= put - ROUNDED_S for got, put in zip(read, written, strict=True))
        before_the_next += sum(got < put for got, put in zip(read, written[1:], strict=False))
        assert request.ttft_s == read[0]
        assert request.tpot_s == pytest.approx((read[-1] - read[0]) / (48 - 1))
    assert before_the_next
    assert cell.figures.tok_per_step == pytest.approx(47 / (len(told[0]["tokens"]) - 1))
    begin = min(r.start_s for r in cell.requests)
    end = max(r.start_s + r.stamps_s[-1] for r in cell.requests)
    assert cell.figures.out_tok_s == pytest.approx(48 * len(told) / (end - begin))
    true = max(e["stamps"][-1] for e in told) - min(e["begin"] for e in told)
    assert end - begin >= true - ROUNDED_S


AWKWARD = {
    "early role": {"role": "early"},
    "no role": {"role": "none"},
    "reasoning first": {"reasoning": 8, "step": 0.006},
    "tool calls": {"tools": True},
    "comments": {"ping": True},
    "crlf": {"crlf": True, "ping": True},
    "characters split": {"split": 61},
    "crlf split": {"split": 53, "crlf": True},
    "content-length": {"length": True, "ttft": 0.0, "step": 0.0},
    "several tokens a chunk": {"pattern": SPECULATIVE},
    "no ids": {"ids": False, "pattern": SPECULATIVE},
}


@pytest.mark.parametrize("truth_options", AWKWARD.values(), ids=AWKWARD.keys())
def test_awkward_streams_are_read_right(truth, truth_options):
    options = {"ttft": 0.03, "step": 0.002, **truth_options}
    for request in asked(truth, [body(12, **options)] * 3, slots=2):
        assert request.error is None
        assert (request.output_tokens, request.count_from, request.finish) == (
            12,
            "usage",
            "length",
        )
        assert request.text.count("wörd") == 12 or options.get("tools")
        assert request.ttft_s >= options["ttft"]
        assert request.ttfr_s <= request.ttft_s
        assert options.get("role") == "early" or request.ttfr_s >= options["ttft"]
        assert (request.ttfo_s > request.ttft_s) == bool(options.get("reasoning"))
        if options.get("ids", True):
            assert request.id_tokens == 12


def test_a_role_that_comes_early_is_a_reply_and_no_token(truth):
    """Of several: on a busy machine both are read at once."""
    found = asked(truth, [body(2, role="early", ttft=0.1)] * 5)
    assert all(r.ttfr_s <= r.ttft_s and r.ttft_s >= 0.1 for r in found)
    assert any(r.ttfr_s < r.ttft_s for r in found)


def test_a_step_that_shows_nothing_is_a_step_where_ids_tell_of_it(truth):
    """A mark such as <think> in front, which the server's parser takes away: TTFT waits for text,
    step times and TPOT do not.
    """
    (request,) = asked(truth, [body(13, hidden=1, ttft=0.03, step=0.02, pattern=SPECULATIVE)])
    assert request.chunk_tokens == [1, 4, 2, 6] and len(request.stamps_s) == 4
    first, second, *_, last = request.stamps_s
    assert 0.03 <= first <= second == request.ttft_s and second >= 0.05
    assert request.tok_per_step == 4 and request.tpot_s == pytest.approx((last - first) / 12)


def test_without_usage_the_ids_count_and_without_both_nobody_does(truth):
    assert [
        (r.output_tokens, r.count_from)
        for r in asked(truth, [body(12, usage=False, pattern=SPECULATIVE)])
    ] == [(12, "token ids")]
    _, cell, _ = measured(truth, 1, 3, 12, {"usage": False, "ids": False, "pattern": SPECULATIVE})
    assert {(r.output_tokens, r.count_from) for r in cell.requests} == {(None, "unknown")}
    assert (
        cell.figures.out_tok_s is None
        and cell.figures.tpot_s is None
        and cell.figures.tok_per_step is None
    )
    assert "BENCH208" in {f.rule for f in cell.findings} and cell.verdict == "invalid"


def test_a_dying_stream_an_error_and_a_good_reply_after_it(truth):
    bodies = [body(die=4), body(status=503), body()]
    dead, refused, good = asyncio.run(client.run(job(truth, bodies)))["records"]
    assert dead["error"].startswith("the connection broke") and len(dead["stamps"]) == 4
    assert refused["error"] == "status 503: The model is not loaded"
    assert good["error"] is None and good["usage"]["completion_tokens"] == 9


def test_a_silent_server_is_given_up(truth):
    (record,) = asyncio.run(client.run(job(truth, [body(ttft=30)], timeout_s=0.2)))["records"]
    assert record["error"] == "silent for 0.2 s"


def test_a_server_that_refuses_vllms_own_fields_is_asked_without(truth):
    report, cell, _ = measured(truth, 1, 2, 8, {"strict": True})
    assert cell.figures.completed == 2 and "refuses" in report.notes[0]


def test_the_key_travels_as_a_header_and_stays_out_of_the_result(truth):
    keyed = Endpoint(truth.url, "truth", "sk-very-secret")
    report, cell, _ = measured(keyed, 1, 2, 8, {"key": "sk-very-secret"})
    assert cell.figures.completed == 2
    assert "sk-very-secret" not in json.dumps(report.to_dict())
    with pytest.raises(SparkbookError, match="status 401: Unauthorized"):
        measured(truth, 1, 2, 8, {"key": "sk-very-secret"})


def test_requests_of_a_wave_leave_together(truth):
    """The server answers none of them before the last one is there."""
    found = asked(truth, [body(together=16)] * 16, slots=16, timeout_s=60)
    assert [r.error for r in found] == [None] * 16


def test_open_loop_requests_leave_when_they_are_due_whoever_is_answered(truth):
    arrivals = [0.02 * n for n in range(12)]
    found = asked(
        truth, [body(4, together=12)] * 12, arrivals_s=arrivals, slots=2, timeout_s=60
    )  # more at a time than connections were opened
    assert [r.error for r in found] == [None] * 12
    assert all(r.late_s >= 0 for r in found)
    assert [r.start_s - r.late_s - found[0].start_s + found[0].late_s for r in found] == (
        pytest.approx(arrivals, abs=ROUNDED_S)
    )


def test_poisson_arrivals_are_the_same_for_a_seed(truth):
    _, cell, _ = measured(truth, 1, 20, 4, {"step": 0.001}, rates=[200.0])
    assert cell.load == "200 req/s" and cell.figures.steady_tok_s is None
    rng = random.Random("arrivals/0/200.0")
    due = list(itertools.accumulate(rng.expovariate(200.0) for _ in range(20)))
    first = cell.requests[0]
    assert all(r.late_s >= 0 for r in cell.requests)
    assert [r.start_s - r.late_s + first.late_s for r in cell.requests] == pytest.approx(
        [at - due[0] for at in due], abs=ROUNDED_S
    )


def test_a_time_limit_begins_nothing_later(truth):
    report = bench.measure(
        truth,
        bench.BenchPlan(
            classes=["prose"],
            concurrency=[2],
            seconds=0.3,
            max_tokens=4,
            extra={"truth": {"step": 0.001}},
        ),
        source=Quiet(),
    )
    (cell,) = report.cells
    assert cell.figures.completed >= 1
    # Two at a time, and each takes the server 20 ms: all of these would be half a minute's work.
    found = asked(truth, [body(4)] * 3000, slots=2, seconds=0.3)
    assert 1 <= len(found) < 3000


def test_ctrl_c_keeps_what_was_measured(truth):
    with load.Worker() as worker:
        calls = []

        def progress(count):
            calls.append(count)
            if count == 3:
                raise KeyboardInterrupt

        bodies = [body(step=0.01)] * 3 + [body(ttft=20)] * 9
        outcome = worker.run(job(truth, bodies), progress)
        assert outcome["interrupted"] and len(outcome["records"]) == 3
        again = worker.run(job(truth, [body()]))
        assert not again["interrupted"] and again["records"][0]["error"] is None


def test_an_engine_that_tells_no_times_cannot_be_compared_with(truth):
    plan = bench.BenchPlan(
        classes=["code"], concurrency=[1], requests=1, max_tokens=4, waves=0, extra={"truth": {}}
    )
    assert (
        load.agreeing(truth, plan, ("tokens",), interval_s=0.02).cells[0].figures.output_tokens == 4
    )
    with pytest.raises(SparkbookError, match="does not report the figures"):
        load.agreeing(truth, plan, ("tpot_s",), interval_s=0.02)


def test_nobody_there(truth):
    with pytest.raises(
        SparkbookError, match=r"http://127\.0\.0\.1:9 can't be measured: .*[Cc]onnect"
    ):
        bench.measure(Endpoint("http://127.0.0.1:9", "x"), source=Quiet())


def test_tls(tmp_path, monkeypatch):
    made = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            tmp_path / "key",
            "-out",
            tmp_path / "cert",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ],
        capture_output=True,
    )
    assert made.returncode == 0, made.stderr
    server = subprocess.Popen(
        [
            sys.executable,
            "-I",
            Path(__file__).with_name("truth.py"),
            tmp_path / "cert",
            tmp_path / "key",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        target = {
            "host": "localhost",
            "port": int(server.stdout.readline()),
            "tls": True,
            "path": "/v1/chat/completions",
            "slots": 2,
        }
        with load.Worker() as worker, pytest.raises(SparkbookError, match="certificate"):
            worker.run({**target, "bodies": [body()]})
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        with load.Worker() as worker:
            outcome = worker.run({**target, "bodies": [body()] * 4})
        assert [r["error"] for r in outcome["records"]] == [None] * 4
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def events_of(pieces, chunked):
    return [
        data
        for _, data in client.events([(float(n), piece) for n, piece in enumerate(pieces)], chunked)
    ]


def test_any_cut_gives_the_same_events():
    """A seeded fuzz: the stream is cut at random places, in any line ending, with and without
    chunked framing.
    """
    rng = random.Random(8)
    payloads = [
        json.dumps({"t": "é漢🙂"[: n % 4] + "0\\r\\n\\r\\n" * (n % 2)}, ensure_ascii=False).encode()
        for n in range(12)
    ] + [b"[DONE]"]
    for trial in range(300):
        end = rng.choice([b"\n", b"\r\n", b"\r"])
        stream = b"".join(
            (b": ping" + end + end if rng.random() < 0.2 else b"") + b"data: " + payload + end + end
            for payload in payloads
        )
        chunked = trial % 2 == 0
        if chunked:
            parts, at = [], 0
            while at < len(stream):
                size = rng.randint(1, 60)
                piece = stream[at : at + size]
                parts.append(b"%x\r\n%s\r\n" % (len(piece), piece))
                at += size
            stream = b"".join(parts) + b"0\r\n\r\n"
        cuts = sorted(rng.sample(range(1, len(stream)), rng.randint(1, 40)))
        pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        assert events_of(pieces, chunked) == payloads


def test_an_event_has_the_stamp_of_the_read_that_completed_it():
    reads = [(1.0, b"data: a"), (2.0, b"b\n"), (3.0, b"\ndata: c\n\nda"), (4.0, b"ta: d\n\n")]
    assert list(client.events(reads, False)) == [(3.0, b"ab"), (3.0, b"c"), (4.0, b"d")]


def test_a_stream_cut_inside_its_last_event_does_not_have_it():
    assert events_of([b"data: a\n\ndata: b\n"], False) == [b"a"]


def kept(*parts):
    """The record of a reply whose connection gave these parts, one a read."""
    connection = client.Connection()
    reply = connection.reply = client.Reply(0, 0, None)
    connection.framing = client.Dechunker()
    for part in parts:
        connection.data_received(part)
    return client.record(reply)


def event(**choice):
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def test_half_a_character_is_mended_or_replaced():
    """Else the file of results could not be written, when all of it has been measured."""
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    cut = (
        event(delta={"content": "w \ud83d"}),
        event(delta={"content": "\ude00 \ud800"}),
        event(delta={}, finish_reason="\ud83d"),
    )
    record = kept(head, *cut)
    assert (record["text"], record["finish"], record["error"]) == (
        "w \U0001f600 \ufffd",
        "\ufffd",
        None,
    )
    assert kept(head, b'data: {"error": "\\ud800"}\n\n')["error"] == "the stream says: \ufffd"
    assert (
        kept(head.replace(b"200", b"500"), b'{"error": "\\ud800"}')["error"] == "status 500: \ufffd"
    )


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "-5", "+5", "1_0"])
def test_a_length_or_a_status_that_is_no_number_is_none(number):
    body = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {number}\r\n\r\n".encode("latin-1", "replace")
    assert kept(head, body)["text"] == "x"
    assert kept(f"HTTP/1.1 {number} OK\r\n\r\n".encode("latin-1", "replace"), body)["status"] == 0


def test_the_framing_of_a_long_reply_is_read_once(monkeypatch):
    fed = []
    feed = client.Dechunker.feed
    monkeypatch.setattr(
        client.Dechunker, "feed", lambda self, data: fed.append(len(data)) or feed(self, data)
    )
    connection = client.Connection()
    connection.reply = client.Reply(0, 0, None)
    connection.framing = client.Dechunker()
    inside = (  # ends as the last chunk does, and is a piece of a longer one
        b"a\r\n12345\r\n0\r\n\r\n"
    )
    connection.data_received(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (100 * len(inside))
    )
    for _ in range(100):
        connection.data_received(inside)
        assert connection.reply is not None
    connection.data_received(b"\r\n0\r\n\r\n")
    assert connection.reply is None and sum(fed) < 102 * len(inside) + 20


def test_a_page_that_answers_is_one_line_of_the_error():
    page = b"<html>\n<body>\n" + b"<p>502 Bad Gateway</p>\n\n" * 40
    told = kept(b"HTTP/1.1 502 Bad Gateway\r\n\r\n", page)["error"]
    assert (
        told.startswith("status 502: <html> <body> <p>502 Bad Gateway</p> <p>") and len(told) <= 220
    )


@pytest.mark.parametrize("rate", [1e-300, 0.0, 0.009, float("nan"), 1e5])
def test_a_rate_that_no_row_ends_with_is_refused(rate):
    with pytest.raises(SparkbookError, match=r"rates from 0\.01"):
        bench.BenchPlan(concurrency=(), rates=(rate,))
