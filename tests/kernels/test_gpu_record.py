"""`sparkbook record --kernels` and the predictions that go with it, with stand-ins for the GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from sparkbook.bundle import Scrubber
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.kernels import bench, build, gpu_record, records, roofline, selftest
from typer.main import get_command

PASSED = selftest.Check("the product", True, "largest error 1e-4", 0.123)
SCRUBBER = Scrubber(["a-secret-value"], ["ana-spark"], "/home/ana")


def report(**_: object) -> bench.Report:
    """What the H100's report says, and a library's failure that names where it lies."""
    said = json.loads((build.sources() / "results" / "h100.json").read_text("utf-8"))
    fields = ("what", "shape", "tokens", "us")
    rows = [
        bench.Row(*(row[name] for name in fields), int(row["mb"] * 1e6), row["spread"])
        for row in said["rows"]
    ]
    failed = "ImportError: /home/ana/lib/x.so on ana-spark, 10.1.2.3, a-secret-value"
    return bench.Report(said["machine"], said["ceilings_gb_s"], rows, {"humming": failed})


def checks(say, **_: object) -> list[selftest.Check]:
    say(PASSED)
    return [PASSED]


def recorded(out: Path, **changes) -> tuple[dict, list[str]]:
    said: list[str] = []
    given = {"clean": SCRUBBER.clean, "check": checks, "measure": report, **changes}
    gpu_record.record(out, said.append, **given)
    return json.loads(out.read_text("utf-8")), said


def test_one_file_has_all_of_it_and_no_names(tmp_path: Path) -> None:
    found, said = recorded(tmp_path / "mine.json")
    assert found["checks"] == [PASSED.to_dict()] and found["failed"] == 0
    assert said == ["ok   the product (largest error 1e-4; 0.1 s)"]
    want = report().to_dict()
    assert found["rows"] == want["rows"] and found["ceilings_gb_s"] == want["ceilings_gb_s"]
    assert {"driver", "cuda", "torch", "python", "kernels"} <= found["machine"].keys()
    assert {one["what"] for one in found["predicted_for_a_spark"]} >= {"fp4_gemv", "moe_decode"}
    text = (tmp_path / "mine.json").read_text("utf-8")
    assert not re.search(r"ana|10\.1\.2\.3|a-secret", text)
    assert found["absent"]["humming"].startswith("ImportError: /home/user/lib/x.so on name1, 192")


def test_a_name_that_stays_keeps_the_file_from_being_written(tmp_path: Path) -> None:
    class Blind(Scrubber):
        def scrub(self, text: str) -> str:
            return text

    with pytest.raises(SparkbookError, match="a name is still in the result"):
        recorded(tmp_path / "mine.json", clean=Blind((), ["ana-spark"]).clean)
    assert not list(tmp_path.iterdir())


def test_a_benchmark_that_stops_is_no_reason_to_lose_the_checks(tmp_path: Path) -> None:
    def stops(**_: object) -> bench.Report:
        raise RuntimeError("CUDA error: an illegal instruction was encountered")

    found, said = recorded(tmp_path / "mine.json", measure=stops)
    assert found["failed"] == 1 and "illegal instruction" in found["stopped"]
    assert found["checks"] and said[-1].startswith("The benchmark stopped: RuntimeError")


@pytest.mark.parametrize("while_it", ["checks", "measures"])
def test_ctrl_c_keeps_what_was_found(tmp_path: Path, while_it: str) -> None:
    def interrupted(say=None, **_: object) -> list[selftest.Check]:
        if while_it == "checks":
            say(PASSED)
        raise KeyboardInterrupt

    out, said = tmp_path / "mine.json", []
    given = {"check": interrupted} if while_it == "checks" else {"measure": interrupted}
    with pytest.raises(KeyboardInterrupt):
        gpu_record.record(out, said.append, SCRUBBER.clean, **{"check": checks, **given})
    found = json.loads(out.read_text("utf-8"))
    assert (found["checks"], found["stopped"]) == ([PASSED.to_dict()], "Interrupted")
    assert said[-1] == f"Interrupted: {out} holds the 1 checks that were finished"


def test_only_texts_are_cleaned(tmp_path: Path) -> None:
    """A word to take out may be a number, or a switch's value, and the file stays JSON."""
    plain, _ = recorded(tmp_path / "plain.json")
    found, _ = recorded(tmp_path / "mine.json", clean=Scrubber(["true"], ["10", "machine"]).clean)
    assert found.keys() == plain.keys() and found["rows"] == plain["rows"]
    assert found["checks"][0]["ok"] is True


