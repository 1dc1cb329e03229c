"""Looking at a machine through a recorded runner, and judging it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sparkbook.host import EXAMPLES, Machine, judge, look, parse_meminfo
from sparkbook.host.machine import Ran, example_spark, run

SPARK = example_spark()
DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"


def _runner(answers):
    return lambda command: answers.get(" ".join(command[:2]), Ran(127, "", f"{command[0]}: not found"))


def test_a_spark_is_recognised(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(EXAMPLES["headless"].text)
    machine = look(
        _runner({
            "nvidia-smi --query-gpu=name,driver_version": Ran(0, "NVIDIA GB10, 580.173.02", ""),
            "docker --version": Ran(0, "Docker version 28.2.2, build e6534b4", ""),
            "docker version": Ran(0, "28.2.2", ""),
            "docker info": Ran(0, '{"runc":{"path":"runc"},"nvidia":{"path":"nvidia-container-runtime"}}', ""),
        }),
        meminfo,
    )  # fmt: skip
    assert machine.is_spark
    assert (machine.driver, machine.docker_client, machine.docker_server) == ("580.173.02", "28.2.2", "28.2.2")
    assert machine.docker_runtimes == ("nvidia", "runc")
    assert machine.memory == SPARK.memory
    assert not judge(machine)


def test_a_bare_machine_is_no_fault(tmp_path):
    machine = look(_runner({}), tmp_path / "nothing")
    assert (machine.gpus, machine.driver, machine.docker_client, machine.docker_server, machine.memory) == ((), None, None, None, None)
    (finding,) = judge(machine)
    assert (finding.rule, finding.severity) == ("HOST001", "info")
    assert "no NVIDIA GPU answers" in finding.message


def test_another_gpu_is_named():
    (finding,) = judge(Machine("x86_64", "6.1", gpus=("NVIDIA H100 80GB HBM3",)))
    assert "H100" in finding.message


@pytest.mark.parametrize(
    ("change", "rule", "kind"),
    [
        ({"driver": "570.86.10"}, "HOST002", "driver"),
        ({"driver": "590.44.01"}, "HOST003", "driver"),
        ({"docker_client": None, "docker_server": None}, "HOST004", None),
        ({"docker_server": None, "docker_error": DENIED}, "HOST005", "docker-permission"),
        ({"docker_server": None, "docker_error": "Cannot connect to the Docker daemon"}, "HOST006", None),
        ({"docker_runtimes": ("runc",)}, "HOST007", "nvidia-runtime"),
        ({"memory": parse_meminfo(EXAMPLES["after-download"].text)}, "HOST008", "page-cache"),
    ],
)
def test_each_fault_of_a_spark_is_found_alone_and_says_what_to_do(change, rule, kind):
    (finding,) = judge(replace(SPARK, **change))
    assert (finding.rule, finding.kind) == (rule, kind)
    assert finding.fix


def test_a_healthy_spark_has_no_finding():
    assert judge(SPARK) == ()


def test_a_driver_that_is_not_a_number_is_unknown_and_no_fault():
    assert judge(replace(SPARK, driver="[N/A]")) == ()


def test_a_real_command_and_one_that_is_not_there():
    assert run(["true"]).code == 0
    assert run(["sparkbook-no-such-command"]).code == 127
