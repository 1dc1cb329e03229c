"""What is packed for the pages that run the command: its libraries, their licenses and versions."""

from __future__ import annotations

import re
from pathlib import Path

from sparkbook.site import packed

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_compiled_is_the_version_that_is_installed() -> None:
    wanted = re.search(
        r"^pydantic-core==\S+", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE
    )
    assert wanted is not None
    assert f"{wanted[0]} " in (ROOT / "requirements-wasm.txt").read_text("utf-8").replace(
        " \\", "  "
    )


def test_every_library_that_comes_along_has_its_license() -> None:
    named = {name.split()[0] for name, text in packed._licenses() if len(text) > 300}
    assert named == set(packed.OTHERS)
