"""The kernels on a GPU against the numpy reference: what `sparkbook kernels test` runs. Needs torch
with CUDA.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkbook.kernels.caller_checks import CallerChecks
from sparkbook.kernels.format_checks import FormatChecks
from sparkbook.kernels.marlin_checks import MarlinChecks
from sparkbook.kernels.product_checks import ProductChecks


@dataclass(frozen=True)
class Check:
    """One check: what it looked at, whether it holds, and a figure or the reason."""

    name: str
    ok: bool
    detail: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "detail": self.detail,
            "seconds": round(self.seconds, 2),
        }


def run(*, quick: bool = False, say: Callable[[Check], None] = lambda check: None) -> list[Check]:
    """Return all checks. quick: without the sweep over all float32s, the hundred runs and
    torch.compile (for use under compute-sanitizer).
    """
    bench = _Checks(quick)
    done = []
    for name in [name for name in dir(bench) if name.startswith("check_")]:
        function = getattr(bench, name)
        begin = time.monotonic()
        try:
            ok, detail = True, function()
        except AssertionError as error:
            ok, detail = False, str(error) or "assertion failed"
        except Exception as error:  # noqa: BLE001 - a kernel that faults fails its check
            ok, detail = False, f"{type(error).__name__}: {str(error)[:300]}"
        check = Check(
            (function.__doc__ or name).strip().rstrip("."), ok, detail, time.monotonic() - begin
        )
        say(check)
        done.append(check)
    return done


class _Checks(FormatChecks, ProductChecks, MarlinChecks, CallerChecks):
    """All checks, in the order of their numbers."""


def main() -> int:
    """`python -m sparkbook.kernels.selftest [--quick]`: prints a line a check; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="without the long checks, as under compute-sanitizer"
    )
    arguments = parser.parse_args()
    done = run(quick=arguments.quick, say=lambda check: print(line(check), flush=True))  # noqa: T201
    return int(not all(check.ok for check in done))


def line(check: Check) -> str:
    """Return a check in one line."""
    return f"{'ok  ' if check.ok else 'FAIL'} {check.name} ({check.detail}; {check.seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
