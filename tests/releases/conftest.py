"""The real parser, started once for all tests that ask it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from asked_parser import RealParser


@pytest.fixture(scope="session")
def real_parser():
    parser = RealParser()
    yield parser
    parser.close()
