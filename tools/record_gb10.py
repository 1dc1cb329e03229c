"""Writes kernels/gb10.json: what the compiler makes of the kernels for GB10, and how their launches
fit its multiprocessors.

python tools/record_gb10.py
"""

from __future__ import annotations

from sparkbook.kernels import gb10

gb10.write(gb10.record())
