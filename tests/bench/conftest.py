"""The truth server, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook.serve.endpoint import Endpoint


@pytest.fixture(scope="session")
def truth():
    process = subprocess.Popen(
        [sys.executable, "-I", Path(__file__).with_name("truth.py")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}", "truth")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
