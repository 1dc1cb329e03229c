"""What comes back from vLLM, and what is made of it: pure, with recorded and hostile replies."""

import json

import pytest
from sparkbook import lint
from sparkbook.launch.line import Line, Word
from sparkbook.lint.asked import combine
from sparkbook.lint.case import Case
from sparkbook.oracle import asking, programs
from sparkbook.oracle.asking import Question, Where
from sparkbook.oracle.programs import Reply
from sparkbook.releases.answers import Answer, Judge

HEAD = {
    "vllm": "0.32.0",
    "torch": "2.13.0",
    "machine": "NVIDIA GB10",
    "installed": {"triton": True},
}
QUESTION = Question(id="a", words=("ORG/MODEL",))
JUDGE = Judge(vllm="0.32.0", machine="NVIDIA GB10")


def answered(*lines: object, late: bool = False) -> Answer:
    reply = Reply([line for line in lines if isinstance(line, dict)], ["last words"], late)
    (answer,) = asking.answers([QUESTION], reply, Where(image="mine:1"))
    return answer


def test_an_answer_is_read() -> None:
    answer = answered(HEAD, {"id": "a", "accepted": True, "depth": "config"})
    assert answer.reached("config") and not answer.reached("model")
    assert str(answer.judge) == "vLLM 0.32.0 in mine:1"


@pytest.mark.parametrize(
    ("lines", "late", "words"),
    [
        ((), False, "ended without an answer"),
        ((), True, "too long to start"),
        (({"failed": "ImportError: no vllm"},), False, "ImportError: no vllm"),
        ((HEAD,), True, "no time was left"),
        ((HEAD, {"id": "b", "accepted": True}), False, "ended without an answer"),
        ((HEAD, {"id": "a", "accepted": "yes"}), False, "accepted"),
        ((HEAD, {"id": "a", "accepted": True, "depth": "moon"}), False, "depth"),
        ((HEAD, {"id": "a", "resolved": {"dtype": ["only one"]}}), False, "resolved"),
        (
            (HEAD, {"id": "a", "weights": [{"kind": "x", "dtype": "y", "bytes": -1}]}),
            False,
            "weights",
        ),
        ((HEAD, {"id": "a", "refused": "x" * 10_000}), False, "refused"),
        (({"vllm": 7},), False, "can't be read"),
    ],
)
def test_a_hostile_reply_is_a_failure_and_no_verdict(lines: tuple, late: bool, words: str) -> None:
    answer = answered(*lines, late=late)
    assert answer.failed is not None and words in answer.failed
    assert not answer.accepted and answer.refused is None


def test_what_is_no_json_object_is_skipped() -> None:
    text = 'noise\n[1]\n{"vllm": "0.32.0"}\n' + "[" * 100_000
    assert programs._objects(text) == [{"vllm": "0.32.0"}]


def test_the_log_of_an_image_reaches_no_terminal_as_it_is() -> None:
    assert programs._last("\x1b[31mred\x1b[0m\n\n" + "a" * 1000) == ["[31mred[0m", "a" * 400]


@pytest.mark.parametrize(
    ("asked", "got", "changed"),
    [
        ("awq", "modelopt_mixed", True),
        ("fp8", "fp8", False),
        ("flashinfer", "FLASHINFER", False),
        ("auto", "bfloat16", False),
        (-1, 131072, False),
        (None, 4, False),
        (8, 4, True),
    ],
)
def test_a_value_is_changed_if_the_line_means_another(
    asked: object, got: object, changed: bool
) -> None:
    answer = Answer(judge=JUDGE, resolved={"x": [asked, got]})
    assert ("x" in answer.changed) is changed


def test_a_finding_that_vllm_contradicts_is_dropped_and_said_so() -> None:
    line = "vllm serve ORG/MODEL --kv-cache-dtype fp7"
    assert "FLAG104" in [f.rule for f in lint.lint(line, release="0.32.0").findings]
    said = Answer(judge=JUDGE, accepted=True, depth="config")
    report = lint.lint(line, release="0.32.0", said=said)
    assert "FLAG104" not in [f.rule for f in report.findings]
    assert "dropped FLAG104, as vLLM 0.32.0 accepts the line" in str(report.contradicted[0])
    assert report.to_dict()["summary"]["contradicted"]


def test_another_release_contradicts_nothing() -> None:
    found = list(lint.lint("vllm serve ORG/MODEL --kv-cache-dtype fp7", release="0.24.0").findings)
    said = Answer(judge=JUDGE, accepted=True, depth="config")
    kept, dropped = combine(found, said, "0.24.0")
    assert "FLAG104" in [f.rule for f in kept] and not dropped


def test_a_refusal_is_an_error_with_vllms_words() -> None:
    said = Answer(judge=JUDGE, refused="invalid tool call parser: x")
    report = lint.lint("vllm serve ORG/MODEL", release="0.32.0", said=said)
    assert report.findings.worst == "error"
    assert report.findings[0].rule == "ASK101"
    assert "invalid tool call parser: x" in report.findings[0].message


def test_no_secret_and_no_file_of_the_host_is_passed_on() -> None:
    line = Line(
        serve=[Word("openai/gpt-oss-20b")],
        env={
            "VLLM_API_KEY": "s",
            "VLLM_USE_X": "1",
            "HF_TOKEN": "s",
            "VLLM_PLUGINS": "mine",
            "VLLM_Y": None,
        },
    )
    question = asking.of_case(Case(line, "0.32.0"))
    assert question.env == {"VLLM_USE_X": "1"}
    assert "s" not in json.dumps(question.to_dict()["env"])


@pytest.mark.parametrize("model", ["/models/../../etc", "../x", "/", "~/m"])
def test_a_path_as_a_models_name_stays_in_its_folder(model: str) -> None:
    name = asking._relative(model)
    assert name and not name.startswith(("/", "~")) and ".." not in name.split("/")


def test_the_program_travels_whole() -> None:
    import base64
    import io
    import zipfile

    names = zipfile.ZipFile(io.BytesIO(base64.b64decode(programs.packed()))).namelist()
    assert {"__main__.py", "depths.py", "pretending.py"} <= set(names)
    assert len(programs.packed()) < 128 * 1024  # what one argument of a program may be long
