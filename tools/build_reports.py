"""Check the public reports of `lib/sparkbook/logs/reports/*.yaml` and write what the library reads:
`reports.json`, and the JSON Schema of the YAML files.

    python tools/build_reports.py            # write both files
    python tools/build_reports.py --check    # exit 1 if one of them would change
    python tools/build_reports.py --sqlite reports.sqlite    # the index as a file, for queries
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from sparkbook.errors import SparkbookError
from sparkbook.logs import reports


def main() -> int:
    """Build, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare with the files")
    parser.add_argument("--sqlite", metavar="FILE", type=Path, help="write the index as a database")
    options = parser.parse_args()
    try:
        entries = reports.read()
    except SparkbookError as error:
        print(error, file=sys.stderr)
        return 1
    texts = {reports.FILE: reports.as_json(entries), reports.SCHEMA_FILE: reports.json_schema()}
    stale = [
        file.name
        for file, text in texts.items()
        if not file.exists() or file.read_text("utf-8") != text
    ]
    if not options.check:
        for file, text in texts.items():
            file.write_text(text, "utf-8")
    if options.sqlite:
        index = reports.database()
        if index is None:
            print("This Python has no SQLite with FTS5.", file=sys.stderr)
            return 1
        options.sqlite.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(options.sqlite)) as copy:
            index.backup(copy)
    print(f"{len(entries)} reports" + (f"; changed: {', '.join(stale)}" if stale else ""))
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
