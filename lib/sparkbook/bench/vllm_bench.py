"""`vllm bench serve`, run against a server and read back."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sparkbook.bench.exchange import from_vllm
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint
from sparkbook.util import limits


def run_vllm_bench(  # noqa: PLR0913 - each is an option of `vllm bench serve`
    endpoint: Endpoint,
    *,
    command: Sequence[str],
    tokenizer: str,
    prompts: int = 64,
    concurrency: int = 1,
    input_len: int = 512,
    output_len: int = 128,
    extra: Sequence[str] = (),
    limit_s: float | None = None,
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> Report:
    """Run `vllm bench serve` with random prompts, greedy, against a server and import what it
    measured as one row of the class `random`.

    Args:
        command: how vLLM is called, such as `[".venv-engine/bin/vllm"]`.
        tokenizer: folder or name of the model's tokenizer: vLLM makes its prompts with it.
        input_len, output_len: tokens of a prompt and of a reply.
        extra: further arguments, such as `--dataset-name`.
        limit_s: seconds after which it is ended.

    Raises:
        SparkbookError: it is not there, takes too long, or fails; its last lines are in the
            message.
    """
    with tempfile.TemporaryDirectory(prefix="sparkbook-bench-") as folder:
        line = [
            *command,
            "bench",
            "serve",
            "--backend",
            "openai-chat",
            "--base-url",
            endpoint.url,
            "--endpoint",
            "/v1/chat/completions",
            "--model",
            endpoint.model,
            "--tokenizer",
            tokenizer,
            "--num-prompts",
            str(prompts),
            "--max-concurrency",
            str(concurrency),
            "--num-warmups",
            str(concurrency),
            "--temperature",
            "0",
            "--disable-tqdm",
            # It would wait ten minutes for a server that answers otherwise than it likes. Ask the
            # server first.
            "--ready-check-timeout-sec",
            "0",
            "--save-result",
            "--save-detailed",
            "--result-dir",
            folder,
            "--result-filename",
            "result.json",
        ]
        if not any(argument.startswith("--dataset-name") for argument in extra):
            line += [
                "--dataset-name",
                "random",
                "--random-input-len",
                str(input_len),
                "--random-output-len",
                str(output_len),
                "--ignore-eos",
            ]
        # vLLM's client takes the key from this variable.
        environment = {**os.environ, "OPENAI_API_KEY": endpoint.api_key or "none"}
        try:
            done = run(
                [*line, *extra],
                capture_output=True,
                text=True,
                env=environment,
                timeout=limit_s,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            raise SparkbookError(f"{command[0]} can't be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SparkbookError(
                f"`vllm bench serve` was ended after {limit_s:.0f} s without a result: does the"
                " server still answer?"
            ) from None
        file = Path(folder) / "result.json"
        if done.returncode or not file.is_file():
            last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-4:])
            raise SparkbookError(f"`vllm bench serve` ended with status {done.returncode}:\n{last}")
        report = from_vllm(limits.read_json(file))
        for cell in report.cells:
            cell.prompt_class, cell.max_tokens = "random", output_len
        return report
