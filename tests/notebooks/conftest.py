"""The chapters run in this process."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for in_process.py, which only tests use
