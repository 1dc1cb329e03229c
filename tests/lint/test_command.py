"""`sparkbook lint`: exit codes, JSON, suppressions, and repairs."""

import json
import os
import subprocess
import sys

import pytest
from sparkbook import lint
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from typer.testing import CliRunner

BAD = (
    "docker run --gpus all --ipc=host --restart always vllm/vllm-openai:v0.28.0 vllm serve a/b"
    " --swap-space 4 --max-num-seqs 4\n"
)
GOOD = "vllm serve a/b --gpu-memory-utilization 0.8 --max-num-seqs 4\n"


def run(*words, text=None):
    return CliRunner().invoke(app, ["lint", *words], input=text)


@pytest.mark.parametrize(("text", "code"), [(BAD, 1), (GOOD, 0)])
def test_the_exit_code_is_the_verdict(text, code, tmp_path):
    file = tmp_path / "line.sh"
    file.write_text(text, "utf-8")
    assert run(str(file)).exit_code == run("-", text=text).exit_code == code


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-recipe"],
        ["gpt-oss-20b", "--release", "0.1"],
        ["gpt-oss-20b", "--ignore", "FLAG999"],
    ],
)
def test_what_cannot_be_used_is_an_error_of_its_own(words):
    assert isinstance(run(*words).exception, SparkbookError)


def test_json_has_the_shape_of_every_judgement():
    answer = json.loads(run("-", "--json", text=BAD).output)
    assert set(answer["findings"][0]) == {
        "rule",
        "kind",
        "severity",
        "message",
        "evidence",
        "fix",
        "why",
        "source",
        "since",
        "until",
        "confidence",
    }
    assert answer["findings"][0]["kind"] == "entrypoint"
    assert (
        answer["summary"]["error"] == 2
        and answer["summary"]["release"] == "0.28.0"
        and answer["summary"]["assumed"] is None
    )


def test_what_a_config_file_may_state_is_not_missed():
    assert {"MEM101", "MEM105"} <= {f.rule for f in lint.lint("vllm serve a/b").findings}
    named = {f.rule for f in lint.lint("vllm serve a/b --config /config/model.yaml").findings}
    assert not {"MEM101", "MEM105"} & named


def test_rules_are_ignored_by_code():
    shown = run("-", "--ignore", "img104,FLAG102", text=BAD)
    assert shown.exit_code == 0 and "ignored IMG104: ignored on the command line" in shown.output


def test_a_suppression_in_the_text_gives_its_reason():
    report = lint.lint(
        BAD + "# lint: ignore RUN103, RUN106 the unit has run like this since March\n"
    )
    assert ("RUN103", "the unit has run like this since March") in report.suppressed
    assert not {"RUN103", "RUN106"} & {finding.rule for finding in report.findings}


@pytest.mark.parametrize("comment", ["# lint: ignore RUN103", "# lint: ignore RUN999 because"])
def test_a_suppression_without_a_reason_or_a_rule_is_refused(comment):
    with pytest.raises(SparkbookError):
        lint.lint(BAD + comment + "\n")


def test_a_suppression_in_a_recipe_file(tmp_path):
    file = tmp_path / "mine.yaml"
    own = "extends: gpt-oss-20b\nid: mine\ncontainer: {restart: unless-stopped}\n"
    file.write_text(f"{own}# lint: ignore RUN103 proven\n", "utf-8")
    assert ("RUN103", "proven") in lint.lint(str(file)).suppressed


def test_fix_repairs_the_file_and_shows_the_difference(tmp_path):
    file = tmp_path / "line.sh"
    file.write_text("# kept\n" + BAD.replace(" --max", " \\\n  --max"), "utf-8")
    shown = run(str(file), "--fix")
    assert shown.exit_code == 0
    assert "-docker run --gpus all" in shown.output and "+docker run --gpus all" in shown.output
    assert (
        file.read_text("utf-8") == "# kept\ndocker run --gpus all --ipc=host --restart on-failure:3"
        " vllm/vllm-openai:v0.28.0 a/b \\\n  --max-num-seqs 4 --gpu-memory-utilization 0.80\n"
    )
    assert "-docker" not in run(str(file), "--fix").output, "a second run has nothing to do"


