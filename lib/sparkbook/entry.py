"""What the `sparkbook` script calls: the command, which no Ctrl-C ends with a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command and exit; with 130 at Ctrl-C, also while the command is still imported."""
    try:
        from sparkbook.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
