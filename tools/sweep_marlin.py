"""Times every variant of the product in Marlin's order on this GPU, and says where the one that
`marlin_cut` (kernels/marlin.cu) takes is not the fastest.

    python tools/sweep_marlin.py OUT [SECONDS]

A line of JSON a measurement goes to OUT at once, so that a run that is cut off (after SECONDS, 90)
keeps what it has. A small kernel runs before each product, as one does in a model, and its time is
in all measurements: a product that starts while its like still runs finds fewer multiprocessors
free. Shapes are those of the benchmark and of the 8B and 30B models of
`tools/make_nvfp4_models.py`. Each variant's result is first compared with that of the default one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from sparkbook.errors import SparkbookError
from sparkbook.kernels import bench
from sparkbook.kernels.library import marlin_cuts

SHAPES = ((24576, 4096), (4096, 12288), (5120, 2048), (2048, 4096), *bench.SHAPES)
TOKENS = (1, 2, 4, 8, 16)
SLOWER = 1.03
"""More than repeated measurements of one variant differ by."""


def variants(m: int, n: int) -> Iterator[dict[str, int]]:
    """Yield the default, and each that makes not too many blocks."""
    yield {}
    for cut in marlin_cuts(m, n):
        if cut["split"] == 1 or n // 64 // cut["tiles"] * cut["split"] <= 528:
            yield cut


def main(out: Path, seconds: float) -> None:
    """Measure until the time is over."""
    until = time.monotonic() + seconds
    one = bench._Bench(lambda _line: None)
    alpha, counter = one.ones(1) * 2.0**119, one.ones(1)
    with out.open("a", encoding="utf-8") as file:
        for n, k in SHAPES:
            nbytes = n * k * 9 // 16
            sets = [
                (one.bytes_(k // 16, 8 * n).view(torch.int32), one.marlin_scales(k // 16, n))
                for _ in range(one.copies(nbytes))
            ]
            for m in TOKENS:
                x, want = one.x(m, k), torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
                one.lib.marlin_gemv(x, *sets[0], alpha, want)
                for pdl in (False, True):
                    found: list[tuple[float, dict[str, int]]] = []
                    for how in variants(m, n):
                        if time.monotonic() > until:
                            return print("the time is over")
                        y = torch.empty_like(want)
                        one.lib.marlin_gemv(x, *sets[0], alpha, y, **how)
                        off = float((y.float() - want.float()).norm() / want.float().norm())
                        if not off < 0.01:
                            raise SparkbookError(
                                f"{n}x{k}, {m} tokens, {how}: differs by {off:.1e}"
                            )
                        launch = partial(
                            one.lib.marlin_gemv, x, stream=one.stream.cuda_stream, pdl=pdl, **how
                        )
                        small = partial(counter.add_, 1)
                        calls = [c for ws in sets for c in (small, partial(launch, *ws, alpha, y))]
                        half, spread = one.time(calls)
                        us = 2 * half
                        found.append((us, how))
                        row = {
                            "shape": f"{n}x{k}",
                            "tokens": m,
                            "pdl": pdl,
                            **how,
                            "us": round(us, 2),
                            "spread": round(spread, 3),
                        }
                        file.write(json.dumps(row) + "\n")
                        file.flush()
                    (default, _), (best, how) = found[0], min(found, key=lambda one: one[0])
                    if default > SLOWER * best:
                        where = f"{n}x{k}, {m} tokens{', pdl' if pdl else ''}"
                        print(f"{where}: {default:.1f} us, {how} takes {best:.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 90)
