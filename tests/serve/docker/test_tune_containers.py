"""A tuning in a real Docker engine, with the stand-in for vLLM: one container at a time, images and
loaders among the candidates, and none left after Ctrl-C.
"""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from sparkbook.bench.results import Cell, Report, Request, figures
from sparkbook.tune import commands
from sparkbook.tune.measuring import Starter

pytestmark = pytest.mark.docker
COMMAND = Path(sys.executable).with_name("sparkbook")
SOURCE = {"url": "https://example.org/", "date": "2026-11-29"}


@pytest.fixture
def wish(engine, real, answering, tmp_path, monkeypatch):
    """What is tuned: a server that is the stand-in. The engine has `test/host:2`, and no
    `test/host:3`.
    """
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", "/nowhere")  # no vLLM is asked
    engine.client.images.get("test/host:1").tag("test/host", "2")
    launch = answering()
    recipe = real.model_copy(
        update={
            "container": launch.container.model_copy(update={"name": "tiny"}),
            "serve": launch.serve,
            "env": launch.env,
        }
    )
    file, space = tmp_path / "tiny.yaml", tmp_path / "space.yaml"
    data = recipe.model_dump(mode="json", exclude_unset=True) | {"id": "tiny-box"}
    file.write_text(yaml.safe_dump(data))
    load = {"classes": ["code"], "concurrency": 1, "max_tokens": 8}
    images = [{"image": "test/host:2"}, {"image": "test/host:3"}]
    options = {
        "image": {"why": "w", "source": SOURCE, "values": images},
        "loader": {
            "why": "w",
            "source": SOURCE,
            "start": True,
            "values": [{"load-format": "fastsafetensors"}],
        },
    }
    uses = {"chat": {"text": "t", "changes": 1, "load": load}}
    space.write_text(yaml.safe_dump({"uses": uses, "options": options}))
    return commands.Wish(
        str(file), "chat", space=str(space), journal=str(tmp_path / "journal"), hours=1
    )


def images_of(engine):
    return [one.attrs["Config"]["Image"] for one in engine.client.containers.list()]


def test_images_and_loaders_take_turns_one_container_at_a_time(engine, wish, monkeypatch):
    measured = []

    def measure(endpoint, plan, recipe):
        assert "generation_tokens" in endpoint.metrics_text()
        (image,) = images_of(engine)
        assert image == recipe.image.ref
        measured.append(image)
        seconds = 0.5 if image == "test/host:1" else 0.4
        requests = [
            Request(
                prompt=f"p-{n}",
                stamps_s=[0.1, seconds],
                latency_s=seconds + n / 1e4,
                output_tokens=8,
            )
            for n in range(plan.requests)
        ]
        cell = Cell(
            prompt_class="code", concurrency=1, figures=figures(requests), requests=requests
        )
        return Report(date="2026-11-29", tool="test", model="small", cells=[cell])

    monkeypatch.setattr(commands, "Starter", partial(Starter, measure=measure))
    monkeypatch.setattr(commands, "Asking", lambda *_: lambda *_: None)
    pruned, found, journal = commands.tune(wish, print)
    assert [(one.reason, one.text) for one in pruned.dropped] == [
        ("not here", "docker pull test/host:3")
    ]
    assert measured == [f"test/host:{n}" for n in (1, 2, 1, 2, 2, 1)]
    assert not images_of(engine)
    assert {key: len(some) for key, some in found.loading.items()} == {
        "baseline": 2,
        "--load-format fastsafetensors": 2,
    }
    assert not any(one.died for one in journal)


def test_ctrl_c_under_measurement_leaves_no_container(engine, wish, monkeypatch):
    def measure(*_):
        assert images_of(engine) == ["test/host:1"]
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "Starter", partial(Starter, measure=measure))
    with pytest.raises(KeyboardInterrupt):
        commands.tune(wish, print)
    assert not engine.client.containers.list(all=True)
    assert not Path(wish.journal).exists()


def test_ctrl_c_during_a_start_leaves_no_container(engine, wish):
    data = yaml.safe_load(Path(wish.source).read_text())
    data["env"]["STAND_IN_MODE"] = "hangs"
    Path(wish.source).write_text(yaml.safe_dump(data))
    line = ["tune", wish.source, "--for", "chat", "--space", wish.space, "--journal", wish.journal]
    with subprocess.Popen([COMMAND, *line], stderr=subprocess.PIPE, text=True) as tuning:
        said = ""
        while "starting tiny" not in said:
            said = tuning.stderr.readline()
            assert said, "it ended"
        tuning.send_signal(signal.SIGINT)
        tuning.stderr.read()
    assert tuning.returncode == 130
    assert not engine.client.containers.list(all=True)
