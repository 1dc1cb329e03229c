"""Several engines at a time, with stand-ins for them: all start before any is waited for, and none
is left.
"""

import pytest
from sparkbook.serve import embedded
from sparkbook.serve.engine import EngineError


class Engine:
    def __init__(self, name, log, fails):
        self.name, self.log, self.fails = name, log, fails
        log.append(f"start {name}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.log.append(f"stop {self.name}")

    def wait_ready(self, capabilities, *, requests):
        self.log.append(f"wait {self.name}")
        if self.fails:
            raise EngineError("no")


@pytest.fixture
def log(monkeypatch):
    said = []

    def start(recipe, *, ready):
        assert not ready
        return Engine(recipe.id.rsplit("/", 1)[1], said, fails=recipe.id.endswith("k3"))

    monkeypatch.setattr(embedded, "start", start)
    return said


def test_they_start_side_by_side(log):
    with embedded.together(["embedded/tiny-dense", "embedded/tiny-mtp"]) as engines:
        assert [engine.name for engine in engines] == ["tiny-dense", "tiny-mtp"]
        assert log == ["start tiny-dense", "start tiny-mtp", "wait tiny-dense", "wait tiny-mtp"]
    assert log[4:] == ["stop tiny-mtp", "stop tiny-dense"]


def test_one_that_fails_takes_the_others_with_it(log):
    with (
        pytest.raises(EngineError),
        embedded.together(["embedded/tiny-dense", "embedded/tiny-mtp-k3"]),
    ):
        raise AssertionError("never entered")
    assert log[-2:] == ["stop tiny-mtp-k3", "stop tiny-dense"]
