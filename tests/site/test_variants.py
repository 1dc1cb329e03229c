"""The catalogue's variants: what was published is kept with what is wrong with it, and what is
called clean is clean.
"""

import pytest
from sparkbook import lint, recipes
from sparkbook.site.defects import DEFECTS
from sparkbook.site.variants import held

ALL = held()
BY_ID = {entry.recipe.id: entry for entry in ALL}


@pytest.mark.parametrize(
    "entry", [entry for entry in ALL if entry.clean], ids=lambda entry: entry.recipe.id
)
def test_a_clean_variant_is_clean_on_the_same_image(entry):
    clean = recipes.load(f"{entry.recipe.id}@lint-clean")
    before = recipes.load(
        f"{entry.recipe.id}@as-published"
        if "as-published" in entry.recipe.variants
        else entry.recipe.id
    )
    assert clean.image.ref == before.image.ref
    assert clean.image.digest in (before.image.digest, entry.recipe.image.digest)
    assert not entry.clean.suppressed
    left = {
        finding.rule
        for finding in entry.clean.findings
        if finding.severity != "info" and finding.rule not in ("IMG101", "IMG106", "RUN109")
    }
    assert not {rule for rule in left if not rule.startswith("BAD")} or (
        left <= {"MODEL116", "BAD140"} and entry.recipe.successor
    ), left  # what only a newer release repairs
    assert clean.status == "lint-clean" and any(
        "not run on a Spark by us" in remark.text for remark in clean.remarks
    )
    assert clean.model == entry.recipe.model and clean.draft == entry.recipe.draft
    assert entry.complaints and entry.changes


@pytest.mark.parametrize("recipe", recipes.all(), ids=lambda recipe: recipe.id)
def test_whoever_says_lint_clean_is_held_to_it(recipe):
    if recipe.status in ("lint-clean", "run"):
        assert lint.lint(recipe).findings.worst in (None, "info")


def test_the_lines_of_the_guide_are_kept_as_they_were_published():
    kept = [entry for entry in ALL if entry.recipe.variants.get("as-published") is not None]
    assert len(kept) == 14
    for entry in kept:
        assert "RUN104" in [finding.rule for finding in entry.complaints], (
            "published on every interface without a key"
        )
        assert lint.lint(entry.recipe).findings.worst != "error"


def test_the_doubled_entry_point_is_found_where_it_was_published():
    doubled = {
        entry.recipe.id
        for entry in ALL
        if "IMG104" in [finding.rule for finding in entry.complaints]
    }
    assert doubled == {
        entry.recipe.id for entry in ALL if entry.published.findings.worst == "error"
    }
    assert len(doubled) == 8
    for name in doubled:
        assert recipes.load(name).launch.entrypoint == "vllm-serve"
        assert "without the words vllm serve" in BY_ID[name].changes


def test_the_variables_that_do_nothing_are_found():
    said = " ".join(
        f.message for f in BY_ID["qwen3.6-35b-a3b-nvfp4"].published.findings if f.rule == "ENV102"
    )
    assert "VLLM_USE_FLASHINFER_MOE_FP4" in said and "VLLM_FP8_MOE_BACKEND" in said


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_every_defect_of_the_guide_is_found_by_its_rule(defect):
    assert defect.finding.rule == defect.rule
    if defect.recipe:
        assert defect.rule in [finding.rule for finding in BY_ID[defect.recipe].complaints]
