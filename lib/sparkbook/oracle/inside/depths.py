"""How far a question goes: the parser, the config, the model, the cache, the start check.

Where releases of vLLM moved something, `find` tries each place.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import importlib
import logging
import os
import re
import sys
import traceback
import types
from pathlib import Path
from unittest.mock import MagicMock

import pretending

TOTAL: list = []
"""Bytes of memory of the machine, once it is known."""

DEPTHS = ("parse", "config", "model", "cache", "admission")
WORDS = 2000
"""Characters of vLLM's own words that an answer keeps."""

OURS = ("--skip-tokenizer-init",)
"""Added to every line: a tokenizer is a file of the checkpoint that is not there."""

NO_TOKENIZER = "Auto-initialization of reasoning token IDs failed"
"""A warning that a Spark, which has the tokenizer, does not get."""

LEFT_OUT = (
    "trust_remote_code", "chat_template", "tool_parser_plugin", "reasoning_parser_plugin",
    "middleware", "logits_processors", "worker_cls", "worker_extension_cls", "scheduler_cls",
    "io_processor_plugin", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "hf_token", "api_key",
    "lora_modules", "download_dir", "allowed_local_media_path", "uds",
)  # fmt: skip
"""Options that name code or files of the machine of the start; an answer says which it left out."""


class Refused(Exception):
    """vLLM refuses the line."""


def find(*places):
    """The first of several `module:name` that this release has; None where it has none."""
    for place in places:
        module, _, name = place.partition(":")
        with contextlib.suppress(ImportError):
            if (value := getattr(importlib.import_module(module), name, None)) is not None:
                return value
    return None


@functools.cache
def arg_parser():
    """The parser of `vllm serve`, as a subcommand, and the check that follows it."""
    flexible = find(
        "vllm.utils.argparse_utils:FlexibleArgumentParser", "vllm.utils:FlexibleArgumentParser"
    )
    cli = find(
        "vllm.entrypoints.launchers.cli_args:make_arg_parser",
        "vllm.entrypoints.openai.cli_args:make_arg_parser",
    )
    if flexible is None or cli is None:
        importlib.import_module("vllm.engine.arg_utils")  # raises what stands in the way
        raise ImportError("this vLLM has no parser of `vllm serve` where one is known")
    parser = flexible(prog="vllm")
    serve = cli(parser.add_subparsers(dest="subparser").add_parser("serve"))

    def error(message):
        raise Refused(message)

    parser.error = serve.error = error
    return parser, getattr(sys.modules[cli.__module__], "validate_parsed_serve_args", None)


# ---- the depths


def parsed(words, left_out):
    """The arguments as `vllm serve` has them after its own checks. What is left out goes into
    `left_out`.

    Raises:
        Refused: the parser or its check does.
    """
    try:
        parser, validate = arg_parser()
        args = parser.parse_args(["serve", *words])
    except SystemExit as error:
        raise Refused(f"the parser exits with {error.code}") from None
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    defaults = vars(parser.parse_args(["serve"]))
    for name in LEFT_OUT:
        if name in defaults and getattr(args, name) != defaults[name]:
            left_out.append("--" + name.replace("_", "-"))
            setattr(args, name, defaults[name])
    if validate:
        validate(args)
    return args


def check_parsers(args):
    """The check of parsers' names with which the API server starts (`validate_api_server_args`)."""
    tools = find(
        "vllm.tool_parsers:ToolParserManager",
        "vllm.entrypoints.openai.tool_parsers:ToolParserManager",
    )
    reasoning = find("vllm.reasoning:ReasoningParserManager")
    name = getattr(args, "tool_call_parser", None)
    if getattr(args, "enable_auto_tool_choice", False) and name not in _registered(tools):
        raise Refused(
            f"invalid tool call parser: {name} (chose from {{ {','.join(_registered(tools))} }})"
        )
    outputs = getattr(args, "structured_outputs_config", None)
    name = getattr(args, "reasoning_parser", "") or getattr(outputs, "reasoning_parser", "")
    if name and name not in _registered(reasoning):
        raise Refused(
            f"invalid reasoning parser: {name} (chose from"
            f" {{ {','.join(_registered(reasoning))} }})"
        )


def _registered(manager):
    listed = getattr(manager, "list_registered", None)
    return sorted(
        listed()
        if listed
        else vars(manager).get("tool_parsers") or vars(manager).get("reasoning_parsers") or ()
    )


