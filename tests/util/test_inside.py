"""The gate for paths from outside: whatever the name and whatever lies below the root, nothing
outside of it is read, written or removed.
"""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkbook.util.inside import Inside, UnsafePath, checked

PARTS = st.one_of(
    st.sampled_from(["", ".", "..", "~", "C:", "a", "-rf", "con", " ", "x" * 256, "é" * 128]),
    st.text(st.characters(), max_size=6),
)
SEPARATORS = st.sampled_from(["/", "/", "/", "\\", "//", "\0", "\u202e", "\n"])


@st.composite
def names(draw):
    """Paths from parts and separators of every kind, many of them bad."""
    text = draw(st.sampled_from(["", "", "/", "\\\\host\\share\\", "c:", "~/"])) + draw(PARTS)
    for _ in range(draw(st.integers(0, 4))):
        text += draw(SEPARATORS) + draw(PARTS)
    return text


@settings(deadline=None, derandomize=True, database=None)
@given(names())
def test_a_name_that_passes_stays_below_its_root_and_can_be_made(tmp_path_factory, name):
    try:
        assert checked(name) == name
    except UnsafePath as error:
        assert str(error).isascii()
        assert str(error).isprintable()
        return
    parts = name.split("/")
    assert all(part and part not in (".", "..") for part in parts)
    assert not set(name) & set("\0\n\\\x7f\u202e")
    root = tmp_path_factory.mktemp("root")
    (root / "inside").mkdir()
    Inside(root / "inside").write(name, b"text")
    assert (root / "inside" / name).read_bytes() == b"text"
    assert [one.name for one in root.iterdir()] == ["inside"]


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/x", "//host/x", "../x", "a/../x", "a/..", "a//b", "a/", "./a", "a/./b"),
        *("C:/x", "c:x", "\\\\host\\x", "a\\..\\b", "a\0b", "a\nb", "a\x1b[2J", "a\u202eb"),
        *("\ud800", "x" * 256, "/".join(["x" * 200] * 30)),
    ],
)
def test_names_that_are_refused(tmp_path, name):
    with pytest.raises(UnsafePath, match="is refused"):
        checked(name)
    with pytest.raises(UnsafePath):
        Inside(tmp_path).write(name, b"")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def planted(tmp_path):
    """A root with links in it that lead out to a file and to a folder."""
    victims = tmp_path / "victims"
    victims.mkdir()
    (victims / "file").write_text("precious", "utf-8")
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "out").symlink_to(victims)
    (root / "folder" / "file").symlink_to(victims / "file")
    (root / "folder" / "new").symlink_to(victims / "new")
    return Inside(root)


ACTIONS = {
    "open": lambda root, name: root.open(name).close(),
    "create": lambda root, name: root.create(name).close(),
    "create, keep": lambda root, name: root.create(name, keep=True).close(),
    "read": lambda root, name: root.read(name),
    "write": lambda root, name: root.write(name, b"text"),
    "link": lambda root, name: root.link(name, "there"),
    "replace": lambda root, name: root.replace(name, "folder/elsewhere"),
    "replace by": lambda root, name: (root.write("own", b""), root.replace("own", name)),
    "remove": lambda root, name: root.remove(name),
    "lstat": lambda root, name: root.lstat(name),
    "size": lambda root, name: root.size(name),
    "kept": lambda root, name: root.kept(name),
    "target": lambda root, name: root.target(name),
    "entries": lambda root, name: root.entries(name),
    "files": lambda root, name: root.files(name),
    "locked": lambda root, name: root.locked(name).__enter__(),
}


@pytest.mark.parametrize("name", ["out/file", "out/new", "out/a/b", "folder/file", "folder/new"])
@pytest.mark.parametrize("action", ACTIONS)
def test_no_link_leads_out(planted, action, name):
    try:
        ACTIONS[action](planted, name)
    except (UnsafePath, FileNotFoundError):
        pass
    else:
        assert not name.startswith("out/")
    victims = planted.root.parent / "victims"
    assert [(one.name, one.read_text("utf-8")) for one in victims.iterdir()] == [
        ("file", "precious")
    ]


def test_the_root_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to("disk")
    Inside(tmp_path / "store").write("a/b", b"text")
    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"text"


def test_a_file_is_gone_on_with_only_if_nobody_else_has_it(tmp_path):
    root = Inside(tmp_path)
    with root.create("own.part") as file:
        file.write(b"begun")
    assert root.kept("own.part") == 5
    with root.create("own.part", keep=True) as file:
        assert file.read() == b"begun"
    other = tmp_path / "other"
    os.link(tmp_path / "own.part", other)  # a second name, through which it could be changed later
    assert root.kept("own.part") == 0
    with root.create("own.part", keep=True) as file:
        file.write(b"new")
    assert other.read_bytes() == b"begun"


@pytest.mark.root  # only root can give a file away
def test_a_file_of_somebody_else_is_made_new(tmp_path):
    (tmp_path / "x.part").write_bytes(b"theirs")
    os.chown(tmp_path / "x.part", 12345, 12345)
    root = Inside(tmp_path)
    assert root.kept("x.part") == 0
    with root.create("x.part", keep=True) as file:
        assert file.read() == b""
    assert (tmp_path / "x.part").stat().st_uid == os.getuid()


@pytest.mark.parametrize("action", ["open", "read", "locked"])
def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path, action):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafePath, match="no regular file"):
        ACTIONS[action](Inside(tmp_path), "pipe")


def test_a_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path):
    root = Inside(tmp_path)
    root.write("a/b", b"a long first text")
    root.write("a/b", b"second")
    assert root.read("a/b") == b"second"
    assert root.files("") == ["a/b"]
    assert root.entries("a") == ["b"]
    assert root.entries("gone") == root.files("gone") == []


def test_an_error_of_the_system_names_the_whole_path(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        Inside(tmp_path).open("a/b")
    assert error.value.filename == str(tmp_path / "a" / "b")


def test_one_holds_a_lock_and_the_next_waits_for_it(tmp_path):
    root, order = Inside(tmp_path), []
    inside, go = threading.Event(), threading.Event()

    def first():
        with root.locked("x.lock"):
            inside.set()
            go.wait(60)
            order.append("first")

    def second():
        with root.locked("x.lock"):
            order.append("second")

    threads = [threading.Thread(target=one) for one in (first, second)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt), root.locked("x.lock", stop):
        pass
    go.set()
    for thread in threads:
        thread.join(60)
    assert order == ["first", "second"]


def test_a_folder_with_all_in_it_is_removed_and_what_its_links_lead_to_is_not(planted):
    planted.remove("folder")
    planted.remove("out")
    planted.remove("gone")
    assert planted.entries("folder") == []
    assert Path(planted.root.parent / "victims" / "file").read_text("utf-8") == "precious"
