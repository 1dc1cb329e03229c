"""The builder's command line: what it says where nothing can be done."""

import socket

import pytest
from sparkbook.site.__main__ import main


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: intro\n", "utf-8")
    (tmp_path / "_build" / "html").mkdir(parents=True)
    return tmp_path


def test_a_folder_without_a_book_is_left_alone(tmp_path, capsys):
    assert main(["--root", str(tmp_path / "none"), "build"]) == 2
    assert "has no _toc.yml" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_serving_before_there_is_a_site(tmp_path, capsys):
    (tmp_path / "_toc.yml").write_text("root: intro\n", "utf-8")
    assert main(["--root", str(tmp_path), "serve"]) == 2
    assert "make book" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["taken", "99999", "-1"])
def test_a_port_that_cannot_be_used_is_named(port, checkout, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1]) if port == "taken" else port
        assert main(["--root", str(checkout), "serve", f"--port={port}"]) == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in capsys.readouterr().err
