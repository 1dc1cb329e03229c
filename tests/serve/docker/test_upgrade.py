"""Another image for a running server, in a real Docker engine: with the stand-in for vLLM, whose
images differ in what it does, and once with the real one.
"""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sparkbook import lock, upgrade
from sparkbook.errors import SparkbookError
from sparkbook.serve import containers, launcher, running

pytestmark = pytest.mark.docker
COMMAND = Path(sys.executable).with_name("sparkbook")


@pytest.fixture
def box(engine, host, tmp_path):
    """Starts a server of a recipe; returns its recipe's file and its lock's. `test/host:2` is
    another name of its image.
    """

    def start(recipe, **more):
        file, locked = tmp_path / "tiny-box.yaml", tmp_path / "tiny.lock.json"
        data = recipe.model_dump(mode="json", exclude_unset=True) | {"id": "tiny-box"}
        file.write_text(yaml.safe_dump(data))
        engine.client.images.get("test/host:1").tag("test/host", "2")
        wish = launcher.Wish(source=str(file), restart_always=True, **more)
        launcher.serve(wish, say=print, show=lambda _facts: None)
        locked.write_text(lock.dumps(launcher.lock_of(str(file))))
        return str(file), locked

    yield start
    for one in containers.find(host):
        containers.remove(host, one.id)
    shutil.rmtree(tmp_path / "state", ignore_errors=True)


@pytest.fixture
def simple(real, answering):
    """The recipe of a server that is the stand-in."""
    launch = answering()
    container = launch.container.model_copy(
        update={"name": "tiny", "restart": real.container.restart}
    )
    return real.model_copy(
        update={"container": container, "serve": launch.serve, "env": launch.env}
    )


def only(host):
    """The one server that is there: its container's id and image."""
    (server,) = running.status(host)
    (found,) = containers.find(host)
    assert (server.name, server.state) == ("tiny", "ready")
    return found.id, found.image


def test_an_image_is_taken_or_the_old_one_serves_again(engine, host, box, simple, tmp_path):
    file, locked = box(simple)
    before, text = only(host), locked.read_text()
    key = running.key_file(host, "tiny").read_text()
    said = []

    # No vLLM in the image: the same container as before serves again, with its restart policy.
    root = tmp_path / "empty"
    (root / "etc").mkdir(parents=True)
    engine.load("test/broken:1", root)
    wanted = upgrade.Wanted(source=file, image="test/broken:1", way="swap", requests=8)
    outcome = upgrade.run(wanted, say=said.append)
    assert not outcome.taken and "vllm" in outcome.reasons[0]
    assert said[-1] == "tiny serves again, from test/host:1"
    assert only(host) == before and locked.read_text() == text
    policy = engine.client.containers.get("tiny").attrs["HostConfig"]["RestartPolicy"]
    assert policy["Name"] == "unless-stopped"

    # Ctrl-C, while the new one starts.
    line = [COMMAND, "upgrade", file, "--to", "test/host:2", "--lock", locked, "--way", "swap"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        for printed in process.stderr:
            if "starting tiny from test/host:2" in printed:
                process.send_signal(signal.SIGINT)
                break
        assert "tiny serves again" in process.stderr.read()
    assert process.returncode == 130
    assert only(host) == before and locked.read_text() == text

    # As good: taken, tried next to the old one first; the lock says so, and its server verifies.
    line = [COMMAND, "upgrade", file, "--to", "test/host:2", "--lock", locked, "--way", "together"]
    done = subprocess.run([*line, "--slower", "100", "--json"], capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["taken"], answer["reasons"]) == (0, True, []), done.stderr
    assert "starting tiny-upgrade from test/host:2" in done.stderr
    assert only(host)[1] == "test/host:2" and only(host)[0] != before[0]
    assert lock.read(locked)["image"]["ref"] == "test/host:2"
    changes, _ = launcher.verify(str(locked))
    assert [one.path for one in changes] == ["recipe"]  # a file that the catalogue does not have
    assert running.key_file(host, "tiny").read_text() == key

    # What can't be done now.
    with pytest.raises(SparkbookError, match="runs from test/host:2 already"):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:2", lock=str(locked)), say=print)
    with pytest.raises(SparkbookError, match="other settings"):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:3"), say=print)


@pytest.mark.parametrize(
    ("mode", "way", "reason"),
    [
        ("changed", "swap", "(equal)"),
        ("no-agent", "together", "TOOL101"),
        ("slow", "swap", "slower for sure: decode"),
    ],
)
def test_an_image_that_starts_and_is_worse(dockerd, engine, host, box, simple, mode, way, reason):
    """The comparison rejects it, and the old container serves again with nobody's help."""
    file, locked = box(simple)
    before, text = only(host), locked.read_text()
    engine.load("test/worse:1", dockerd.folder / "root", mode=mode)
    said = []
    wanted = upgrade.Wanted(source=file, image="test/worse:1", lock=str(locked), way=way)
    outcome = upgrade.run(wanted, say=said.append)
    assert not outcome.taken and [reason in one for one in outcome.reasons] == [True]
    assert "asking test/worse:1" in said, "it was ready"
    assert ("tiny serves again, from test/host:1" in said) == (way == "swap")
    assert only(host) == before and locked.read_text() == text


def test_the_real_vllm_is_as_good_as_itself(host, box, real):
    file, _ = box(real)
    few = {"slower": 100, "turns": 2, "requests": 4}
    wanted = upgrade.Wanted(source=file, image="test/host:2", way="swap", **few)
    outcome = upgrade.run(wanted, say=print)
    assert outcome.taken and {"equal", "check-tools"} <= set(outcome.figures), outcome
    assert outcome.figures["equal"].startswith(("identical", "near-ties"))
    assert only(host)[1] == "test/host:2"


def test_what_can_not_be_upgraded(host, box, simple):
    file, locked = box(simple, fraction=0.3)
    assert lock.launch_of(lock.read(locked)).serve.args["gpu-memory-utilization"] == 0.3
    host.client.api.rename("tiny", "tiny-before-upgrade")
    with pytest.raises(
        SparkbookError, match=r"cut off(?s:.*)docker rename tiny-before-upgrade tiny"
    ):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:2"), say=print)
    host.client.api.rename("tiny-before-upgrade", "tiny")
    running.stop(host, "tiny")
    with pytest.raises(SparkbookError, match="nothing runs as tiny"):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:2"), say=print)
