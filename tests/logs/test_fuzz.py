"""Whatever a log holds, the answer is a diagnosis. The long run is tools/fuzz_logs.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkbook import logs
from sparkbook.errors import SparkbookError
from sparkbook.logs.verdict import MEANINGS

FRAGMENTS = [piece for s in logs.signatures() for piece in (s.fails, s.passes)]
PIECES = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.text(max_size=80),
    st.sampled_from(
        [
            "\n",
            "\r",
            "\x1b[31m",
            "Traceback (most recent call last):\n",
            '  File "x.py", line 1, in f\n',
            "(EngineCore pid=1) ",
            "-1",
            "1.2.3",
            "{",
            "'",
        ]
    ),
)


@settings(max_examples=300, deadline=2000)
@given(st.lists(PIECES, max_size=12), st.binary(max_size=30), st.integers(0, 2000))
def test_any_log(pieces, noise, cut):
    text = "".join(pieces).encode("utf-8", "replace")
    text = text[:cut] + noise + text[cut:]
    answer = logs.diagnose(text).to_dict()
    assert answer["summary"]["verdict"] in MEANINGS


@settings(max_examples=200, deadline=2000)
@given(
    st.one_of(
        st.text(max_size=200),
        st.from_regex(
            r"(MemTotal|total|pid|fraction|VLLM::EngineCore)[:= ]+[0-9.kGiB]{0,30}\n?",
            fullmatch=True,
        ),
    )
)
def test_any_facts(text):
    try:
        facts = logs.parse_facts(text)
    except SparkbookError:
        return
    logs.diagnose(logs.signatures()["startup-memory-short"].fails, facts).to_dict()


@pytest.mark.slow
@settings(max_examples=100, deadline=2000)
@given(st.lists(st.integers(1, 400), max_size=40))
def test_pieces_of_a_file_are_the_file(cuts):
    whole = "\n".join(FRAGMENTS[:40]).encode()
    pieces, begin = [], 0
    for cut in cuts:
        pieces.append(whole[begin : begin + cut])
        begin += cut
    pieces.append(whole[begin:])

    class Slow:
        def read(self, _size):
            while pieces:
                if piece := pieces.pop(0):
                    return piece
            return b""

    assert logs.diagnose(Slow()).to_dict() == logs.diagnose(whole).to_dict()
