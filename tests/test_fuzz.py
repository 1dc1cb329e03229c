"""A small share of tools/fuzz.py: whatever comes from outside, the answer is a value or one line."""

import importlib.util
import math
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[1] / "tools/fuzz.py")
assert _SPEC and _SPEC.loader
fuzz = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fuzz)


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_no_input_breaks_a_reader(name: str) -> None:
    report = fuzz.seeds(name, 2_000, slow_s=math.inf)
    assert report["broken"] == {}
    assert report["taken"] > 50, "most inputs are refused at the door: nothing behind it was tried"
