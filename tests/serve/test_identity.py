"""Who a process is and whose socket answers, asked of the kernel."""

import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.serve import identity
from sparkbook.serve.identity import ProcessId, Stranger


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def port():
    """A listening socket of this process, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def own():
    return identity.sockets_of([os.getpid()])


def test_a_process_is_alive_until_it_ends(child):
    known = ProcessId.of(child.pid)
    assert known.alive and known == ProcessId.of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie has ended
    assert not known.alive
    child.wait()
    assert not known.alive and ProcessId.of(child.pid) is None and known.tree() == []


@pytest.mark.parametrize("other", [{"ticks": 1}, {"boot": "another"}])
def test_a_later_process_with_the_same_id_is_another_and_gets_no_signal(child, other):
    known = ProcessId.of(child.pid)
    stale = ProcessId(**{"pid": known.pid, "ticks": known.ticks, "boot": known.boot} | other)
    assert not stale.alive
    stale.signal(signal.SIGKILL)
    assert known.alive
    known.signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    known.signal(signal.SIGKILL)  # has ended: nothing to do


def test_the_name_of_a_program_does_not_shift_the_fields(tmp_path):
    program = tmp_path / ") Z 1 ("
    shutil.copy(shutil.which("sleep"), program)
    process = subprocess.Popen([program, "600"])
    try:
        known, first = ProcessId.of(process.pid), ProcessId.of(os.getpid())
        assert known.alive and known.ticks >= first.ticks
    finally:
        process.kill()
        process.wait()


def test_the_tree_holds_grandchildren_and_their_sockets():
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        " print(s.getsockname()[1], flush=True); input()"
    )
    shell = ["sh", "-c", f'{sys.executable} -c "{script}"; true']
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        known = ProcessId.of(process.pid)
        assert len(known.tree()) == 2
        assert identity.listens(url, known.sockets)
        with pytest.raises(Stranger):
            identity.listens(url, own)
        process.communicate()


def test_only_our_own_socket_is_ours(port):
    url = f"http://127.0.0.1:{port}"
    assert identity.listens(url, own)
    with pytest.raises(
        Stranger, match=rf"process {os.getpid()} \(.+\) listens on 127.0.0.1:{port}"
    ):
        identity.listens(url, set)


def test_nobody_listens(port):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound is not listening
        assert not identity.listens(f"http://127.0.0.1:{bound.getsockname()[1]}", own)


def test_a_stranger_who_shares_the_port_is_seen(child):
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sockets[0].bind(("127.0.0.1", 0))
    port = sockets[0].getsockname()[1]
    sockets[1].bind(("127.0.0.1", port))
    for one in sockets:
        one.listen()
    mine = os.fstat(sockets[0].fileno()).st_ino
    with pytest.raises(Stranger):
        identity.listens(f"http://127.0.0.1:{port}", lambda: {mine})
    for one in sockets:
        one.close()


def test_a_socket_that_closes_while_we_look_is_no_stranger():
    listener = socket.create_server(("127.0.0.1", 0))

    def closed():
        listener.close()
        return set()

    assert not identity.listens(f"http://127.0.0.1:{listener.getsockname()[1]}", closed)


def test_terminal_codes_in_a_program_name_are_not_printed(port, monkeypatch):
    monkeypatch.setattr(identity, "holders", lambda _listener: {7: "evil\x1b[2J"})
    with pytest.raises(Stranger) as error:
        identity.listens(f"http://127.0.0.1:{port}", set)
    assert str(error.value).startswith("process 7 (evil?[2J) listens")


def table(*addresses):
    """The kernel's tables with a listening socket at each address, inodes 1, 2, …; byte order is
    this machine's.
    """
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"]
    for inode, (host, port) in enumerate(addresses, 1):
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
        number = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
        lines.append(
            f"   0: {number}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000"
            f"  1000        0 {inode} 1 0000000000000000 100 0 0 10 0"
        )
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("listeners", "url", "inodes"),
    [
        ([("127.0.0.1", 8000), ("0.0.0.0", 8000)], "http://127.0.0.1:8000", [1]),
        ([("0.0.0.0", 8000), ("::", 8000)], "http://127.0.0.1:8000", [1]),
        ([("::", 8000)], "http://127.0.0.1:8000", [1]),
        ([("::ffff:127.0.0.1", 8000)], "http://127.0.0.1:8000", [1]),
        ([("::1", 8000), ("0.0.0.0", 8000)], "http://[::1]:8000", [1]),
        ([("127.0.0.2", 8000), ("127.0.0.1", 8001)], "http://127.0.0.1:8000", []),
    ],
)
def test_the_socket_that_a_connection_reaches(listeners, url, inodes):
    reached = identity.listening(url, table(*listeners))
    assert [listener.inode for listener in reached] == inodes
    assert all(listener.uid == 1000 for listener in reached)


def test_an_address_that_is_none():
    with pytest.raises(SparkbookError, match="is no address to listen on"):
        identity.listening("http://127.0.0.1:99999")
