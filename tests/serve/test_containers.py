"""Whether a container is the one that answers at its address, without a Docker engine."""

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.serve import containers, identity
from sparkbook.serve.docker_host import DockerHost
from sparkbook.serve.identity import Listener, Stranger

URL = "http://127.0.0.1:8000"


def container(running=True, network="default", host_port="8000"):
    return {
        "Id": "c" * 64,
        "State": {"Running": running},
        "HostConfig": {"NetworkMode": network},
        "Config": {"Labels": {"sparkbook.url": URL}},
        "NetworkSettings": {
            "Ports": {
                "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": host_port}],
                "9000/tcp": None,
            }
        },
    }


@pytest.fixture
def listener(monkeypatch):
    """Puts one listening socket at the address: its user, and the names of its processes that may
    be read.
    """

    def place(uid, *names):
        one = Listener(identity.ipaddress.ip_address("127.0.0.1"), 8000, uid, 5)
        monkeypatch.setattr(identity, "listening", lambda _url, _tables=None: [one])
        monkeypatch.setattr(identity, "holders", lambda _one: dict(enumerate(names)))

    return place


@pytest.mark.parametrize(
    ("uid", "names", "user"),
    [
        (0, ["docker-proxy"], 0),
        (0, [], 0),  # who is not root sees the socket's user alone
        (1000, ["rootlesskit"], 1000),
    ],
)
def test_the_socket_that_docker_binds_for_a_published_port(listener, uid, names, user):
    listener(uid, *names)
    assert containers.listens(DockerHost(None, None, "/root", user), container())


@pytest.mark.parametrize(
    ("uid", "names", "user"),
    [
        (1001, [], 0),
        (1001, ["docker-proxy"], 0),  # any program can have this name
        (0, ["python3"], 0),
        (0, [], 1000),
    ],
)
def test_a_strangers_socket_at_a_published_port(listener, uid, names, user):
    listener(uid, *names)
    with pytest.raises(Stranger):
        containers.listens(DockerHost(None, None, "/root", user), container())


@pytest.mark.parametrize("change", [{"running": False}, {"host_port": "8001"}])
def test_a_container_that_has_ended_or_publishes_another_port(listener, change):
    listener(0, "docker-proxy")
    assert not containers.listens(DockerHost(None, None, "/root"), container(**change))


class Exec:
    """A Docker client whose containers answer one command with `output` and `status`."""

    def __init__(self, output, status=1):
        self.api, self._output, self._status = self, output, status

    def exec_create(self, _container, _command, stderr):
        return {"Id": "e"}

    def exec_start(self, _id, stream):
        yield from self._output

    def exec_inspect(self, _id):
        return {"ExitCode": self._status}


def test_on_the_hosts_network_the_socket_must_be_the_containers(listener):
    listener(0)
    found = container(network="host")
    assert containers.listens(DockerHost(Exec([b"/dev/null\nsocket:[5]\n"]), None, "/root"), found)
    with pytest.raises(Stranger):
        containers.listens(DockerHost(Exec([b"socket:[4]\n"]), None, "/root"), found)


def test_a_server_that_binds_its_port_while_we_look_is_no_stranger(listener, monkeypatch):
    """Its sockets are asked for after those at the address: before, they lack the new one."""
    listener(0)
    bound = []
    at_the_address = identity.listening
    monkeypatch.setattr(
        identity, "listening", lambda *given: bound.append(5) or at_the_address(*given)
    )
    printed = (b"socket:[%d]\n" % inode for inode in bound)  # read when it is asked for
    found = container(network="host")
    assert containers.listens(DockerHost(Exec(printed), None, "/root"), found)


def test_an_image_without_the_programs_is_not_taken_at_its_word(listener):
    listener(0)
    with pytest.raises(SparkbookError, match="its image has no sh, cat or readlink"):
        containers.listens(
            DockerHost(Exec([b"exec failed"], 127), None, "/root"), container(network="host")
        )


def test_a_container_that_prints_without_end_is_cut_off(listener):
    listener(0)
    endless = iter(lambda: b"socket:[4]\n" * 1000, None)
    with pytest.raises(Stranger):
        containers.listens(DockerHost(Exec(endless), None, "/root"), container(network="host"))
