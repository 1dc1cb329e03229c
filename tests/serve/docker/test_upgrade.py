"""Another image for a running server, in a real Docker engine with the real vLLM."""

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
def tiny(engine, host, real, tmp_path):
    """A server that runs, its recipe's file and its lock's; two more images: one works as well,
    and the other has no vLLM.
    """
    file = tmp_path / "tiny-box.yaml"
    data = real.model_dump(mode="json", exclude_unset=True) | {"id": "tiny-box"}
    file.write_text(yaml.safe_dump(data))
    root = tmp_path / "empty"
    (root / "etc").mkdir(parents=True)
    engine.load("test/broken:1", root)
    engine.client.images.get("test/host:1").tag("test/host", "2")
    launcher.serve(
        launcher.Wish(source=str(file), restart_always=True), say=print, show=lambda _facts: None
    )
    locked = tmp_path / "tiny.lock.json"
    locked.write_text(lock.dumps(launcher.lock_of(str(file))))
    yield str(file), locked
    for one in containers.find(host):
        containers.remove(host, one.id)
    shutil.rmtree(tmp_path / "state", ignore_errors=True)


def only(host):
    """The one server that is there: its container's id and image."""
    (server,) = running.status(host)
    (found,) = containers.find(host)
    assert (server.name, server.state) == ("tiny", "ready")
    return found.id, found.image


def test_an_image_is_taken_or_the_old_one_serves_again(engine, host, tiny):
    file, locked = tiny
    before, text = only(host), locked.read_text()
    key = running.key_file(host, "tiny").read_text()
    said = []

    # No vLLM in the image: the same container as before serves again, with its restart policy.
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
    assert answer["figures"]["equal"].startswith(("identical", "near-ties"))
    assert only(host)[1] == "test/host:2" and only(host)[0] != before[0]
    assert running.key_file(host, "tiny").read_text() == key
    assert lock.read(locked)["image"]["ref"] == "test/host:2"
    changes, _ = launcher.verify(str(locked))
    assert [one.path for one in changes] == ["recipe"]  # a file that the catalogue does not have

    # What can't be done now.
    with pytest.raises(SparkbookError, match="runs from test/host:2 already"):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:2", lock=str(locked)), say=print)
    with pytest.raises(SparkbookError, match="other settings"):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:3"), say=print)


def test_what_can_not_be_upgraded(engine, host, tiny):
    file, _ = tiny
    host.client.api.rename("tiny", "tiny-before-upgrade")
    with pytest.raises(
        SparkbookError, match=r"cut off(?s:.*)docker rename tiny-before-upgrade tiny"
    ):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:2"), say=print)
    host.client.api.rename("tiny-before-upgrade", "tiny")
    running.stop(host, "tiny")
    with pytest.raises(SparkbookError, match="nothing runs as tiny"):
        upgrade.run(upgrade.Wanted(source=file, image="test/host:2"), say=print)
