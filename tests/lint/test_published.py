"""What the linter would have told the readers of the guide's launch lines."""

from sparkbook import recipes
from sparkbook.lint import published


def test_every_published_line_was_worse_than_its_recipe():
    lines = published.published()
    assert len(lines) == 13
    for entry in lines:
        assert "RUN104" in entry.cured, entry.recipe
        assert entry.after.findings.worst != "error" and entry.before.release == entry.after.release


def test_the_doubled_entry_point_is_found_where_it_was_published():
    doubled = {entry.recipe for entry in published.published() if "IMG104" in entry.cured}
    assert doubled == {entry.recipe for entry in published.published() if entry.before.findings.worst == "error"}
    assert len(doubled) == 7
    for name in doubled:
        assert recipes.load(name).launch.entrypoint == "vllm-serve"


def test_the_variables_that_do_nothing_are_found():
    entry = next(entry for entry in published.published() if entry.recipe == "qwen3.6-35b-a3b-nvfp4")
    said = " ".join(finding.message for finding in entry.before.findings if finding.rule == "ENV102")
    assert "VLLM_USE_FLASHINFER_MOE_FP4" in said and "VLLM_FP8_MOE_BACKEND" in said
