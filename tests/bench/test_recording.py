"""Files of measurements."""

import pytest
from sparkbook.bench import recording
from sparkbook.errors import SparkbookError


def test_a_recording_nested_too_deeply_is_none(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text("[" * 100_000 + "]" * 100_000, "utf-8")
    with pytest.raises(SparkbookError, match="is not a recording"):
        recording.read(file, "a recording", lambda head, rest: head)
