"""Extract the names of errors from NVIDIA's headers, for the test of the vocabularies.

python tools/build_vocabulary_names.py WHEELS > tests/data/logs/vocabulary_names.json

WHEELS is a folder with wheels from PyPI, as `pip download --no-deps -d WHEELS nvidia-cuda-runtime
nvidia-cublas nvidia-nccl-cu13` fetches them. Only the names are kept; the file names the wheel of
each list.
"""

import argparse
import json
import re
import sys
import zipfile
from pathlib import Path

HEADERS = {
    "driver_types.h": r"\bcudaError\w+(?=\s*=\s*\d+)",
    "cuda.h": r"\bCUDA_ERROR_\w+(?=\s*=\s*\d+)",
    "cublas_api.h": r"\bCUBLAS_STATUS_\w+(?=\s*=\s*\d+)",
    "cudnn_graph.h": r"\bCUDNN_STATUS_\w+(?=\s*=\s*\d+)",
    "nccl.h": r"\bnccl(?!NumResults|Success)\w+(?=\s*=\s*\d+\s*[,}])",
}
"""What is looked for in which header."""
RESULTS = re.compile(r"typedef enum \{[^}]*ncclSuccess[^}]*\}", re.DOTALL)
"""Of nccl.h, only the enumeration of results."""


def names(wheel: Path) -> dict[str, dict[str, object]]:
    """Return the names that a wheel's headers define, by header."""
    found: dict[str, dict[str, object]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in archive.namelist():
            header = path.rpartition("/")[2]
            if header not in HEADERS:
                continue
            text = archive.read(path).decode("utf-8", "replace")
            if header == "nccl.h" and (results := RESULTS.search(text)):
                text = results[0]
            listed = sorted(set(re.findall(HEADERS[header], text)))
            if listed:
                found[header] = {"wheel": "-".join(wheel.name.split("-")[:2]), "names": listed}
    return found


def main() -> None:
    """Write the names of all wheels of a folder as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, help="folder with the wheels")
    merged: dict[str, dict[str, object]] = {}
    for wheel in sorted(parser.parse_args().wheels.glob("*.whl")):
        merged |= {k: v for k, v in names(wheel).items() if k not in merged}
    json.dump(merged, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
