"""Makes `real_proxy.py` and the command line of `tests/cli` importable: tests are collected without
their folders on the path.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cli")]
