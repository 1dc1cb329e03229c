"""Is the output the same? Invented replies whose first difference is known."""

import pytest
from sparkbook.bench.equality import Answer, compare, difference, wilson
from sparkbook.errors import SparkbookError


def answer(tokens, tops=None, prompt="p", text=""):
    return Answer(prompt, tuple(tokens), tuple(tops or [{t: -0.1} for t in tokens]), text)


@pytest.mark.parametrize(
    ("b", "tops", "state", "at", "margin"),
    [
        ("abc", None, "identical", None, None),
        ("abd", [{"a": -0.1}, {"b": -0.1}, {"c": -0.70, "d": -0.72}], "near-tie", 2, 0.02),
        ("abd", [{"a": -0.1}, {"b": -0.1}, {"c": -0.70, "d": -0.95}], "near-tie", 2, 0.25),
        ("abd", [{"a": -0.1}, {"b": -0.1}, {"c": -0.60, "d": -0.975}], "real", 2, 0.375),
        ("abd", [{"a": -0.1}, {"b": -0.1}, {"c": -0.10, "d": -2.40}], "real", 2, 2.3),
        ("xbc", [{"a": -0.1, "q": -1.1}, {"b": -0.1}, {"c": -0.1}], "real", 0, 1.0),
        ("ab", None, "real", 2, None),
    ],
)
def test_the_first_difference(b, tops, state, at, margin):
    found = difference(answer("abc", tops), answer(b))
    assert (found.state, found.at) == (state, at)
    assert found.margin == (None if margin is None else pytest.approx(margin))
    assert found.at_least == (b == "xbc")


def replies(count, real):
    tops = [{"a": -0.1, "z": -3.0}]
    return [answer("z" if i < real else "a", tops, f"p{i}") for i in range(count)]


def test_real_differences_beyond_the_control_fail():
    off = replies(20, 0)
    assert compare(off, replies(20, 0), replies(20, 0)).passed
    assert not compare(off, replies(20, 1), replies(20, 0)).passed
    assert compare(off, replies(20, 1), replies(20, 1)).passed, "the server itself is no better"
    assert "the same server asked twice: 20 identical, 0 real" in str(
        compare(off, replies(20, 2), off)
    )


def test_another_limit_judges_the_same_replies_anew():
    tie = [{"a": -0.70, "z": -0.95}]
    without = [answer("a", tie, "p0"), answer("a", tie, "p1")]
    found = compare(without, [answer("z", tie, "p0"), answer("a", tie, "p1")], without)
    assert found.passed and found.count("near-tie") == 1
    tighter = found.under(0.13)
    assert not tighter.passed and (tighter.count("real"), tighter.count("identical")) == (1, 1)
    assert tighter.under(0.26) == found
    shorter = compare([answer("ab")], [answer("a")], [answer("ab")])
    assert shorter.under(9.0).count("real") == 1, "a reply that just ended has no margin"


def test_other_prompts_cannot_be_compared():
    with pytest.raises(SparkbookError):
        compare([answer("a", prompt="p")], [answer("a", prompt="q")])


def test_wilsons_interval():
    # The example of Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263.
    assert wilson(81, 263) == pytest.approx((0.3080, 0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 10)[1] == pytest.approx(0) and wilson(10, 10)[2] == pytest.approx(1)


@pytest.mark.parametrize(
    "body", ['{"choices": [{"message": null}]}', '{"choices": 7}', "{}", "[]", "[" * 100_000]
)
@pytest.mark.parametrize("stop", [None, "."])
def test_a_server_that_answers_something_else(body, stop, monkeypatch):
    import httpx
    import openai
    from sparkbook.bench import prompts
    from sparkbook.bench.equality import ask
    from sparkbook.serve.endpoint import Endpoint

    reply = httpx.MockTransport(
        lambda request: httpx.Response(
            200, content=body, headers={"content-type": "application/json"}
        )
    )
    client = openai.OpenAI(
        base_url="http://stub/v1",
        api_key="k",
        max_retries=0,
        http_client=httpx.Client(transport=reply),
    )
    monkeypatch.setattr(Endpoint, "client", lambda self, *timeouts: client)
    with pytest.raises(SparkbookError, match="http://stub"):
        ask(Endpoint("http://stub", "m"), [prompts.Prompt("p", "hello")], stop=stop)