def test_minutes_are_not_lost_if_the_file_can_not_be_written_any_more(tmp_path: Path) -> None:
    out = tmp_path / "sub" / "mine.json"
    out.parent.mkdir()

    def writes(**_: object) -> bench.Report:
        out.write_text("theirs", "utf-8")
        return report()

    def removes(**_: object) -> bench.Report:
        out.parent.rmdir()
        return report()

    for measure, why in ((writes, "came into being meanwhile"), (removes, "can't be written")):
        with pytest.raises(SparkbookError, match=rf"{why}.*\. All of it is kept in") as error:
            gpu_record.record(out, print, clean=SCRUBBER.clean, check=checks, measure=measure)
        kept = Path(str(error.value).rpartition(" kept in ")[2])
        assert json.loads(kept.read_text("utf-8"))["checks"]
        if measure is writes:
            assert out.read_text("utf-8") == "theirs"
            out.unlink()


def test_ctrl_c_before_the_first_check_leaves_no_file(tmp_path: Path) -> None:
    def interrupted(**_: object) -> list[selftest.Check]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "mine.json", check=interrupted)
    assert not list(tmp_path.iterdir())


def test_nothing_is_measured_if_the_file_can_not_be_written(tmp_path: Path) -> None:
    def never(**_: object) -> list[selftest.Check]:
        raise AssertionError("checked before the place was looked at")

    (tmp_path / "there").write_text("mine", "utf-8")
    for name, why in (("there", "is there already"), ("no/where", "can't be written")):
        with pytest.raises(SparkbookError, match=why):
            recorded(tmp_path / name, check=never)
    assert (tmp_path / "there").read_text("utf-8") == "mine"


def test_the_benchmark_looks_at_its_file_first(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        get_command(app), ["kernels", "bench", "--out", str(tmp_path / "no/where.json")]
    )
    assert "can't be written" in str(done.exception)


def test_the_benchmarks_answer_and_results_outlive_its_file(tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "sub" / "mine.json"
    out.parent.mkdir()

    def removes(**_: object) -> bench.Report:
        out.parent.rmdir()
        return report()

    monkeypatch.setattr(bench, "run", removes)
    done = CliRunner().invoke(get_command(app), ["kernels", "bench", "--json", "--out", str(out)])
    assert json.loads(done.output)["rows"] == report().to_dict()["rows"]
    said, _, kept = str(done.exception).partition(". All of it is kept in ")
    assert "can't be written" in said
    assert json.loads(Path(kept).read_text("utf-8")) == report().to_dict()


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (2, 1)])
def test_the_command_says_where_the_file_is(monkeypatch, failed: int, code: int) -> None:
    given = []

    def record(out: Path, say, clean) -> dict:
        given.append((str(out), clean("of ACME")))
        return {"checks": [PASSED], "failed": failed}

    monkeypatch.setattr(gpu_record, "record", record)
    done = CliRunner().invoke(get_command(app), ["record", "--kernels", "--also", "ACME"])
    assert given == [("sparkbook-kernels.json", "of name1")] and done.exit_code == code
    assert done.output == f"sparkbook-kernels.json: 1 checks, {failed} failed\n"


def test_a_kernel_that_faults_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty:
        def __init__(self, quick: bool) -> None:
            pass

        def check_1(self) -> str:
            """Encoding."""
            raise RuntimeError("CUDA error: misaligned address")

        def check_2(self) -> str:
            """Decoding."""
            return "exact"

    monkeypatch.setattr(selftest, "_Checks", Faulty)
    first, second = selftest.run()
    assert (first.ok, first.detail) == (False, "RuntimeError: CUDA error: misaligned address")
    assert second.ok


def test_predictions_lie_between_the_memorys_rates() -> None:
    h100 = records.load()["H100"]
    found = {(one.what, one.shape, one.tokens): one for one in roofline.predict(h100)}
    assert all(one.floor_us < one.low_us < one.high_us for one in found.values())
    one = found["fp4_gemv", "8192x8192", 1]
    # 8192 x 8192 weights of 4.5 bits; 5 us of the launch.
    assert one.floor_us == pytest.approx(8192**2 * 9 / 16 / 273e3, rel=1e-3)
    assert one.high_us - one.mb * 1e3 / 231 == pytest.approx(
        h100.us("fp4_gemv", "8192x8192") - one.mb * 1e3 / h100.ceilings_gb_s["read"]
    )
    assert not [what for what, *_ in found if "torch" in what or "probe" in what]
    besides = [
        one.high_us - one.mb * 1e3 / 231
        for (what, _, tokens), one in found.items()
        if what == "fp4_gemv" and tokens == 1 and one.mb < 140
    ]
    assert 4.5 < min(besides) < max(besides) < 6.5


def test_instructions_and_tensor_cores_of_a_spark() -> None:
    # 23 us of decoding at 132 MB on an H200 (kernels/VERSIONS.md).
    share = roofline.instruction_share(23, records.load()["H200"], 132.12)
    assert 0.08 < share < 0.11
    many = [roofline.prefill_floor_us(2048, 8192, 8192, bits) for bits in (4, 8, 16)]
    assert many == pytest.approx([549.8, 1099.5, 2199.0], rel=1e-3)
    assert roofline.prefill_floor_us(1, 8192, 8192, 4) == pytest.approx(138.3, rel=1e-3)
