"""The claims register, and what holds the chapters to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.register import claim_model, claim_tests, claims, execute, prose
from sparkbook.runner import notebooks
from sparkbook.runner.pages import Page
from sparkbook.site import claims_page
from sparkbook.site.notebook_page import as_published

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = {
    path.stem: notebooks.read(path) for path in sorted((ROOT / "notebooks").glob("[!.]*.ipynb"))
}


def cell(source: str, kind: str = "markdown", tags: tuple[str, ...] = ()) -> dict[str, object]:
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags)}, "outputs": []}


class TestRegister:
    def test_every_tested_claim_comes_out_as_its_verdict_says(self) -> None:
        for claim in claims.every():
            if claim.test:
                assert claims.execute(claim).verdict == claim.verdict, (
                    claim.id,
                    claims.execute(claim).evidence,
                )

    def test_recipes_keep_the_same_figures(self) -> None:
        kept = [
            (claim.id, one.recipe, one.path, one.value, one.is_)
            for claim in claims.every()
            for one in claim.kept
        ]
        assert len(kept) > 15
        assert [entry for entry in kept if entry[3] != entry[4]] == []

    def test_no_recipe_shows_a_size_that_the_register_calls_false(self) -> None:
        false = {
            (test.counted.model, test.counted.gb)
            for claim in claims.every()
            if claim.verdict == "false" and claim.test
            for test in claim.test.now
            if test.counted and test.counted.gb
        }
        assert len(false) >= 6
        assert [
            recipe.id
            for recipe in recipes.all()
            if (recipe.model.repo, recipe.model.weights_gb) in false
        ] == []

    def test_every_verdict_occurs_and_none_is_most_of_a_document(self) -> None:
        for name, register in claims.registers().items():
            counted = claims.counts(register.claims)
            assert all(counted.values()), (name, counted)

    def test_a_chapter_named_as_executing_is_one(self) -> None:
        assert {claim.executed_by for claim in claims.every() if claim.executable} <= set(CHAPTERS)

    def test_a_wrong_verdict_is_found_when_the_claim_is_executed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claim = claims.get("guide-13-disable-flag")
        monkeypatch.setattr(execute, "get", lambda _: claim.model_copy(update={"verdict": "holds"}))
        with pytest.raises(
            SparkbookError, match="the register says 'holds', the execution found 'false'"
        ):
            claims.check("guide-13-disable-flag")

    def test_what_the_documents_say_of_an_image_is_no_proof(self) -> None:
        test = claims.Test(
            image=claim_model.Image(ref="vllm/vllm-openai:v0.19.0-cu130", vllm="0.19.0")
        )
        with pytest.raises(SparkbookError, match="prove nothing"):
            claims.run(test, "0.22.1")

    def test_a_check_that_can_only_refute_proves_nothing_by_passing(self) -> None:
        claim = claims.get("guide-7-super-speed")
        assert (
            claim.test
            and claim.test.only_refutes
            and claims.execute(claim).verdict == "not-testable"
        )
        failing = claim.test.model_copy(
            update={"now": [claims.Test(sum=claim_model.Sum(of="1 + 1", gives=3))]}
        )
        assert claims.execute(claim.model_copy(update={"test": failing})).verdict == "false"
        with pytest.raises(ValueError, match="an executed claim needs a verdict"):
            claims.Claim.model_validate(
                {
                    **claim.model_dump(by_alias=True, exclude={"test"}),
                    "test": {"now": [{"sum": {"of": "1 + 1", "gives": 2}}]},
                }
            )

    @pytest.mark.parametrize(
        ("test", "held", "evidence"),
        [
            ({"clean": "vllm serve openai/gpt-oss-20b --no-such-option 3"}, False, "FLAG101"),
            ({"clean": "vllm serve openai/gpt-oss-20b --max-num-seqs 4"}, True, "no error"),
            ({"clean": "gpt-oss-120b"}, True, "the line of gpt-oss-120b"),
            (
                {"shape": {"model": "openai/gpt-oss-120b", "is": {"num_hidden_layers": 36}}},
                True,
                "num_hidden_layers 36",
            ),
            (
                {"shape": {"model": "openai/gpt-oss-120b", "is": {"num_hidden_layers": 35}}},
                False,
                "num_hidden_layers 36",
            ),
            (
                {
                    "shape": {
                        "model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
                        "is": {"layers.mamba": 23},
                    }
                },
                True,
                "layers.mamba 23",
            ),
            (
                {"scores": {"recipe": "gemma-4-31b-it-nvfp4", "within": 0.5}},
                True,
                "-0.43 points (SciCode)",
            ),
            ({"scores": {"recipe": "gemma-4-31b-it-nvfp4", "within": 0.4}}, False, "6 scores"),
        ],
    )
    def test_what_a_line_a_config_and_a_table_of_scores_say(
        self, test: dict[str, object], held: bool, evidence: str
    ) -> None:
        found, said = claims.run(claims.Test.model_validate(test), "0.22.1")
        assert found is held and evidence in said

    def test_a_line_gives_its_settings_and_a_table_its_scores(self) -> None:
        line = claims.get("guide-7-qwen36-35b-line-starts").every_setting
        assert {
            ("--max-model-len", "65536"),
            ("num_speculative_tokens", "3"),
            ("CUTE_DSL_ARCH", "sm_121a"),
            ("--ipc", "host"),
        } <= set(line)
        scores = claims.get("guide-7-qwen36-35b-scores").every_figure
        assert (
            len(scores) == 16
            and str(scores[0]) == "85.6 %"
            and scores[0].name == "MMLU Pro, baseline"
        )
        assert ("max_tokens", "200") in claims.get("guide-6-max-tokens").every_setting

    @pytest.mark.parametrize(
        ("text", "value", "unit", "shown"),
        [
            ("273 GB/s", 273, "GB/s", "273 GB/s"),
            ("64.0 tok/s", 64.0, "tok/s", "64.0 tok/s"),
            ("25 to 60 s", "25 to 60", "s", "25 to 60 s"),
            ("3.76×", 3.76, "×", "3.76×"),
            ("3.80 %", "3.80", "%", "3.80 %"),
            ("3,105 tok/s", "3,105", "tok/s", "3,105 tok/s"),
            (65536, 65536, "", "65,536"),
        ],
    )
    def test_a_figure_keeps_its_digits(
        self, text: object, value: object, unit: str, shown: str
    ) -> None:
        figure = claims.Figure(**claim_model._read_figure(text))
        assert (figure.value, figure.unit, str(figure)) == (value, unit, shown)

    def test_a_range_is_no_number(self) -> None:
        with pytest.raises(SparkbookError, match="range"):
            _ = claims.figure("guide-first-request").number
        assert claims.figure("guide-first-request").ends == (25, 60)

    @pytest.mark.parametrize("text", ["__import__('os')", "2 * x", "max(1, 2)", "'a' * 3"])
    def test_a_calculation_is_nothing_else(self, text: str) -> None:
        with pytest.raises(SparkbookError, match="not a plain calculation"):
            claim_tests._calculate(text)


class TestExecuted:
    """A claim that can be executed has to be reported by the chapter it names."""

    def test_a_cell_reports_what_it_found_and_is_held_to_the_verdict(self) -> None:
        both = claims.check("guide-one-pool", True, "as asked") + claims.check(
            "gemma4-three-paths", False, "one did not"
        )
        assert both._repr_mimebundle_()[claims.MIME] == [
            {"id": "guide-one-pool", "verdict": "holds"},
            {"id": "gemma4-three-paths", "verdict": "false"},
        ]
        with pytest.raises(SparkbookError, match="says 'holds', the execution found 'false'"):
            claims.check("guide-one-pool", False)
        with pytest.raises(SparkbookError, match="says 'false', the execution found 'holds'"):
            claims.check("gemma4-three-paths", True)

    def test_a_chapter_sees_which_claims_of_its_document_are_left(self) -> None:
        checks = claims.Checks("nvfp4")
        assert "nvfp4-cores" in checks.unchecked and "nvfp4-peak" not in checks.unchecked
        shown = checks({"nvfp4-cores": (True, "OMMA"), "nvfp4-variables": (False, "none")})
        assert repr(shown) == "nvfp4-cores: holds\nnvfp4-variables: expired"
        assert (
            checks.verdicts == {"nvfp4-cores": "holds", "nvfp4-variables": "expired"}
            and "nvfp4-cores" not in checks.unchecked
        )
        page = checks.summary("Avarok").data
        assert (
            page.count("<td>cell</td>") == 2
            and "<td>read</td>" in page
            and claims.get("nvfp4-forum-100").statement not in page
        )

    def test_a_cell_that_found_otherwise_stops_the_chapter(self) -> None:
        checks = claims.Checks("nvfp4")
        with pytest.raises(
            SparkbookError,
            match="nvfp4-cores: the register says 'holds', the execution found 'false'",
        ):
            checks({"nvfp4-cores": (False, "")})
        with pytest.raises(SparkbookError, match="the document has no claim guide-one-pool"):
            checks({"guide-one-pool": (True, "")})
        assert not checks.verdicts
        with pytest.raises(SparkbookError, match="no document is called 'nvfp'"):
            claims.Checks("nvfp")

    def test_every_executable_claim_is_reported_in_the_committed_chapters(self) -> None:
        assert claims.unreported(CHAPTERS) == []

    def test_a_report_that_is_missing_or_other_is_a_problem(self) -> None:
        claim = claims.get("guide-13-disable-flag")
        entry = {"data": {claims.MIME: [{"id": claim.id, "verdict": "holds"}]}}
        other = {"cells": [{**cell("", "code"), "outputs": [entry]}]}
        assert claims.unreported({claims.RUNS: {"cells": []}}, [claim]) == [
            f"claim {claim.id} is executable, and {claims.RUNS} did not report it in this build"
        ]
        assert "reported holds" in claims.unreported({claims.RUNS: other}, [claim])[0]


class TestFigures:
    """A figure in a chapter is drawn, or says where it is from, or stands in `figures.yaml` with
    the reason.
    """

    def test_no_figure_of_a_chapter_comes_from_nowhere(self) -> None:
        exempted = claims.exempt()
        problems, used = [], set()
        for name, notebook in CHAPTERS.items():
            found, needed = claims.unaccounted(name, notebook, exempted)
            problems += found
            used |= {(name, text) for text in needed}
        assert problems == []
        assert {
            (entry.chapter, text)
            for entry in exempted
            for text in entry.figures
            if entry.chapter in CHAPTERS
        } - used == set(), "exemptions that nothing needs"

    def test_drawn_figures_are_in_the_words_of_the_register(self) -> None:
        drawn = [
            match["id"]
            for notebook in CHAPTERS.values()
            for one in notebook["cells"]
            for match in prose.LINK.finditer(one["source"])
        ]
        assert len(drawn) > 10
        for notebook in CHAPTERS.values():
            for one in notebook["cells"]:
                assert claims.write_figures(one["source"]) == one["source"]

    @pytest.mark.parametrize(
        "text",
        [
            "The Spark reads 273 GB/s.",
            "- decodes 33 tok/s\n- and [cites](https://example.org/x) another 12 GB",
            "About 25 to 60 seconds, says [the guide](https://vlaicu.io/posts/dgx-vllm/).",
            "| a | 40 % |\n|---|---|\n| b | [x](https://example.org) 3 GB |",
            "It is 2.1× or twice as fast.",
            "[999 GB/s](../book/claims/guide.yaml#guide-bandwidth)",
            "[273 GB/s](../book/claims/gemma4.yaml#guide-bandwidth)",
            "[273 GB/s](../book/claims/guide.yaml#guide-no-such)",
        ],
    )
    def test_one_without_a_source_is_found(self, text: str) -> None:
        problems, _ = claims.unaccounted("x", {"cells": [cell(text)]}, [])
        assert len(problems) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "[273 GB/s](../book/claims/guide.yaml#guide-bandwidth)",
            "A probe got 231 GB/s ([ds4](https://github.com/antirez/ds4/issues/773)).",
            "Set `--x 3 GB` and see",
            "```\n12 tok/s\n```",
            "> Free memory 38 GiB",
            "$t = 3\\ \\text{ms}$",
            "vLLM 0.32.0 and 4 chapters, line 12",
        ],
    )
    def test_one_that_is_accounted_for_passes(self, text: str) -> None:
        assert claims.unaccounted("x", {"cells": [cell(text)]}, [])[0] == []

    def test_a_typed_figure_in_code_is_found_unless_the_parameter_names_its_claim(self) -> None:
        typed = {"cells": [cell("speed = 273.0", "code")]}
        assert (
            "guide-bandwidth" in claims.unaccounted("x", typed, [])[0][0]
            or "273.0" in claims.unaccounted("x", typed, [])[0][0]
        )
        good = "speed: float = 273.0  # specified (claim guide-bandwidth)"
        assert (
            claims.unaccounted("x", {"cells": [cell(good, "code", ("parameters",))]}, [])[0] == []
        )
        bad = good.replace("273.0", "300.0")
        assert (
            "not the figure"
            in claims.unaccounted("x", {"cells": [cell(bad, "code", ("parameters",))]}, [])[0][0]
        )

    def test_on_the_site_a_drawn_figure_leads_to_its_row(self) -> None:
        text = claims_page.on_site("[273 GB/s](../book/claims/guide.yaml#guide-bandwidth)")
        assert (
            text
            == '<a class="sb-claim" href="../generated/claims.html#guide-bandwidth">273 GB/s</a>'
        )
        page = claims_page.page()
        assert 'id="guide-bandwidth"' in page
        # And back: the row leads to the place in the chapter that draws it.
        assert (
            f'href="../notebooks/{prose.drawn()["guide-memory"][0]}.html#from-guide-memory"' in page
        )
        seen: set[str] = set()
        both = [
            claims_page.on_site("[273 GB/s](../book/claims/guide.yaml#guide-bandwidth)", seen=seen)
            for _ in range(2)
        ]
        assert [
            one.startswith('<a id="from-guide-bandwidth" class="sb-claim"') for one in both
        ] == [True, False]

    def test_the_register_can_be_narrowed_without_a_script(self) -> None:
        page = claims_page.page()
        for field, value in (
            ("verdict", "false"),
            ("document", "gemma4"),
            ("document", "thread"),
            ("page", "p0"),
        ):
            assert (
                f'body:has(.sb-by-{field} [value="{value}"]:checked) .sb-claims tbody'
                f" tr:not(.{value}){{display:none}}" in page
            )
        row = next(line for line in page.splitlines() if line.startswith('<tr id="guide-memory"'))
        assert (
            'class="holds guide p' in row
            and 'href="#source-guide"' in row
            and '<li id="source-guide">' in page
        )

    def test_a_page_names_the_claims_that_it_uses(self) -> None:
        assert "guide-bandwidth" in claims_page.uses(
            "02_hardware"
        ) and "guide-7-phi-scipy" in claims_page.uses("models/phi-4-multimodal-nvfp4")
        assert claims_page.uses("no_such_page") == ""
        path = ROOT / "notebooks" / "02_hardware.ipynb"
        shown = as_published(Page("02_hardware", path, path, {}, "none", "f"))["cells"]
        assert 'claims.html#guide-one-pool"' in shown[-1]["source"]
        drawn = "".join(one["source"] for one in shown)
        assert drawn.count('id="from-guide-memory"') == 1 and "book/claims/guide.yaml" not in drawn
