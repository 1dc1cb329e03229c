"""An engine's folder belongs to one start: the loser of two touches nothing of the winner's."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sparkbook.serve import folders
from sparkbook.serve.engine import EngineError
from sparkbook.serve.identity import ProcessId

FIELDS = {"name": "small", "recipe": "", "served": "small", "url": "http://127.0.0.1:8000"}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def ended():
    """Identity of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = ProcessId.of(process.pid)
    process.communicate()
    return known


def contents(folder):
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_of_many_starts_at_once_one_gets_the_folder():
    folder = folders.path_of("small-8000")

    def start(number):
        try:
            folders.reserve(folder, **FIELDS)
        except EngineError as error:
            return str(error)
        (folder / folders.KEY_FILE).write_text(str(number))
        return None

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(start, range(8)))
    assert outcomes.count(None) == 1
    assert (folder / folders.KEY_FILE).read_text() == str(outcomes.index(None))
    assert all(
        "http://127.0.0.1:8000 is taken by small-8000" in outcome for outcome in outcomes if outcome
    )


def test_a_loser_leaves_key_record_and_log_of_the_winner():
    folder = folders.path_of("small-8000")
    folders.reserve(folder, **FIELDS)
    for name in (folders.KEY_FILE, folders.LOG_FILE):
        (folder / name).write_text("the winner's")
    before = contents(folder)
    for other in (folder, folders.path_of("another-name")):  # the same folder, the same port
        with pytest.raises(EngineError, match="sparkbook stop small-8000"):
            folders.reserve(other, **FIELDS)
    assert contents(folder) == before
    assert folders.all_folders() == [folder]


def test_a_folder_whose_process_has_ended_is_taken_over_and_its_owner_keeps_off(ended):
    folder = folders.path_of("small-8000")
    first = folders.hand_over(folder, folders.reserve(folder, **FIELDS), ended)
    (folder / folders.LOG_FILE).write_text("old")
    assert folders.holder(folder) is None and folders.running(folder) is None
    second = folders.reserve(folder, **FIELDS)
    assert not (folder / folders.LOG_FILE).exists()
    (folder / folders.KEY_FILE).write_text("the second's")
    folders.release(folder, first)  # the first start cleans up late
    assert folders.holder(folder) == second and (folder / folders.KEY_FILE).exists()
    folders.release(folder, second)
    assert contents(folder) == {}


def test_a_reserved_folder_runs_once_it_has_a_guard():
    folder = folders.path_of("small-8000")
    record = folders.reserve(folder, **FIELDS)
    assert folders.running(folder) is None
    record = folders.hand_over(folder, record, ProcessId.of(os.getppid()))
    assert folders.running(folder) == record


@pytest.mark.parametrize("change", [{"ticks": 1}, {"boot": "before"}])
def test_an_id_that_was_given_out_again_holds_nothing(change):
    folder = folders.path_of("small-8000")
    record = folders.reserve(folder, **FIELDS)
    folders.hand_over(folder, record, replace(record.process, **change))
    assert folders.holder(folder) is None


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"process": 7}', '{"process": {}}'])
def test_a_record_that_can_not_be_read_is_nobodys(text):
    folder = folders.path_of("small-8000")
    folder.mkdir(parents=True)
    (folder / folders.RECORD).write_text(text)
    assert folders.holder(folder) is None
    assert folders.reserve(folder, **FIELDS) == folders.holder(folder)
    assert set(json.loads((folder / folders.RECORD).read_text())["process"]) == {
        "pid",
        "ticks",
        "boot",
    }
