"""Several logs of one run: one clock, who fell silent first, who only reports it."""

import json
from pathlib import Path

import pytest
from sparkbook.cli import app
from sparkbook.logs.together import together
from typer.testing import CliRunner

DATA = Path(__file__).parents[1] / "data" / "logs"


def read(name):
    return (DATA / f"h200-0.24.0-two-nodes-{name}.log").read_bytes()


def killed():
    """A run in which the second node was killed while the first one served."""
    head, worker = read("healthy-n0"), read("healthy-n1")
    ready = head.index(b"Application startup complete")
    head = head[: head.index(b"\n", ready) + 1] + (
        b"(Worker_TP0 pid=1797) ERROR 11-28 14:52:40 [multiproc_executor.py:1063] ncclRemoteError: A"
        b" call failed possibly due to a network error or a remote process exiting prematurely.\n"
    )
    return head, worker[: worker.index(b"[rank1]:[W1128 14:52")]


def test_a_rank_with_a_cause_of_its_own_comes_first():
    run = together({"n1.log": read("iface-n1"), "n0.log": read("iface-n0")})
    assert run.first.name == "n0.log" and run.findings[0].rule == "LOG502"
    assert run.findings[0].evidence.startswith("n0.log, line ")
    assert [one.name for one in run.members if one.only_reports] == ["n1.log"]
    assert "n1.log only reports it" in run.findings[1].message
    assert [f.rule for f in run.findings if f.severity == "error"] == ["LOG502"]


def test_a_healthy_run_that_was_stopped_in_order_is_healthy():
    run = together({"n0.log": read("healthy-n0"), "n1.log": read("healthy-n1")})
    assert run.healthy and run.first is None
    assert not [f for f in run.findings if f.severity == "error"]


def test_a_rank_that_was_killed_fell_silent_first():
    head, worker = killed()
    run = together({"n0.log": head, "n1.log": worker})
    assert run.first.name == "n1.log" and run.findings[0].rule == "LOG910"
    assert "n1.log first, n0.log" in run.headline and "n0.log only reports it" in run.headline
    assert "killed" in run.headline and "RDMA" not in run.headline


def test_the_kernels_log_names_the_killer():
    head, worker = killed()
    journal = (
        b"Nov 28 14:52:29 spark-2 kernel: Out of memory: Killed process 4711 (VLLM::Worker_TP1)"
        b" total-vm:1kB\n"
    )
    inspect = json.dumps(
        [{"State": {"ExitCode": 137, "OOMKilled": False, "FinishedAt": "2026-11-28T14:52:30Z"}}]
    )
    run = together(
        {"n0.log": head, "n1.log": worker, "journal.txt": journal, "i.json": inspect.encode()}
    )
    assert run.first.name == "journal.txt" and run.findings[0].rule == "LOG111"
    assert next(m for m in run.members if m.name == "i.json").exit_code == 137


def test_clocks_of_other_time_zones_are_put_on_one():
    head, worker = killed()
    run = together({"n0.log": head, "n1.log": worker.replace(b"11-28 14:", b"11-28 15:")})
    assert run.first.name == "n1.log"
    assert all(abs(one.end_s - run.members[0].end_s) < 120 for one in run.members)


def test_the_command_takes_several(tmp_path):
    head, worker = killed()
    (tmp_path / "n0.log").write_bytes(head)
    (tmp_path / "n1.log").write_bytes(worker)
    words = ["diagnose", str(tmp_path / "n0.log"), str(tmp_path / "n1.log")]
    plain = CliRunner().invoke(app, words)
    assert plain.exit_code == 1 and "in which they fell silent" in plain.output
    answer = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert answer["summary"]["first"] == "n1.log"
    assert [one["name"] for one in answer["summary"]["logs"]] == ["n1.log", "n0.log"]


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'[{"State": 3}]', b"\xff\x00" * 50])
def test_what_is_no_log_breaks_nothing(text):
    assert together({"a": text, "b": b"x"}).verdict


