"""A small share of tools/fuzz_formats.py: no reader and no writer breaks, whatever it is given."""

import importlib.util
from pathlib import Path


def test_no_input_breaks_a_reader() -> None:
    place = Path(__file__).parents[2] / "tools/fuzz_formats.py"
    spec = importlib.util.spec_from_file_location("fuzz_formats", place)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.with_hypothesis(120)
    assert tool.counts["inputs"] >= 100 and tool.counts["read"] > 20
