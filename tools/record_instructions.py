"""Writes kernels/instructions.json: what nvcc's assembler says of the FP4 instructions, target by
target.

python tools/record_instructions.py
"""

from __future__ import annotations

import dataclasses
import json

from sparkbook.kernels import build, instructions

answers = {
    name: {target: dataclasses.asdict(one) for target, one in row.items()}
    for name, row in instructions.table(disassemble=True).items()
}
facts = {
    "compiler": instructions.compiler(),
    "architecture": {
        target: instructions.architecture(target) for target in ("sm_121", "sm_121a", "sm_121f")
    },
    "fp4_header": instructions.has_fp4_header(),
}
text = json.dumps({**facts, "answers": answers}, indent=1)
(build.sources() / instructions.FILE).write_text(text + "\n", "utf-8")
