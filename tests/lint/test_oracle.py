"""Generated argument sets, with vLLM's own parser as the judge, both ways: what it refuses is an
error here, what it accepts is none.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparkbook import lint, releases
from sparkbook.launch.line import Line, Word

pytestmark = pytest.mark.engine
RELEASE = releases.get("0.32.0")

ELSEWHERE = {
    # Read files, or are judged by more than the parser: a wrong value shows later, when the engine
    # starts.
    "config",
    "chat-template",
    "lora-modules",
    "grpc-port",
    "grpc",
    "model",
    "tool-call-parser",
    "reasoning-parser",
    "attention-backend",
    "quantization",
    "speculative-config",
    "spec-method",
    "spec-model",
    "spec-tokens",
    "nnodes",
    "load-format",
    "fail-on-environ-validation",
    "served-model-name",
    "tool-parser-plugin",
    "mm-processor-device",
    "data-parallel-multi-port-external-lb",
}
OPTIONS = [option for name, option in sorted(RELEASE.options.items()) if name not in ELSEWHERE]
GOOD = {
    "int": ["1", "0", "32"],
    "float": ["0.5", "1", "1e-3"],
    "human_int": ["64k", "1M", "8192", "2.5k"],
    "human_int_or_auto": ["64k", "auto", "-1", "4096"],
    "json": ["{}", '{"a": 1}'],
    "json_or_str": ["{}", "text"],
    "str": ["text", "a.b", "1"],
}
BAD = {
    "int": ["x", "1.5", "64k", ""],
    "float": ["x", "0,5"],
    "human_int": ["x", "2.5K", "64kk"],
    "human_int_or_auto": ["x", "AUTOMATIC"],
    "json": ["{a: 1}", "{", "x"],
    "json_or_str": ["{a: 1}"],
    "str": [],
}


@st.composite
def option_words(draw):
    """One option with its values: mostly right, sometimes wrong in one of the ways that people get
    them wrong.
    """
    option = draw(st.sampled_from(OPTIONS))
    name = f"--{option.name}"
    if draw(st.booleans()):
        name = name.replace("-", "_").replace("__", "--", 1)
    if option.negatable and draw(st.booleans()):
        name = f"--no-{option.name}"
    if not option.takes_value:
        return [name] if draw(st.integers(0, 9)) else [f"{name}=true"]
    if not draw(st.integers(0, 14)):
        return [name]
    kind = option.type if not option.type.startswith("object:") else "object"
    if option.choices:
        words = (
            [str(choice) for choice in option.choices] if draw(st.integers(0, 4)) else ["nonsense"]
        )
    elif kind == "object":
        words = ["{", "{x}"]
    else:
        words = GOOD[kind] if draw(st.integers(0, 4)) or not BAD[kind] else BAD[kind]
    count = (
        draw(st.integers(1, 2))
        if option.nargs == "+"
        else option.nargs
        if isinstance(option.nargs, int)
        else 1
    )
    values = [draw(st.sampled_from(words)) for _ in range(count)]
    return [f"{name}={values[0]}"] if len(values) == 1 and draw(st.booleans()) else [name, *values]


WRONG = st.sampled_from(
    [
        ["--max-model-length", "5"],
        ["--task", "generate"],
        ["--gpus", "all"],
        ["-x"],
        ["--max", "1"],
        ["stray"],
        ["--gpu-memory-util", "0.5"],
        ["-tp", "1"],
        ["-O3"],
        ["--enable-auto-tool-choice"],
        ["--enable-log-outputs"],
    ]
)
LINES = st.lists(
    st.one_of(
        option_words(), option_words(), option_words(), option_words(), option_words(), WRONG
    ),
    max_size=4,
).map(lambda groups: ["ORG/MODEL", *(word for group in groups for word in group)])


def errors(argv):
    report = lint.lint(Line(serve=[Word(word) for word in argv]), release=RELEASE.version)
    return [
        f"{finding.rule}: {finding.message}"
        for finding in report.findings
        # A number out of range passes the parser, and so do more GPUs than the machine has; vLLM
        # refuses both later.
        if finding.severity == "error" and finding.rule not in {"FLAG121", "SPARK104"}
    ]


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(LINES)
def test_the_linter_refuses_what_vllm_refuses_and_nothing_else(real_parser, argv):
    refused, found = real_parser.refusal(argv), errors(argv)
    assert bool(refused) == bool(found), f"{argv}\nvLLM: {refused}\nlinter: {found}"


def test_each_option_by_itself(real_parser):
    """Every option once with a right value and once with each wrong one."""
    differences = []
    for option in OPTIONS:
        kind = option.type
        right = [str(option.choices[0])] if option.choices else GOOD.get(kind, [])
        lines = [[f"--{option.name}"], [f"--{option.name}=true"]]
        lines += [
            [f"--{option.name}", value] for value in [*right, *BAD.get(kind, ["{"]), "None", ""]
        ]
        if option.negatable:
            lines.append([f"--no-{option.name}"])
        for line in lines:
            refused, found = real_parser.refusal(["ORG/MODEL", *line]), errors(["ORG/MODEL", *line])
            if bool(refused) != bool(found):
                differences.append(f"{line}: vLLM {refused}, linter {found}")
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize(
    "words",
    [
        "-tp 1",
        "-q fp8",
        "-O3",
        "-O 2",
        "-O=1",
        "--speculative_config.method mtp --speculative_config.num_speculative_tokens 1",
        "-cc.mode 3",
    ],
)
def test_short_forms_and_dotted_keys(real_parser, words):
    argv = ["ORG/MODEL", *words.split()]
    assert real_parser.refusal(argv) is None and errors(argv) == []
