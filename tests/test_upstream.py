"""Others' recipes: read from a folder, an archive over HTTP and a git repository, judged, compared,
and taken over.
"""

import functools
import http.server
import io
import json
import random
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sparkbook import recipes, upstream
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from typer.testing import CliRunner

EUGR = Path(__file__).parent / "data/formats/eugr.yaml"
FILE = "recipes/mine.yaml"


def _cut() -> bytes:
    """The first half of an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("x/a.yaml")
        member.size = 4096
        archive.addfile(member, io.BytesIO(random.Random(1).randbytes(4096)))
    return packed.getvalue()[:2000]


CUT = _cut()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with one recipe of another's format, and a file that is none."""
    folder = tmp_path / "place"
    (folder / "recipes").mkdir(parents=True)
    (folder / FILE).write_text(EUGR.read_text("utf-8"), "utf-8")
    (folder / "recipes/other.yaml").write_text("a: 1\n", "utf-8")
    return folder


@pytest.fixture
def served(place: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the folder's archive."""
    root = tmp_path / "www"
    root.mkdir()
    with tarfile.open(root / "HEAD.tar.gz", "w:gz") as archive:
        archive.add(place, "name-HEAD")
    yield from _serve(root)


def _serve(root: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_folder_and_its_archive_are_the_same(place: Path, served: str):
    assert upstream.files(f"{served}/HEAD.tar.gz") == upstream.files(str(place))
    assert sorted(upstream.files(str(place))) == [FILE, "recipes/other.yaml"]


def test_a_repository_is_cloned(place: Path):
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", "-C", str(place), *words], check=True)
    assert upstream.files(f"file://{place}") == upstream.files(str(place))


def test_a_link_leads_nowhere(place: Path):
    (place / "recipes/link.yaml").symlink_to("/etc/hostname")
    assert "recipes/link.yaml" not in upstream.files(str(place))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.tar.gz", None, "404"),
        ("text.tar.gz", b"no archive", "is no .tar.gz archive"),
        ("cut.tar.gz", CUT, "is no .tar.gz archive"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, name, content, message):
    root = tmp_path / "www"
    root.mkdir()
    if content is not None:
        (root / name).write_bytes(content)
    for address in _serve(root):
        with pytest.raises(SparkbookError, match=message):
            upstream.files(f"{address}/{name}")


def test_bounds_hold(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "www"
    root.mkdir()
    with tarfile.open(root / "big.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("x/big.bin")
        member.size = upstream.MAX_ARCHIVE + 1
        archive.addfile(member, io.BytesIO(b"\0" * member.size))
    for address in _serve(root):
        with pytest.raises(SparkbookError, match="holds more than such a repository does"):
            upstream.files(f"{address}/big.tar.gz")
    monkeypatch.setattr(upstream, "MAX_FILES", 1)
    with pytest.raises(SparkbookError, match="more than 1 YAML files"):
        upstream.files(str(place))


@pytest.mark.parametrize("name", ["nowhere at all", "https://127.0.0.1:1/x.tar.gz", "file:///none"])
def test_a_place_that_is_none_is_one_sentence(name: str):
    with pytest.raises(SparkbookError) as error:
        upstream.files(name)
    assert "\n" not in str(error.value)


def test_new_then_taken_over_then_the_same_then_changed(place: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    (found,) = upstream.compare(str(place), upstream.ours(mine))
    assert (found.state, found.file) == ("new", FILE)
    path = upstream.take(found, mine)
    assert recipes.load(path).id == found.id
    with pytest.raises(SparkbookError, match="is there already"):
        upstream.take(found, mine)
    (again,) = upstream.compare(str(place), upstream.ours(mine))
    assert (again.state, again.known, again.differs) == ("same", found.id, ())
    text = (place / FILE).read_text("utf-8")
    assert "gpu_memory_utilization: 0.7" in text
    (place / FILE).write_text(
        text.replace("gpu_memory_utilization: 0.7", "gpu_memory_utilization: 0.6"), "utf-8"
    )
    (changed,) = upstream.compare(str(place), upstream.ours(mine))
    assert changed.state == "changed"
    assert changed.differs == ("serve.args.gpu-memory-utilization: 0.7 here, 0.6 there",)


def test_what_the_linter_refuses_is_not_accepted(place: Path):
    text = (place / FILE).read_text("utf-8")
    text = text.replace("container: vllm-node", "container: vllm/vllm-openai:v0.28.0")
    (place / FILE).write_text(text.replace("--host {", "--no-such-option 1 --host {", 1), "utf-8")
    (found,) = upstream.compare(str(place), [])
    assert any("no-such-option" in error for error in found.errors)
    assert "not accepted" in next(found.lines())


def test_two_with_one_id_are_named_by_path(place: Path):
    (place / "recipes/twin.yaml").write_text((place / FILE).read_text("utf-8"), "utf-8")
    found = upstream.compare(str(place), [])
    with pytest.raises(SparkbookError, match="name one by its path"):
        upstream.named(found, found[0].id)
    assert upstream.named(found, "recipes/twin.yaml").file == "recipes/twin.yaml"


def test_a_recipe_of_the_catalogue_is_known_by_the_file_that_it_cites():
    cited = upstream._cited(recipes.all())
    path = "models/qwen/qwen3.8-27b/dgx-spark/linux/vllm/128gb/nvfp4/recipe.yaml"
    assert any(name.startswith("models/qwen/qwen3.8-27b/dgx-spark/") for name in cited), path
    assert any(name.startswith("recipes/") for name in cited)


def test_the_command(place: Path, tmp_path: Path):
    def run(*words: str) -> tuple[int, str]:
        arguments = ["recipes", "update", "--from", str(place), "--into", str(tmp_path / "mine")]
        done = CliRunner().invoke(app, [*arguments, *words])
        return done.exit_code, done.output

    code, text = run()
    assert code == 1 and text.startswith("new: ")
    code, text = run("--json")
    answer = json.loads(text)
    assert code == 1 and answer["recipes"][0]["state"] == "new" and answer["written"] == []
    assert not (tmp_path / "mine").exists()
    code, text = run("--take", answer["recipes"][0]["id"])
    assert code == 0 and "Written: " in text
    assert run()[0] in (0, 1)
