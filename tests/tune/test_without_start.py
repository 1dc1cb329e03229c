"""What is left out without a start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.lint.case import Case
from sparkbook.releases.answers import Answer, Backend, Judge
from sparkbook.tune import space as spaces
from sparkbook.tune import text, without_start
from sparkbook.tune.space import Candidate
from typer.testing import CliRunner

SPACE = spaces.read()
JUDGE = Judge(vllm="0.32.0", machine="NVIDIA GB10")


def candidates(recipe: str, *wanted: str, use: str = "chat") -> list[Candidate]:
    """Return the baseline, and the candidates with these names."""
    found, _ = spaces.candidates(SPACE, recipes.load(recipe), use)
    by_key = {one.key: one for one in found}
    return [found[0], *(by_key[key] for key in wanted)]


def answer(**said: object) -> Answer:
    """Return what vLLM might say; accepted unless it is refused or failed."""
    accepted = "refused" not in said and "failed" not in said
    return Answer.model_validate({"judge": JUDGE, "depth": "model", "accepted": accepted, **said})


def backends(experts: str) -> list[Backend]:
    """Return the backends of a model with experts."""
    return [Backend(kind="experts", backend=f"MoEMethod ({experts})", layers=36)]


def test_a_combination_that_is_known_to_be_bad_is_named() -> None:
    found = without_start.prune(candidates("gpt-oss-120b", "--moe-backend triton"))
    assert [one.key for one in found.left] == ["baseline"]
    assert [(one.reason, one.text[:6]) for one in found.dropped] == [("known bad", "BAD130")]
    assert found.judge is None
    assert "not asked" in found.notes[0]


@pytest.mark.parametrize(
    ("recipe", "candidate", "code"),
    [
        ("qwen3-vl-embedding-8b", "--load-format fastsafetensors", "BAD116"),
        ("qwen3.8-27b-nvfp4", "image nvcr.io/nvidia/vllm:26.04-py3", "BAD126"),
    ],
)
def test_so_is_a_loader_or_an_image(recipe: str, candidate: str, code: str) -> None:
    (dropped,) = without_start.prune(candidates(recipe, candidate)).dropped
    assert dropped.reason == "known bad"
    assert dropped.text.startswith(code)


def test_an_option_that_the_release_lacks_is_invalid() -> None:
    wanted = candidates("gpt-oss-120b", "--linear-backend marlin")
    assert without_start.prune(wanted).dropped[0].text.startswith("FLAG103")
    assert without_start.prune(wanted, release="0.32.0").dropped == []


def test_two_lines_with_the_same_values_and_backends_are_one_candidate() -> None:
    wanted = candidates(
        "gpt-oss-120b", "--moe-backend marlin", "--moe-backend cutlass", "--async-scheduling"
    )

    def ask(asked: Sequence[Candidate]) -> list[Answer]:
        said = {
            "baseline": answer(backends=backends("MARLIN"), resolved={"seed": [None, 0]}),
            "--moe-backend marlin": answer(
                backends=backends("MARLIN"),
                resolved={"seed": [None, 0], "moe_backend": ["marlin", "marlin"]},
            ),
            "--moe-backend cutlass": answer(
                backends=backends("CUTLASS"),
                resolved={"seed": [None, 0], "moe_backend": ["cutlass", "cutlass"]},
            ),
            # vLLM says nothing of this one, so that it can't be taken for the baseline.
            "--async-scheduling": answer(backends=backends("MARLIN"), resolved={"seed": [None, 0]}),
        }
        return [said[one.key] for one in asked]

    found = without_start.prune(wanted, ask)
    assert [(one.candidate.key, one.reason) for one in found.dropped] == [
        ("--moe-backend marlin", "the same")
    ]
    assert found.dropped[0].text.endswith("baseline")
    assert found.judge == "vLLM 0.32.0"


def test_a_backend_that_vllm_does_not_name_is_a_candidate_of_its_own() -> None:
    layers = [Backend(kind="QKVParallelLinear", backend="ModelOptLinearMethod", layers=36)]
    said = [
        answer(backends=layers),
        answer(backends=layers, resolved={"moe_backend": ["marlin", "marlin"]}),
    ]
    wanted = candidates("gpt-oss-120b", "--moe-backend marlin")
    assert without_start.prune(wanted, lambda _: said).dropped == []


def test_what_vllm_refuses_goes_and_what_it_does_not_answer_stays() -> None:
    wanted = candidates("gpt-oss-120b", "--moe-backend marlin", "--moe-backend cutlass")
    said = [answer(), answer(refused="no such kernel"), answer(failed="it crashed")]
    found = without_start.prune(wanted, lambda _: said)
    assert [(one.candidate.key, one.text) for one in found.dropped] == [
        ("--moe-backend marlin", "no such kernel")
    ]
    assert [one.key for one in found.left] == ["baseline", "--moe-backend cutlass"]
    assert "no answer about 1 candidates" in found.notes[0]


def test_a_recipe_that_vllm_refuses_as_it_is_is_not_tuned() -> None:
    wanted = candidates("gpt-oss-120b", "--moe-backend marlin")
    with pytest.raises(SparkbookError, match="refuses the recipe as it is: no such parser"):
        without_start.prune(wanted, lambda _: [answer(refused="no such parser"), answer()])


def test_an_image_is_judged_by_its_own_release_and_has_to_be_here() -> None:
    new, old = "image vllm/vllm-openai:v0.28.0", "image vllm/vllm-openai:v0.24.0-ubuntu2404"
    both = f"--linear-backend marlin {new}"
    wanted = candidates("gpt-oss-120b", "--linear-backend marlin", new, old, both)
    found = without_start.prune(wanted, here={wanted[2].recipe.launch.image or ""})
    assert [one.key for one in found.left] == ["baseline", new, both]
    assert {one.candidate.key: one.text[:36] for one in found.dropped} == {
        "--linear-backend marlin": "FLAG103: --linear-backend came with ",
        old: "docker pull vllm/vllm-openai:v0.24.0",
    }
    assert any("Which images are on" in note for note in without_start.prune(wanted).notes)


def test_the_release_of_another_image_is_asked_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkbook.oracle import asking
    from sparkbook.oracle.engines import Engine

    def choose(case: Case, _release: str | None, _image: str | None) -> tuple[asking.Where, None]:
        if case.version == "0.24.0":
            raise SparkbookError("vLLM 0.24.0 is not here")
        return asking.Where(engine=Engine(case.version, Path("python"))), None

    def ask(questions: Sequence[asking.Question], where: asking.Where, **_: object) -> list[Answer]:
        assert where.engine
        return [answer().model_copy(update={"id": where.engine.version}) for _ in questions]

    monkeypatch.setattr(asking, "choose", choose)
    monkeypatch.setattr(asking, "ask", ask)
    new, old = "image vllm/vllm-openai:v0.28.0", "image vllm/vllm-openai:v0.24.0-ubuntu2404"
    wanted = candidates("gpt-oss-120b", new, old, "--async-scheduling")
    asked = without_start.asker(wanted[0])
    assert asked
    answers = asked(wanted)
    assert [one.id for one in answers] == ["0.19.0", "0.28.0", None, "0.19.0"]
    assert answers[2].failed == "vLLM 0.24.0 is not here"


def test_what_does_not_fit_goes() -> None:
    baseline = candidates("gpt-oss-120b")[0]
    args = {**baseline.recipe.serve.args, "gpu-memory-utilization": 0.3}
    serve = baseline.recipe.serve.model_copy(update={"args": args})
    small = Candidate(
        baseline.recipe.model_copy(update={"serve": serve}),
        {"memory": {"gpu-memory-utilization": 0.3}},
    )
    found = without_start.prune([baseline, small])
    assert [(one.candidate, one.reason) for one in found.dropped] == [(small, "too large")]


def test_what_contains_a_dropped_change_is_counted_and_not_listed() -> None:
    found, _ = spaces.candidates(SPACE, recipes.load("gpt-oss-120b"), "chat")
    pruned = without_start.prune(found)
    lines = list(text.pruned(pruned))
    assert lines[0].startswith(f"{len(pruned.left)} of {len(found)} candidates are left")
    triton = "--moe-backend triton"
    bad = [line for line in lines if line.startswith("  known bad") and triton in line]
    assert len(bad) == 1
    more = sum(
        one.reason == "known bad" and one.candidate.key != triton
        for one in pruned.dropped
        if triton in one.candidate.key
    )
    assert f"(and {more} that contain it)" in bad[0]


def test_the_command_gives_the_same_as_json() -> None:
    from sparkbook.cli import app

    line = ["tune", "gpt-oss-120b", "--for", "chat", "--dry-run", "--json"]
    value = json.loads(CliRunner().invoke(app, line).stdout)
    assert value["candidates"] == len(value["left"]) + len(value["dropped"])
    assert value["left"][0] == {"candidate": "baseline", "changes": {}}
    refused = CliRunner().invoke(app, [*line, "--quality", "best"])
    assert isinstance(refused.exception, SparkbookError)


@pytest.mark.engine
def test_the_engine_itself_says_which_lines_are_one() -> None:
    wanted = candidates(
        "embedded/tiny-mtp-k3",
        "--speculative-config.num_speculative_tokens 1",
        "--max-num-batched-tokens 2048",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        use="users",
    )
    found = without_start.prune(wanted, without_start.asker(wanted[0]))
    assert [one.candidate.key for one in found.dropped] == [
        "--max-num-batched-tokens 2048",
        "--enable-prefix-caching",
    ]
    assert {one.reason for one in found.dropped} == {"the same"}