def test_a_repair_that_cannot_be_written_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "line.sh"
    file.write_text(BAD, "utf-8")
    line = [
        "bash",
        "-c",
        (
            f'ulimit -f 0; exec "{sys.executable}" -c "from sparkbook.cli import main; main()" lint'
            " line.sh --fix"
        ),
    ]
    done = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"sparkbook: {file.name} can't be written: File too large\n",
    )
    assert file.read_text("utf-8") == BAD and list(tmp_path.iterdir()) == [file]


def shell(line, cwd, **variables):
    words = [
        "bash",
        "-c",
        (
            f'sparkbook() {{ "{sys.executable}" -c "from sparkbook.cli import main; main()" "$@";'
            f" }}\n{line}"
        ),
    ]
    return subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_a_file_is_found_by_a_name_with_spaces_and_through_a_pipe(tmp_path):
    file = tmp_path / "my line.txt"
    file.write_text(BAD, "utf-8")
    assert run(str(file)).output == run("-", text=BAD).output
    done = shell(
        'sparkbook lint <(cat "my line.txt"); cat "my line.txt" | sparkbook lint /dev/stdin',
        tmp_path,
    )
    assert done.stderr == b"" and done.stdout.count(b"error   IMG104") == 2
    run(str(file), "--fix")
    assert "-docker" not in run(str(file), "--fix").output and "--swap-space" not in file.read_text(
        "utf-8"
    )


@pytest.mark.parametrize("verb", ["lint", "plan", "diagnose", "record out --log"])
def test_a_closed_standard_input_is_told(verb, tmp_path):
    done = shell(f"sparkbook {verb} - <&-", tmp_path)
    assert (done.returncode, done.stderr[:36]) == (2, b"sparkbook: standard input is closed:")


def test_a_terminal_without_all_signs_shows_the_rest(tmp_path):
    done = shell(
        "sparkbook plan gpt-oss-120b; sparkbook lint gpt-oss-20b; sparkbook lint no-such-\u00f6"
        " 2>&1",
        tmp_path,
        PYTHONIOENCODING="ascii",
    )
    assert (
        b"Traceback" not in done.stderr
        and b"there is no recipe" in done.stdout
        and b"?" in done.stdout
    )


def test_repairs_at_one_place_come_in_the_same_order_in_every_process():
    code = (
        "from sparkbook import lint; print(lint.repair(lint.lint('vllm serve"
        " nvidia/Qwen3.6-35B-A3B-NVFP4 --max-num-seqs 8'))[0])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in "0123"
    }
    assert len(seen) == 1 and seen.pop().count("--") == 3


@pytest.mark.parametrize("count", [2, 3, 5000])
def test_an_option_given_many_times_is_one_finding_and_one_repair(count):
    each = " ".join(f"--max-model-len {number}" for number in range(1, count + 1))
    report = lint.lint(f"vllm serve a/b {each} --port 8000", "0.32.0")
    [again] = [one for one in report.findings if one.rule == "FLAG107"]
    times = "twice" if count == 2 else f"{count:,} times"
    assert again.message == f"--max-model-len is given {times}; the last one counts."
    assert report.fixed().startswith(f"vllm serve a/b --max-model-len {count} --port 8000")


