"""Runs under the engine's own Python: vLLM's real parser, asked over standard input and output, a
JSON value a line.

`{"dump": true}` is answered with every option; `{"argv": [...]}` (the words after `vllm serve`)
with null where they are accepted, else with the error's text.
"""

import contextlib
import dataclasses
import enum
import io
import json
import sys

answers = sys.stdout
sys.stdout = sys.stderr

from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: E402
from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402


def plain(value):
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return {"object": type(value).__name__}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return None if value == "==SUPPRESS==" else value


def dump(serve):
    options = {}
    for action in serve._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if names and action.dest != "help":
            options[names[0][2:]] = {
                "names": sorted(action.option_strings),
                "choices": None if action.choices is None else plain(action.choices),
                "default": plain(action.default),
                "nargs": action.nargs,
            }
    return options


def refusal(parser, argv):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = parser.parse_args(["serve", *argv])
            validate_parsed_serve_args(args)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:  # noqa: BLE001 - whatever stops the start is an answer
        return f"{type(error).__name__}: {error}"
    return None


main = FlexibleArgumentParser(prog="vllm")
serve = ServeSubcommand().subparser_init(main.add_subparsers(dest="subparser"))
for line in sys.stdin:
    question = json.loads(line)
    answer = dump(serve) if "dump" in question else refusal(main, question["argv"])
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