ELSEWHERE = (
    "tokenizer_mode", "skip_tokenizer_init", "seed", "model", "model_tag", "served_model_name",
    "config", "load_format", "hf_config_path", "tokenizer",
)  # fmt: skip
ALIASES = {"kv_cache_dtype": "cache_dtype"}
ALWAYS = (
    "architecture", "quantization", "dtype", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "block_size",
    "enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "enforce_eager",
    "tensor_parallel_size", "runner_type", "mamba_cache_mode", "mamba_ssm_cache_dtype",
)  # fmt: skip
"""Shown whether or not the line gives them."""


def resolved(config, args):
    """What vLLM made of the options: name: [asked, resolved]; `asked` null where the line is
    silent.
    """
    values = {"architecture": config.model_config.architecture}
    for field in dataclasses.fields(config):
        part = getattr(config, field.name, None)
        if dataclasses.is_dataclass(part) and part is not config.speculative_config:
            for inner in dataclasses.fields(part):
                values.setdefault(inner.name, getattr(part, inner.name, None))
    attention = getattr(config, "attention_config", None)
    values["attention_backend"] = getattr(attention, "backend", None)
    defaults = vars(arg_parser()[0].parse_args(["serve"]))
    shown = {}
    for name in (*ALWAYS, *sorted(vars(args))):
        key = ALIASES.get(name, name)
        if name in shown or key not in values or name in ELSEWHERE:
            continue
        given = vars(args).get(name)
        if isinstance(given, dict) or dataclasses.is_dataclass(given):
            continue
        asked = None if given is None or given == defaults.get(name) else plain(given)
        if asked is not None or name in ALWAYS:
            shown[name] = [asked, plain(values[key])]
    return shown


def plain(value):
    """A value as JSON: enumerations and dtypes by name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if hasattr(value, "name") and hasattr(value, "value"):
        return value.name
    return str(value).removeprefix("torch.")[:200]


def speculation(config):
    """The speculative method with its draft, as resolved."""
    spec = config.speculative_config
    if spec is None:
        return None
    return {
        "method": plain(spec.method),
        "tokens": spec.num_speculative_tokens,
        "model": plain(getattr(spec, "model", None)),
        "quantization": plain(getattr(spec, "quantization", None)),
    }


def on_meta():
    """The context in which modules are made without memory, wherever they ask for a device."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if "cuda" in str(kwargs.get("device", "")):
                kwargs["device"] = "meta"
            return function(*args, **kwargs)

    stack = contextlib.ExitStack()
    stack.enter_context(torch.device("meta"))
    stack.enter_context(OnMeta())
    return stack