_READY = b"(APIServer pid=1) INFO:     Application startup complete.\n"
_BEGUN = b"(APIServer pid=1) INFO 07-04 10:00:00 [a.py:1] vLLM API server version 0.28.0\n"


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (_READY, "healthy"),
        (_BEGUN, "starting"),
        (b"(EngineCore pid=9) INFO 07-04 10:00:00 [a.py:1] fruit\n", "cut off"),
        (b"Jul  4 10:00:00 spark kernel: docker0: port 1 entered blocking state\n", "healthy"),
        (b"Jul 04 10:00:00 spark sshd[7]: Accepted publickey for spark\n", "healthy"),
        (b'[{"State": {"ExitCode": 0, "OOMKilled": false}}]', "healthy"),
        (b"(Worker_TP1 pid=9) INFO 07-04 10:00:00 [a.py:1] fruit\n", "healthy"),
    ],
)
def test_several_logs_are_healthy_only_if_each_is(tmp_path, other, verdict):
    for order in (("a.log", "b.log"), ("b.log", "a.log")):
        run = together({name: _READY if name == "a.log" else other for name in order})
        assert run.verdict == verdict and run.healthy == (verdict == "healthy")
        if not run.healthy:
            assert f"b.log: {verdict}" in run.headline and "a.log: healthy" in run.headline
    (tmp_path / "a.log").write_bytes(_READY)
    (tmp_path / "b.log").write_bytes(other)
    words = ["diagnose", str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    assert CliRunner().invoke(app, words).exit_code == (verdict != "healthy")


def test_bytes_that_are_no_text_are_told_and_never_shown(tmp_path):
    junk = bytes(range(1, 256)) * 40
    (tmp_path / "a.log").write_bytes(_READY)
    (tmp_path / "b.log").write_bytes(junk)
    words = ["diagnose", str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    assert "b.log is not a log of vLLM" in str(CliRunner().invoke(app, words).exception)
    (tmp_path / "b.log").write_bytes(_BEGUN + b"(EngineCore pid=9) ERROR 07-04 [a] " + junk)
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1
    assert all(one.isprintable() or one == "\n" for one in shown.output)
    assert "\ufffd\ufffd" not in shown.output


_SOCKETS = b"""\
spark-1:97:97 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
spark-1:97:97 [0] NCCL INFO Failed to open libibverbs.so[.1]
spark-1:97:97 [0] NCCL INFO NET/IB : No device found.
spark-1:97:97 [0] NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.100.1<0>
"""


_DEAD = (
    b"(EngineCore pid=1663) ERROR 11-28 14:52:40 [core.py:1512] EngineCore encountered a fatal"
    b" error.\n"
)


@pytest.mark.parametrize(
    "end",
    [
        b"spark-1:97:202 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote"
        b" peer spark-2<47282>\n",
        b"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
        b" prematurely.\n",
        b"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled"
        b" system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n",
    ],
)
def test_nccl_over_sockets_is_slow_and_no_cause(end):
    head, worker = killed()
    head = _SOCKETS + head[: head.rindex(b"(Worker_TP0")] + end + _DEAD
    run = together({"n0.log": head, "n1.log": worker})
    assert run.first.name == "n1.log" and run.findings[0].rule == "LOG910"
    assert not [f for f in run.findings if f.rule == "LOG503"]
    assert {f.severity for f in run.findings if f.rule == "LOG504"} == {"warning"}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"max model len 4096", b"max model len 2048", "--max-model-len"),
        (b": Qwen3ForCausalLM", b": LlamaForCausalLM", "the architecture"),
        (b"NCCL INFO NCCL version 2.28.9", b"NCCL INFO NCCL version 2.30.4", "NCCL's version"),
    ],
)
def test_ranks_that_differ_are_named_first(old, new, what):
    head, worker = read("healthy-n0"), read("healthy-n1")
    assert old in worker
    run = together({"n0.log": head, "n1.log": worker.replace(old, new)})
    assert run.findings[0].rule == "LOG911" and what in run.headline and not run.healthy
    head, worker = killed()
    run = together({"n0.log": head, "n1.log": worker.replace(old, new)})
    assert run.findings[0].rule == "LOG911"
    assert [f.rule for f in run.findings if f.severity == "error"] == ["LOG911"]


def test_logs_of_servers_of_one_node_each_may_differ():
    one = b"INFO 11-28 10:00:00 [model.py:2152] Using max model len 512\n" + _READY
    assert together({"a": one, "b": one.replace(b"512", b"1024")}).healthy


def test_a_rank_that_never_began_is_named(tmp_path):
    head = read("healthy-n0")
    waits = head[: head.index(b"NCCL INFO NCCL version")]
    run = together({"n0.log": waits, "n1.log": b""})
    assert run.findings[0].rule == "LOG912" and "n1.log is empty" in run.headline
    assert together({"n0.log": head, "n1.log": b""}).findings[0].rule != "LOG912"
    (tmp_path / "n0.log").write_bytes(waits)
    (tmp_path / "n1.log").write_bytes(b"")
    shown = CliRunner().invoke(app, ["diagnose", *map(str, sorted(tmp_path.iterdir()))])
    assert shown.exit_code == 1 and "n1.log is empty: that rank never began" in shown.output
    (tmp_path / "n0.log").write_bytes(b"\n")
    shown = CliRunner().invoke(app, ["diagnose", *map(str, sorted(tmp_path.iterdir()))])
    assert "Every log is empty" in str(shown.exception)
