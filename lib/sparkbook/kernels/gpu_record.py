"""`sparkbook record --kernels`: the kernels checked and timed on this machine's GPU, in one file
that can be sent back.

The file holds the checks, the benchmark's report, versions, and what was predicted for a Spark. It
holds no names and no addresses: it goes through the same scrubber as a bundle.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.kernels import bench, records, roofline, selftest
from sparkbook.util.files import check_place, spared, write_text
from sparkbook.util.texts import each_text


def record(
    out: Path,
    say: Callable[[str], None],
    clean: Callable[[str], str],
    *,
    check: Callable[..., Sequence[selftest.Check]] = selftest.run,
    measure: Callable[..., bench.Report] = bench.run,
) -> dict[str, Any]:
    """Build or find the kernels for this GPU, check them, time them, and write the file: minutes.

    Args:
        out: the file; must not be there yet.
        say: takes each line of progress.
        clean: takes secrets and names out of a text (`bundle.Scrubber.clean`).
        check, measure: what checks and times.

    Returns:
        What was written.

    Raises:
        KeyboardInterrupt: Ctrl-C; the file holds the checks that were finished.
        SparkbookError: there is no GPU, torch or compiler, `out` can't be written, or a name could
            not be taken out.
    """
    if out.exists() or out.is_symlink():
        raise SparkbookError(f"{out} is there already and is left as it is: choose another name")
    check_place(out)
    predicted = [asdict(one) for one in roofline.predict(records.load()["H100"])]
    checks: list[selftest.Check] = []

    def checked(one: selftest.Check) -> None:
        checks.append(one)
        say(selftest.line(one))

    ended: KeyboardInterrupt | None = None
    try:
        check(say=checked)
        report = _measured(measure, say)
    except KeyboardInterrupt as error:
        if not checks:
            raise
        report, ended = {"stopped": "Interrupted"}, error
    found = {
        "sparkbook": version("sparkbook"),
        "system": {
            "os": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
        },
        "checks": [one.to_dict() for one in checks],
        "failed": sum(not one.ok for one in checks) + ("stopped" in report),
        **report,
        "predicted_for_a_spark": predicted,
    }
    _write(out, json.dumps(each_text(found, clean), indent=1) + "\n")
    if ended:
        say(f"Interrupted: {out} holds the {len(checks)} checks that were finished")
        raise ended
    return found


def _write(out: Path, text: str) -> None:
    """Write the file, which may have become impossible in the minutes of measuring."""
    try:
        if out.exists() or out.is_symlink():
            raise SparkbookError(f"{out} came into being meanwhile and is left as it is")
        write_text(out, text)
    except SparkbookError as error:
        raise SparkbookError(spared(text, error)) from None


def _measured(measure: Callable[..., bench.Report], say: Callable[[str], None]) -> dict[str, Any]:
    try:
        return measure(say=say).to_dict()
    except Exception as error:  # noqa: BLE001 - what was found up to here is worth sending
        stopped = f"{type(error).__name__}: {str(error)[:300]}"
        say(f"The benchmark stopped: {stopped}")
        return {"stopped": stopped}