def built(config):
    """The model, and its draft where that is a model too: [(name, module)]."""
    import torch
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader.utils import initialize_model

    pretending.BUILDING.append(True)
    for stream in ("Stream", "Event", "current_stream"):
        setattr(torch.cuda, stream, lambda *_, **__: MagicMock())
    parallel = config.parallel_config
    ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if getattr(parallel, "nnodes", 1) > 1:
        parallel.nnodes = 1  # else the ranks' processes talk to each other: here is the first alone
    if ranks > 1:
        _first_rank(ranks)
    store = f"file://{Path.cwd()}/.ranks"
    init_distributed_environment(ranks, 0, store, 0, "fake" if ranks > 1 else "gloo")
    initialize_model_parallel(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    torch.set_default_dtype(config.model_config.dtype)
    models = []
    with on_meta():
        models.append(("target", initialize_model(vllm_config=config)))
        spec = config.speculative_config
        if spec and getattr(spec, "draft_model_config", None):
            draft = {"model_config": spec.draft_model_config, "prefix": "drafter"}
            models.append(("draft", initialize_model(vllm_config=_of_draft(config, spec), **draft)))
    return models


def _first_rank(ranks):
    """Make groups of processes in which this one is the first and the others never answer."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state

    if queue := find("vllm.distributed.device_communicators.shm_broadcast:MessageQueue"):
        queue.create_from_process_group = staticmethod(MagicMock())
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    new_group = dist.new_group
    dist.new_group = lambda members=None, **about: new_group(
        members, **{**about, "backend": "fake"}
    )
    for name, value in (("_node_count", 1), ("in_the_same_node_as", [True] * ranks)):
        if hasattr(parallel_state, name):
            setattr(parallel_state, name, lambda *_, _value=value, **__: _value)


def _of_draft(config, spec):
    """The config with what the line sets for the draft alone (`_create_draft_vllm_config`)."""
    own = copy.copy(config)
    for option, part, name in (
        ("moe_backend", "kernel_config", "moe_backend"),
        ("attention_backend", "attention_config", "backend"),
    ):
        if (value := getattr(spec, option, None)) is not None and hasattr(own, part):
            changed = copy.copy(getattr(own, part))
            setattr(changed, name, value)
            setattr(own, part, changed)
    return own


KINDS = (
    ("vision", r"\b(visual|vision\w*|audio\w*|image|embed_(vision|audio)|m(m|ulti_modal)_\w*)\."),
    ("norms", r"norm|ln_\d"),
    ("shared expert", r"shared_expert"),
    ("router", r"\.(gate|router)\.(weight|bias|e_score\w*)$|e_score_correction"),
    ("experts", r"\.experts\."),
    ("latent", r"latent"),
    ("linear", r"linear_attn|mamba|\.mixer\.|conv1d|A_log|dt_bias|\.ssm"),
    ("attention", r"attn|attention"),
    ("embedding", r"embed_tokens|embedding|wte"),
    ("head", r"lm_head|output_layer"),
    ("mlp", r"mlp|feed_forward|ffn|fc\d"),
)  # fmt: skip
"""Classes of weights by vLLM's names, the first that fits."""


def weights(models):
    """Bytes by class and dtype, a tensor that two names share counted once.

    A prediction head's embedding and output layer are the model's own: vLLM shares them after
    loading (`_maybe_share_embeddings`, `_maybe_share_lm_head`).
    """
    size: collections.Counter = collections.Counter()
    seen, shared = set(), set()
    for owner, model in models:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            kind = next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")
            dtype = str(tensor.dtype).removeprefix("torch.")
            amount = tensor.numel() * tensor.element_size()
            if kind in ("embedding", "head"):
                place = (kind, name.rpartition(".")[2], tuple(tensor.shape), dtype)
                if owner == "draft" and place in shared:
                    continue
                shared.add(place)
            size[owner if owner == "draft" else kind, dtype] += amount
    return [{"kind": k, "dtype": d, "bytes": n} for (k, d), n in size.most_common() if n]


def backends(models, config):
    """Which code would run each kind of layer: [{kind, backend, layers}]."""
    count: collections.Counter = collections.Counter()
    for layer in config.compilation_config.static_forward_context.values():
        with contextlib.suppress(Exception):
            count["attention", layer.get_attn_backend().get_name()] += 1
    for _, model in models:
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if method is not None:
                kernel = _kernel(method) or _kernel(getattr(module, "scheme", None))
                count[type(module).__name__, f"{type(method).__name__}{kernel}"] += 1
    return [{"kind": k, "backend": b, "layers": n} for (k, b), n in count.most_common()]


def _kernel(method):
    """The kernel that a quantization method chose, in brackets; empty where it names none."""
    for name, value in sorted(vars(method).items()) if hasattr(method, "__dict__") else ():
        if name.endswith("backend") and value is not None and not isinstance(value, MagicMock):
            return f" ({plain(value)})"
        if name.endswith("kernel") and value is not None and not isinstance(value, MagicMock):
            return f" ({type(value).__name__})"
    return ""


def cached(config, sizes):
    """What vLLM makes of so many bytes of KV cache: groups, and for each size tokens and
    concurrency in the words of its log.
    """
    update = getattr(type(_platform()), "update_block_size_for_backend", None)
    if update:
        update(config)
    layers = config.compilation_config.static_forward_context
    specs = {}
    for name, layer in layers.items():
        spec = layer.get_kv_cache_spec(config) if hasattr(layer, "get_kv_cache_spec") else None
        if spec is not None:
            specs[name] = spec
    _choose_layout(config, layers, specs)
    answer = {"layers": _layers(specs), "block_size": config.cache_config.block_size, "sizes": []}
    for size in sizes:
        answer["sizes"].append({"bytes": size, **_capacity(config, specs, size, answer)})
    answer["least"] = _capacity(
        config, specs, 4 * sum(s.page_size_bytes for s in specs.values()), {}
    )
    return answer


def _platform():
    from vllm.platforms import current_platform

    return current_platform


def _layers(specs):
    count = collections.Counter(
        (
            type(spec).__name__,
            spec.block_size,
            spec.page_size_bytes,
            getattr(spec, "sliding_window", None),
        )
        for spec in specs.values()
    )
    return [
        {"spec": s, "block_size": b, "page_bytes": p, "window": w, "layers": n}
        for (s, b, p, w), n in count.items()
    ]


def _choose_layout(config, layers, specs):
    """Since 0.29: the layout of the cache is agreed upon before its groups are made."""
    module = "vllm.v1.attention.backends.utils"
    supported = find(f"{module}:get_supported_kv_cache_layouts")
    resolve = find(f"{module}:resolve_kv_cache_layout")
    if supported and resolve:
        used = tuple(
            {la.get_attn_backend() for la in layers.values() if hasattr(la, "get_attn_backend")}
        )
        names = [getattr(layout, "name", layout) for layout in supported(used)]
        resolve(config, [names], list(specs.values()))


SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")
TIMES = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


def _capacity(config, specs, size, about):
    """Tokens and concurrency of one size, or the refusal."""
    from vllm.v1.core import kv_cache_utils as kv

    before = len(LOG.lines)
    try:
        got = kv.get_kv_cache_configs(config, [dict(specs)], [size])
    except ValueError as error:
        return {"refused": words(error)}
    whole = got[0]
    about["groups"] = [_group(config, group) for group in whole.kv_cache_groups]
    about["block_bytes"] = _block_bytes(kv, config, whole)
    answer = {"blocks": whole.num_blocks, "context": config.model_config.max_model_len}
    if update := getattr(kv, "update_kv_cache_capacity", None):
        generate = getattr(kv, "generate_scheduler_kv_cache_config", None)
        scheduler = generate(got) if generate else whole
        config.cache_config.num_gpu_blocks = scheduler.num_blocks
        update(config, scheduler)
        answer["tokens"] = getattr(config.cache_config, "kv_cache_size_tokens", None)
        answer["concurrency"] = getattr(config.cache_config, "kv_cache_max_concurrency", None)
    said = "\n".join(LOG.lines[before:])
    if answer.get("tokens") is None and (match := SIZE.search(said)):
        answer["tokens"] = int(match[1].replace(",", ""))
    if answer.get("concurrency") is None and (match := TIMES.search(said)):
        answer["concurrency"] = float(match[2])
    return answer


def _block_bytes(kv, config, whole):
    """Bytes of one block of the pool. Tensors may be views of one another, so where vLLM has a
    function for it their sum does not count.
    """
    if per_block := getattr(kv, "_pool_bytes_per_block", None):
        with contextlib.suppress(AttributeError, TypeError):
            return per_block(config, whole.kv_cache_groups)
    held = sum(tensor.size for tensor in whole.kv_cache_tensors)
    return held // whole.num_blocks if whole.num_blocks else None


def _group(config, group):
    """One group of layers that share a block table, and the blocks that one sequence of full length
    takes of it.
    """
    spec = group.kv_cache_spec
    inner = [spec, *getattr(spec, "kv_cache_specs", {}).values()]
    of_window = ("sliding_window", "attention_chunk_size")
    windows = (getattr(one, name, None) for one in inner for name in of_window)
    return {
        "spec": type(inner[-1]).__name__,
        "layers": len(group.layer_names),
        "block_size": spec.block_size,
        "window": next((window for window in windows if window), None),
        "blocks": -(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes),
    }


def admitted(config, available):
    """What vLLM asks of the memory before it loads anything.

    Raises:
        ValueError: it refuses to start.
    """
    request = find("vllm.v1.worker.utils:request_memory")
    snapshot = types.SimpleNamespace(
        total_memory=TOTAL[0], free_memory=available, device_="cuda:0", device="cuda:0"
    )
    if request is None:
        return {"requested_bytes": None, "unknown": "this release has the check inside its worker"}
    return {"requested_bytes": int(request(snapshot, config.cache_config))}


# ---- one question


class Kept(logging.Handler):
    """vLLM's log, to quote from."""

    def __init__(self):
        super().__init__()
        self.lines, self.warnings, self.choices = [], [], []

    def emit(self, record):
        text = record.getMessage()[:500]
        if NO_TOKENIZER in text:
            return
        self.lines.append(text)
        if record.levelno >= logging.WARNING and text not in self.warnings:
            self.warnings.append(text)
        elif re.search(r"\b[Uu]sing\b.*\b(backend|kernel)", text) and text not in self.choices:
            self.choices.append(text)


LOG = Kept()


def words(error):
    """The message of an error in vLLM's own words, without what pydantic puts around it."""
    text = str(error)
    if hasattr(error, "errors") and type(error).__name__ == "ValidationError":
        with contextlib.suppress(Exception):
            text = "; ".join(_detail(item) for item in error.errors())
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    return " ".join((text or type(error).__name__).replace(str(Path.cwd()) + "/", "").split())[
        :WORDS
    ]


def _detail(item):
    where = ".".join(str(part) for part in item.get("loc", ()))
    text = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{where}: {text}" if where and item.get("type") != "value_error" else text


def answer(question):
    """Answer one question as far as its depth, or to the first refusal."""
    depth = DEPTHS.index(question.get("depth", "config"))
    result = {"id": question.get("id"), "depth": "parse", "accepted": True, "left_out": []}
    logging.getLogger("vllm").addHandler(LOG)
    os.environ.update(question.get("env", {}))
    try:
        args = parsed([*question["words"], *OURS], result["left_out"])
        if depth:
            _deeper(question, depth, args, result)
    except (AttributeError, TypeError, IndexError, ImportError) as error:
        # No decision of vLLM's, such as a Transformers that is newer than the release: but where
        # vLLM itself raises it, as the check of arguments does.
        own = meant(error)
        said = words(error) if own else f"{type(error).__name__}: {words(error)}"
        result.update({"accepted": False, "refused" if own else "failed": said})
        result.update(by=raised(error))
    except (Refused, ValueError, KeyError, AssertionError, RuntimeError, OSError) as error:
        # A model class that can't be imported here is no decision of vLLM's either.
        kind = "failed" if "failed to be inspected" in str(error) else "refused"
        result.update({"accepted": False, kind: words(error), "by": raised(error)})
    except MemoryError:
        result.update(accepted=False, failed="out of the memory that a question may take")
    except Exception as error:  # noqa: BLE001 - such as a library's own kind of error
        result.update(accepted=False, failed=f"{type(error).__name__}: {words(error)}")
        result.update(by=raised(error))
    result.update(warnings=LOG.warnings[:30], choices=LOG.choices[:30])
    return result


def raised(error):
    """Where an error was raised: kind, file and function of the innermost frame in vLLM, and the
    package of the innermost frame of all.
    """
    root = error
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        with contextlib.suppress(Exception):
            root = error.errors()[0]["ctx"]["error"]
    frames = traceback.extract_tb(root.__traceback__) or traceback.extract_tb(error.__traceback__)
    own = [f for f in traceback.extract_tb(error.__traceback__) if "/vllm/" in f.filename]
    place = f"{own[-1].filename.split('/vllm/')[-1]}:{own[-1].name}" if own else ""
    package = re.search(
        r"(?:site-packages|releases/[^/]+)/(\w+)", frames[-1].filename if frames else ""
    )
    return {
        "error": type(root).__name__, "place": place, "package": package[1] if package else "",
    }  # fmt: skip


def meant(error):
    """Whether vLLM raises an error on purpose: by a `raise` of its own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = bool(frames) and "/vllm/" in frames[-1].filename
    return own and str(frames[-1].line).startswith("raise") and not isinstance(error, ImportError)


def _deeper(question, depth, args, result):
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    result["depth"] = "config"
    if not {"--tool-parser-plugin", "--reasoning-parser-plugin"} & set(result["left_out"]):
        check_parsers(args)
    engine = AsyncEngineArgs.from_cli_args(args)
    config = engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    result["resolved"] = resolved(config, args)
    result["speculation"] = speculation(config)
    available = question.get("available_bytes")
    if available is not None:
        try:
            result["admission"] = admitted(config, int(available))
        except ValueError as error:
            result["admission"] = {"refused": words(error)}
            result.update(accepted=False, refused=words(error), by=raised(error))
    if depth < DEPTHS.index("model"):
        return
    result["depth"] = "model"
    with set_current_vllm_config(config):
        models = built(config)
        result["weights"] = weights(models)
        result["backends"] = backends(models, config)
        if depth >= DEPTHS.index("cache"):
            result["depth"] = "cache"
            result["cache"] = cached(config, _sizes(question, config, result))
    if available is not None:
        result["depth"] = "admission"


def _sizes(question, config, result):
    """The sizes of KV cache to ask about: those given, the line's own, or what is left of the
    fraction after the weights and what else is reserved.
    """
    given = getattr(config.cache_config, "kv_cache_memory_bytes", None)
    if sizes := question.get("kv_bytes"):
        return [int(size) for size in sizes]
    if given:
        return [int(given)]
    loaded = sum(part["bytes"] for part in result["weights"])
    requested = TOTAL[0] * config.cache_config.gpu_memory_utilization
    return [int(requested - loaded - other) for other in question.get("reserved_bytes", [0])]
