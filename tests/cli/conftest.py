"""Makes `command_line.py` importable: tests are collected without their folder on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
