"""vLLM's own parser, to be asked by tests."""

import json
import os
import subprocess
from pathlib import Path

from sparkbook.serve.paths import engine_python


class RealParser:
    """vLLM's own argument parser, in a process of its own."""

    def __init__(self):
        env = {
            **os.environ,
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        script = Path(__file__).with_name("real_parser.py")
        self.process = subprocess.Popen(
            [engine_python(), script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def options(self):
        return self.ask({"dump": True})

    def refusal(self, argv):
        """None where vLLM accepts these words after `vllm serve`, else what it says."""
        return self.ask({"argv": argv})

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
