"""Questions to vLLM's own code, answered inside vLLM's Python: without a GPU, without weights.

Run as a program, with the standard library and vLLM only, by `sparkbook.oracle` on this machine, or
in an image that holds any vLLM:

    python answering.py < request.json > answers.jsonl

The request names the machine to pretend, the packages to count as installed, and the questions. The
first line of the answer says which vLLM answers; each further line answers one question. vLLM is
imported once. Each question runs in a process of its own (`fork`), so that a crash or a hang costs
that question and nothing else.

A question goes as far as its `depth`:

    parse      the argument parser of `vllm serve`
    config     `create_engine_config`: refusals and resolved values, before any weight is read
    model      the model on torch's meta device: bytes of weights, backends by layer
    cache      the KV cache that vLLM makes of so many bytes
    admission  the check of free memory with which every start begins

The platform is vLLM's own for CUDA, with the values of the pretended machine where it would ask the
driver. Compiled operators of CUDA are missing in the CPU build; none is needed to decide.
"""

import contextlib
import gc
import importlib.metadata
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import depths
import pretending

COMPILED = (
    "vllm._C", "vllm._C_stable_libtorch", "vllm._moe_C", "vllm._flashkda_C", "vllm.vllm_flash_attn",
)  # fmt: skip
"""Modules of the CUDA build that are no Python."""


def prepare(request):
    """Import vLLM as on the machine of the request. Returns the first line of the answer."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        OMP_NUM_THREADS="1",
        VLLM_LOGGING_COLOR="0",
        VLLM_PLUGINS="",
    )
    holds = pretending.install(request.get("installed", {}))
    for name in COMPILED:
        if not pretending.imports(name):
            sys.modules[name] = pretending.Anything(name)
    import torch

    pretending.no_network()
    pretending.stub_operators(torch)
    real = not request.get("pretend", True) and torch.cuda.is_available()
    if not real:
        pretending.pretend(request["machine"])
    if "triton" in holds:
        pretending.triton(holds["triton"])
    import vllm

    depths.TOTAL.append(int(request["machine"]["total_bytes"]))
    deepest = max(
        (depths.DEPTHS.index(q.get("depth", "config")) for q in request["questions"]), default=0
    )
    _load(request, deepest)
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "machine": torch.cuda.get_device_name() if real else request["machine"]["name"],
        "pretended": not real,
        "installed": holds,
    }


def _load(request, deepest):
    """Import what the questions need, so that each fork finds it ready."""
    depths.arg_parser()
    import vllm.engine.arg_utils  # noqa: F401

    depths.find("xgrammar:GrammarMatcher")  # asks for `cuda` at its import, as torch does
    for step in pretending.LATER:
        step()
    if deepest >= depths.DEPTHS.index("config"):
        depths.find("vllm.tool_parsers:ToolParserManager")
        depths.find("vllm.reasoning:ReasoningParserManager")
        _load_classes(request)
        if reasoning := depths.find("vllm.config.reasoning:ReasoningConfig"):
            # It asks the tokenizer for the ids of two words.
            reasoning.initialize_token_ids = lambda *_, **__: None
    if deepest >= depths.DEPTHS.index("model"):
        depths.find("vllm.model_executor.model_loader.utils:initialize_model")
        depths.find("vllm.v1.core.kv_cache_utils:get_kv_cache_configs")
    gc.freeze()


def _load_classes(request):
    """Import the model classes, here and not in a process of their own: that one would not know
    the pretended machine.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()
    for files in request.get("models", {}).values():
        for architecture in files["config.json"].get("architectures") or ():
            with contextlib.suppress(Exception):
                _load_class(registry.ModelRegistry.models[architecture])


def _load_class(model):
    """Import a model's class. Some name an operator of the CUDA build while they are imported."""
    try:
        model.load_model_cls()
    except AttributeError:
        pretending.BUILDING.append(True)
        try:
            model.load_model_cls()
        finally:
            pretending.BUILDING.clear()


# ---- the frame


def write_models(names, models):
    """Go into a folder of its own, and write each model's files where vLLM finds its name as a
    local folder.
    """
    root = Path(tempfile.mkdtemp(dir=".")).resolve()
    os.chdir(root)
    for name, key in names.items():
        folder = (root / name).resolve()
        if root not in folder.parents:
            raise SystemExit(f"'{name}' is no name of a model")
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in models[key].items():
            (folder / Path(file).name).write_text(json.dumps(content), "utf-8")


def forked(question, request):
    """Answer a question in a process of its own, within its limits."""
    limits = request["limits"]
    reading, writing = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - the child writes into it, closed below
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(question, request, writing, log)
    os.close(writing)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    data, timely = _read(reading, time.monotonic() + limits["seconds"])
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading)
    with contextlib.suppress(ValueError):
        return json.loads(data)
    log.seek(0)
    last = [
        line for line in log.read()[-20000:].decode("utf-8", "replace").splitlines() if line.strip()
    ]
    return {
        "id": question.get("id"),
        "accepted": False,
        "failed": _end(status, timely, limits),
        "last_words": last[-5:],
    }


def _end(status, timely, limits):
    """How a question's process ended, in words."""
    if not timely:
        return f"no answer within {limits['seconds']:g} s"
    if not os.WIFSIGNALED(status):
        return "it ended without an answer"
    if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return f"no answer within {limits['cpu_seconds']:g} s of processor time, or no memory left"
    return f"it crashed: {signal.Signals(os.WTERMSIG(status)).name}"


def _read(fd, deadline):
    parts = []
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([fd], [], [], left)
        if ready and not (part := os.read(fd, 1 << 16)):
            return b"".join(parts), True
        parts += [part] if ready else []
    return b"", False


def _child(question, request, writing, log):
    code, limits = 1, request["limits"]
    try:
        os.setpgid(0, 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        memory = int(limits["bytes"])
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limits["cpu_seconds"]),) * 2)
        write_models(question.get("models", {}), request.get("models", {}))
        with os.fdopen(writing, "w") as out:
            json.dump(depths.answer(question), out)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the parent quotes it
        traceback.print_exc()
    finally:
        os._exit(code)


def main():
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        os.chdir(folder)
        try:
            head = prepare(request)
        except Exception as error:  # noqa: BLE001 - any release may fail in its own way
            traceback.print_exc()
            head = {
                "failed": f"{type(error).__name__}: {depths.words(error)}",
                "by": depths.raised(error),
            }
        print(json.dumps(head), file=out, flush=True)
        if "failed" not in head:
            for question in request["questions"]:
                answer = forked(question, request)
                print(json.dumps(answer), file=out, flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