def test_json_of_a_repair_is_json(tmp_path):
    file = tmp_path / "line.sh"
    file.write_text(BAD, "utf-8")
    answer = json.loads(run(str(file), "--fix", "--json").output)
    assert answer["diff"].startswith(f"--- {file}") and answer["summary"]["error"] == 0
    assert "diff" not in json.loads(run(str(file), "--json").output)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("empty.txt", "", "{}: there is no launch line"),
        (".env", "A=1\nB='x y'\n", "{}: this text only sets variables (A, B), as the .env file"),
        (".env", "# keys\nexport A=1", "{}: this text only sets variables (A), as"),
        (".env", "ARGS=--port 8000\nA=\nB=\nC=", "{}: this text only sets variables (ARGS, A, B"),
        ("run.sh", "A=1 python serve.py", "{}: there is no launch line"),
        ("run.sh", "A=1 python a.py\nB=2 python b.py", "{}: there is no launch line"),
        ("run.sh", "export A=1 && ./serve", "{}: there is no launch line"),
        ("run.sh", "export A='x y'; ./serve", "{}: there is no launch line"),
        ("token.txt", "hf_AbCdEfGhIjKl=\nYWJjZGVmZ2hp==\n", "{}: there is no launch line"),
        ("nan.json", "[", "{}: this is not YAML"),
        ("dup.yaml", "a: 1\na: 2\n", "{}: this is not YAML in line 2: the key 'a' is given twice"),
        ("gone.txt", None, "there is no file {}"),
        ("", None, "{} is a folder"),
    ],
)
def test_what_is_wrong_with_a_file_names_it(name, text, told, tmp_path):
    file = tmp_path / name
    if text is not None:
        file.write_text(text, "utf-8")
    assert str(run(str(file)).exception).startswith(told.format(file))


def test_a_link_in_a_circle_is_told(tmp_path):
    link = tmp_path / "loop"
    link.symlink_to(link)
    assert str(run(str(link)).exception).startswith(f"{link} can't be read")


def test_standard_input_is_only_shown():
    assert (
        "+vllm serve a/b --max-model-len 5"
        in run("-", "--fix", text="vllm serve a/b --max-model-length 5\n").output
    )


def test_a_recipe_is_not_rewritten():
    assert isinstance(run("gpt-oss-20b", "--fix").exception, SparkbookError)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("vllm serve a/b --port 1 --port 2", "vllm serve a/b --port 2"),
        ("vllm serve a/b --gpu-memory-util=0.8", "vllm serve a/b --gpu-memory-utilization=0.8"),
        (
            "vllm serve RedHatAI/x-NVFP4 \\\n  --quantization modelopt \\\n  --port 2",
            "vllm serve RedHatAI/x-NVFP4 \\\n  --port 2",
        ),
        (
            "vllm serve google/gemma-4-31B-it --tool-call-parser gemma4",
            "vllm serve google/gemma-4-31B-it --tool-call-parser gemma4 --enable-auto-tool-choice",
        ),
    ],
)
def test_mechanical_repairs(before, after):
    """The rules about memory are left out here, whose repairs add to every line."""
    memory = ["MEM101", "MEM105"]
    fixed, report = lint.repair(lint.lint(before, ignore=memory), ignore=memory)
    assert fixed == after
    assert lint.lint(fixed, ignore=memory).findings == report.findings


@pytest.mark.parametrize(
    "rule", [rule for rule in lint.RULES.values() if " " in rule.fails], ids=lambda rule: rule.code
)
def test_a_repair_leaves_a_line_that_can_be_read_and_is_no_worse(rule):
    report = lint.lint(rule.fails, release=rule.release)
    fixed, after = lint.repair(report, rule.release)
    if fixed != report.text:
        lint.read(fixed)
        assert after.findings.summary["error"] <= report.findings.summary["error"]
        assert {f.rule for f in after.findings if f.severity == "error"} <= {
            f.rule for f in report.findings
        }


def test_a_parser_that_the_release_lacks_is_not_advised():
    line = "vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
    (old,) = [f for f in lint.lint(line, release="0.15.1").findings if f.rule == "MODEL109"]
    assert "Take another image" in old.fix and "0.17.1" in old.fix
    (new,) = [f for f in lint.lint(line, release="0.32.0").findings if f.rule == "MODEL109"]
    assert new.fix == "Add --reasoning-parser nemotron_v3."
