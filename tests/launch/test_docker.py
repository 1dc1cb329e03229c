"""Docker's options, held to what the client on this machine says of itself."""

import re
import subprocess

import pytest
from sparkbook.launch.docker import OPTIONS, SWITCHES


@pytest.mark.client
@pytest.mark.parametrize("verb", ["run", "create"])
def test_every_option_of_the_client_is_known(verb):
    text = subprocess.run(
        ["docker", verb, "--help"], capture_output=True, text=True, check=True
    ).stdout
    options = re.findall(r"^\s+(?:-\w, )?\s*--([\w-]+)( \S+)?\s", text, re.MULTILINE)
    assert len(options) > 80
    assert {name for name, value in options if not value.strip()} <= SWITCHES
    assert {name for name, value in options if value.strip()} <= OPTIONS
    assert not SWITCHES & OPTIONS
