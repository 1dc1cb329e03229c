"""A user's file is replaced as a whole: what was there stays when writing fails."""

import os

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.util.files import write_text


@pytest.mark.parametrize(
    ("text", "name"),
    [("\ud800", "r.json"), ("text", "no/r.json"), ("text", "r\0.json"), ("text", "")],
)
def test_a_text_that_cannot_be_written_harms_nothing(tmp_path, text, name):
    (tmp_path / "r.json").write_text("earlier", "utf-8")
    with pytest.raises(SparkbookError, match="can't be written"):
        write_text(f"{tmp_path}/{name}", text)
    assert [(file.name, file.read_text("utf-8")) for file in tmp_path.iterdir()] == [
        ("r.json", "earlier")
    ]


def test_a_file_is_replaced_where_it_is_with_the_mode_it_has(tmp_path):
    file, link, pipe = tmp_path / "r.json", tmp_path / "link", tmp_path / "pipe"
    file.write_text("earlier", "utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, "later")
    assert (
        link.is_symlink()
        and file.read_text("utf-8") == "later"
        and file.stat().st_mode & 0o777 == 0o640
    )
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reading, 99) == b"through"
    os.close(reading)


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious", "utf-8")
    (tmp_path / f".r.json.{os.getpid()}").symlink_to(victim)
    write_text(tmp_path / "r.json", "text")
    assert victim.read_text("utf-8") == "precious"
    assert (tmp_path / "r.json").read_text("utf-8") == "text"
