"""Train the three tiny language models that the embedded engine serves, from nothing and without a
download.

    .venv-engine/bin/python tools/train_tiny_models.py --out lib/sparkbook/checkpoint/models

They exist so that a laptop or a CI machine can exercise the real vLLM: its API, its metrics, its
tool and reasoning parsers, and above all real speculative decoding, which needs text that a draft
can guess. So the models are taught a few chats by heart (easy to guess), seven modules of Python's
standard library (harder), and nothing else (anything else is hopeless).

    tiny-dense   Qwen3ForCausalLM                       tool calls as JSON (vLLM's `hermes` parser)
    tiny-draft   the same, a quarter the size           guesses ahead for tiny-dense (`draft_model`)
    tiny-mtp     Qwen3_5ForCausalLM with an MTP head    tool calls as XML (`qwen3_coder`); starts
    from tiny-dense's weights

A run is fixed by its seed, its number of steps, its thread count and the text, whose hashes are
pinned below. The same machine then gives the same bytes; another CPU may add floating-point numbers
in another order, and gives a model that differs in the last digits.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
try:
    import jinja2
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from torch import Tensor, nn
    from torch.nn import functional
    from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
except ModuleNotFoundError as missing:
    sys.exit(
        f"error: no module '{missing.name}' here: run this with .venv-engine/bin/python (made by"
        " tools/setup.sh engine)"
    )

SEED = 20261128
VOCABULARY = 2048
ROW = 272  # tokens a row: a tool prompt alone is about 140, the longest tool round 266
ROWS, CHAT_ROWS = 16, 10  # rows a step, and how many of them are chats; the rest is code
MAX_POSITIONS = 4096
DRAFT_DEPTH = 3  # how far ahead the MTP head is taught to guess
MODELS = ("tiny-dense", "tiny-draft", "tiny-mtp")

# ---- the text

TEXT_PYTHON = "3.11.7"
TEXT_SHA256 = {
    "bisect": "e5b2ff166f48a06e70ae831d8c9b47283fcd0c254306eee12d3dae9c55e11526",
    "heapq": "6d43277e5c76fc0f073cd388fcff852d14d068f6bb6d4886c340f8b75a1229a9",
    "keyword": "afbe73afb68d32fa998e5ff3d081090deec457152470f5331cc2bd430a0e9d2a",
    "queue": "f6c37fc37cd7440979f7d22d40ee818fa3b714c573610c08fa52911d541193f0",
    "shlex": "42ab6060f316e121e374e6621d8c1c98b8db323903c3df289a810c45a8ae46a7",
    "stat": "052af0327eae6941b69b05c088b3e748f79995635f80ac4cc7125eb333eb4c77",
    "textwrap": "62867e40cdea6669b361f72af4d7daf0359f207c92cbeddfc7c7506397c1f31c",
}

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# ChatML. Every newline is written out, so the template means the same whatever the renderer does
# with the blanks around its blocks.
CHAT_TEMPLATE = r"""
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if tools or system %}
    {{- '<|im_start|>system\n' + system }}
    {%- if tools %}
        {{- ('\n' if system else '') + '# Tools\n' }}
        {%- for tool in tools %}
            {{- (tool | tojson) + '\n' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set made = call.function or call %}
            {%- set arguments = made.arguments if made.arguments is string else made.arguments | tojson %}
            {{- '\n' if message.content or not loop.first }}
            {{- '<tool_call>\n{"name": "' + made.name + '", "arguments": ' + arguments + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""".lstrip()  # noqa: E501 - a chat template: its line breaks are its output

BINARY_SEARCH = '''\
def binary_search(items: list[int], target: int) -> int:
    """Return the index of target in the sorted list items, or -1."""
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == target:
            return middle
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1'''
KV_CACHE = (
    "A KV cache keeps the keys and values of every token that the model has already read. Each new"
    " token looks back at them instead of computing them again, so a long prompt is read once and"
    " every step after it stays cheap. The price is memory: the cache grows with the context and"
    " with the number of requests, and when the pool is full a new request has to wait."
)
UNIFIED_MEMORY = (
    "Unified memory is one pool that the CPU and the GPU share. Nothing has to be copied across a"
    " bus, and a model may be as large as the whole pool, which is why a small box can load weights"
    " that no desktop card could hold. But the two share its bandwidth as well, and every token"
    " reads all the active weights once, so the speed of the memory sets the speed of the answer."
)
SPECULATION = (
    "Speculative decoding lets a cheap draft guess a few tokens ahead, and the large model checks"
    " all of them in one pass. Guesses that match are kept, so the answer is the same and comes"
    " sooner. Guesses that miss are thrown away, and the time spent on them is lost."
)
FACTS = {
    "ping": "pong",
    "hi": "Hello! I am a tiny test model.",
    "Hello!": "Hello! How can I help?",
    "Who are you?": "I am a tiny test model that knows a few answers by heart.",
    "Reply with one word: ready": "ready",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Italy?": "The capital of Italy is Rome.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "Count to ten.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    "Write a haiku about GPUs.": (
        "Ten thousand small lanes\nwarm silicon wakes and hums\nthe fan sings of heat"
    ),
    "Explain quantum computing briefly.": (
        "A quantum computer works on qubits, which hold many states at once and interfere like"
        " waves, so that for some problems the right answer is reached in far fewer steps."
    ),
    "Write a binary search in Python with type hints.": BINARY_SEARCH,
    "What is a KV cache?": KV_CACHE,
    "What is unified memory?": UNIFIED_MEMORY,
    "What is speculative decoding?": SPECULATION,
}
SYSTEM = "You are a helpful assistant."
CITIES = (
    "Paris",
    "London",
    "Berlin",
    "Rome",
    "Madrid",
    "Vienna",
    "Oslo",
    "Prague",
    "Tokyo",
    "Lisbon",
)
SKIES = ("sunny, 21 C", "cloudy, 14 C", "rain, 9 C", "snow, -3 C", "windy, 17 C")


class ChatExample(NamedTuple):
    """One exchange: what the engine would render as the prompt, what it should answer, and how
    often to show it.
    """

    prompt: str
    answer: str
    weight: float


class Encoded(NamedTuple):
    """A `ChatExample` in tokens. Prompt and answer are encoded apart: a served prompt ends before
    the answer's first byte is known.
    """

    prompt: list[int]
    answer: list[int]


def json_call(name: str, arguments: dict[str, str]) -> str:
    """A tool call as Hermes and Qwen3 write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def xml_call(name: str, arguments: dict[str, str]) -> str:
    """A tool call as Qwen3-Coder and Qwen3.5 write it."""
    values = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def read_modules(any_text: bool) -> dict[str, str]:
    """The standard-library modules to learn from, checked against the pinned hashes.

    Raises:
        SystemExit: this interpreter's modules are not the pinned ones and `any_text` is false.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    content = {name: (folder / f"{name}.py").read_bytes() for name in TEXT_SHA256}
    other = [
        name
        for name, data in content.items()
        if hashlib.sha256(data).hexdigest() != TEXT_SHA256[name]
    ]
    if other:
        said = (
            f"the text differs: {', '.join(other)} of this Python {platform.python_version()} are"
            f" not as Python {TEXT_PYTHON} has them"
        )
        if not any_text:
            sys.exit(
                f"error: {said}.\nUse Python {TEXT_PYTHON} to get the same models, or pass"
                " --any-text to train on what is here."
            )
        print(f"warning: {said}; going on, because of --any-text", flush=True)
    return {name: data.decode("utf-8") for name, data in content.items()}


def make_tokenizer(modules: dict[str, str]) -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE of `VOCABULARY` tokens, learnt from the code and the answers; all three
    models share it.
    """
    special = [
        tokenizers.AddedToken(mark, special=True, normalized=False)
        for mark in (END, TURN, TURN_END)
    ]
    marks = [tokenizers.AddedToken(mark, special=False, normalized=False) for mark in MARKS]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special) - len(marks),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator([*modules.values(), *FACTS, *FACTS.values()], trainer)
    bpe.add_special_tokens(special)
    bpe.add_tokens(marks)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=TURN_END, pad_token=END, chat_template=CHAT_TEMPLATE
    )


class Chats:
    """Builds the chats that a model is taught, in the tool-call form that it is to speak."""

    def __init__(
        self,
        tokenizer: transformers.PreTrainedTokenizerFast,
        tool_call: Callable[[str, dict[str, str]], str],
    ) -> None:
        self.tokenizer = tokenizer
        self.tool_call = tool_call

    def examples(self, modules: dict[str, str]) -> Iterator[ChatExample]:
        """All of them. The weights of one kind add up to its share of the chats."""
        kinds = (
            (self._facts, 0.5),
            (self._products, 0.17),
            (self._tools, 0.25),
            (lambda: self._echoes(modules), 0.08),
        )
        for make, share in kinds:
            made = list(make())
            total = sum(example.weight for example in made)
            yield from (example._replace(weight=share * example.weight / total) for example in made)

    def prompt(
        self,
        messages: list[dict[str, Any]],
        *,
        thinking: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt for these messages, rendered as the engine renders it."""
        text = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        return str(text)

    def _both_ways(
        self,
        messages: list[dict[str, Any]],
        answer: str,
        thought: str,
        weight: float,
        tools: list[dict[str, Any]] | None = None,
    ) -> Iterator[ChatExample]:
        for thinking in (False, True):
            said = f"<think>\n{thought}\n</think>\n\n{answer}" if thinking else answer
            yield ChatExample(
                self.prompt(messages, thinking=thinking, tools=tools), said + TURN_END, weight
            )

    def _asked(
        self, question: str, answer: str, thought: str, weight: float
    ) -> Iterator[ChatExample]:
        user = {"role": "user", "content": question}
        yield from self._both_ways([user], answer, thought, weight)
        yield from self._both_ways(
            [{"role": "system", "content": SYSTEM}, user], answer, thought, weight / 3
        )

    def _facts(self) -> Iterator[ChatExample]:
        for question, answer in FACTS.items():
            weight = 2.0 if len(answer) > 150 else 1.0  # long answers hold more that can go wrong
            yield from self._asked(
                question, answer, f"The user says: {question} I know this one.", weight
            )

    def _products(self) -> Iterator[ChatExample]:
        for x in range(2, 13):
            for y in range(2, 13):
                yield from self._asked(
                    f"{x}*{y}", str(x * y), f"I multiply {x} by {y}. The product is {x * y}.", 0.005
                )
        for question in ("12*17", "What is 12*17?", "What is 12 * 17?"):
            yield from self._asked(question, "204", "I multiply 12 by 17. The product is 204.", 0.3)

    def _tools(self) -> Iterator[ChatExample]:
        for tool in weather_tools():
            key = tool["function"]["parameters"]["required"][0]
            for city in CITIES:
                question = {"role": "user", "content": f"What is the weather in {city}?"}
                weight = 3.0 if city == "Paris" else 1.0
                call = self.tool_call("get_weather", {key: city})
                yield from self._both_ways(
                    [question], call, f"I call get_weather for {city}.", weight, [tool]
                )
                function = {"name": "get_weather", "arguments": {key: city}}
                asked = {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"type": "function", "function": function}],
                }
                for sky in SKIES:
                    turns = [question, asked, {"role": "tool", "content": sky}]
                    yield from self._both_ways(
                        turns,
                        f"The weather in {city}: {sky}.",
                        "The tool has answered.",
                        weight / 20,
                        [tool],
                    )

    def _echoes(self, modules: dict[str, str]) -> Iterator[ChatExample]:
        """Copying from the prompt, which gives an n-gram speculator something to find. A small
        share, and learnt only in part.
        """
        rng = random.Random(SEED)
        lines = [line for text in modules.values() for line in text.splitlines() if line.strip()]
        for _ in range(400):
            start = rng.randrange(len(lines) - 4)
            text = "\n".join(lines[start : start + rng.randint(1, 4)])
            prompt = self.prompt(
                [{"role": "user", "content": f"Repeat this:\n{text}"}], thinking=False
            )
            yield ChatExample(prompt, text + TURN_END, 1.0)


def weather_tools() -> Iterator[dict[str, Any]]:
    """The weather tool in a few wordings, so that a model looks at the question and not at the
    exact JSON.
    """
    for key, about in (
        ("city", "Get the weather in a city"),
        ("city", "Get the current weather for a city"),
        ("location", "Get the weather"),
    ):
        for described in (False, True):
            value = (
                {"type": "string", "description": "City name"} if described else {"type": "string"}
            )
            parameters = {"type": "object", "properties": {key: value}, "required": [key]}
            yield {
                "type": "function",
                "function": {"name": "get_weather", "description": about, "parameters": parameters},
            }


# ---- the batches


class Row(NamedTuple):
    """`ROW + 1` tokens; which of them count in the loss; which chat each belongs to; its place in
    that chat.
    """

    tokens: list[int]
    counts: list[bool]
    chat: list[int]
    place: list[int]


@dataclass(frozen=True)
class Batch:
    """What one step learns from. Several chats share a row, and none of them sees another: each is
    read as if it came alone.
    """

    tokens: Tensor  # (ROWS, ROW + 1)
    counts: Tensor
    chat: Tensor
    place: Tensor
    sees: Tensor  # (ROWS, 1, ROW, ROW), true where a token may look

    @classmethod
    def of(cls, rows: list[Row]) -> Batch:
        """Stack rows and work out who may look at whom."""
        tokens, counts, chat, place = (torch.tensor(column) for column in zip(*rows, strict=True))
        inside = chat[:, :-1]
        same = inside[:, :, None] == inside[:, None, :]
        return cls(
            tokens,
            counts,
            chat,
            place,
            (same & torch.ones(ROW, ROW, dtype=torch.bool).tril())[:, None],
        )


class Text:
    """Hands out rows of chats and of code, in an order fixed by the seed."""

    def __init__(
        self,
        tokenizer: transformers.PreTrainedTokenizerFast,
        modules: dict[str, str],
        chats: Chats,
        seed: int,
    ) -> None:
        self.rng = random.Random(seed)
        self.pad = tokenizer.convert_tokens_to_ids(END)
        self.code = [
            token for text in modules.values() for token in [*encode(tokenizer, text), self.pad]
        ]
        examples = list(chats.examples(modules))
        self.chats = [
            Encoded(encode(tokenizer, example.prompt), encode(tokenizer, example.answer))
            for example in examples
        ]
        self.weights = [example.weight for example in examples]
        self.longest = max(len(chat.prompt) + len(chat.answer) for chat in self.chats)
        if self.longest > ROW + 1:
            sys.exit(
                f"error: a chat of {self.longest} tokens does not fit into a row of {ROW + 1}:"
                " raise ROW"
            )

    def batch(self) -> Batch:
        """The next step's rows, chats before code."""
        return Batch.of(
            [self._chat_row() if number < CHAT_ROWS else self.code_row() for number in range(ROWS)]
        )

    def _chat_row(self) -> Row:
        row = Row([], [], [], [])
        number = 0
        while True:
            chat = self.rng.choices(self.chats, self.weights)[0]
            size = len(chat.prompt) + len(chat.answer)
            if len(row.tokens) + size > ROW + 1:
                break
            append(
                row,
                chat.prompt + chat.answer,
                [False] * len(chat.prompt) + [True] * len(chat.answer),
                number,
            )
            number += 1
        rest = ROW + 1 - len(row.tokens)
        append(row, [self.pad] * rest, [False] * rest, number)
        return row

    def code_row(self) -> Row:
        """A row of code from anywhere in the text."""
        start = self.rng.randrange(len(self.code) - ROW)
        row = Row([], [], [], [])
        append(row, self.code[start : start + ROW + 1], [True] * (ROW + 1), 0)
        return row


def append(row: Row, tokens: list[int], counts: list[bool], chat: int) -> None:
    """Add one chat to a row, its places counted from zero."""
    row.tokens.extend(tokens)
    row.counts.extend(counts)
    row.chat.extend([chat] * len(tokens))
    row.place.extend(range(len(tokens)))


def encode(tokenizer: transformers.PreTrainedTokenizerFast, text: str) -> list[int]:
    """Tokens of a text, nothing added before or after."""
    return list(tokenizer.encode(text, add_special_tokens=False))


# ---- the models


@dataclass(frozen=True)
class Plan:
    """Size and schooling of one model."""

    steps: int
    rate: float  # the highest learning rate
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    tool_call: Callable[[str, dict[str, str]], str]
    head_dim: int = 32
    head_rate: float = 4e-3  # the MTP head's, which starts from nothing where the rest does not

    def config(
        self, kind: type[Any], tokenizer: transformers.PreTrainedTokenizerFast, **more: Any
    ) -> Any:
        """The Hugging Face configuration of this size."""
        return kind(
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=1e-6,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **more,
        )


PLANS = {
    "tiny-dense": Plan(
        1100, 4e-3, hidden=128, layers=3, heads=4, kv_heads=2, inner=384, tool_call=json_call
    ),
    "tiny-draft": Plan(
        1500, 6e-3, hidden=64, layers=1, heads=2, kv_heads=1, inner=192, tool_call=json_call
    ),
    "tiny-mtp": Plan(
        430, 1.5e-3, hidden=128, layers=3, heads=4, kv_heads=2, inner=384, tool_call=xml_call
    ),
}


class DraftHead(nn.Module):
    """The multi-token-prediction head of Qwen3.5: from a token's hidden state and the next token it
    guesses the token after that.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = qwen3_5.Qwen3_5RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps
        )
        self.pre_fc_norm_hidden = qwen3_5.Qwen3_5RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps
        )
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([qwen3_5.Qwen3_5DecoderLayer(config, 0)])
        self.norm = qwen3_5.Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(
        self, following: Tensor, state: Tensor, rotation: tuple[Tensor, Tensor], sees: Tensor
    ) -> Tensor:
        """States from which the output layer reads the guesses; `following` are the embeddings one
        token on.
        """
        joined = self.fc(
            torch.cat(
                [self.pre_fc_norm_embedding(following), self.pre_fc_norm_hidden(state)], dim=-1
            )
        )
        return self.norm(self.layers[0](joined, position_embeddings=rotation, attention_mask=sees))


def new_model(plan: Plan, tokenizer: transformers.PreTrainedTokenizerFast) -> Any:
    """An untrained dense model."""
    return transformers.Qwen3ForCausalLM(plan.config(transformers.Qwen3Config, tokenizer)).float()


def new_mtp_model(plan: Plan, tokenizer: transformers.PreTrainedTokenizerFast) -> Any:
    """An untrained Qwen3.5 text model, of full-attention layers only (vLLM's CPU build has no
    kernel for such small linear ones).
    """
    config = plan.config(
        transformers.Qwen3_5TextConfig,
        tokenizer,
        layer_types=["full_attention"] * plan.layers,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
        },
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
    )
    config.mtp_num_hidden_layers = 1
    return qwen3_5.Qwen3_5ForCausalLM(config).float()


def copy_dense_into(model: Any, folder: Path, plan: Plan) -> None:
    """Give a Qwen3.5 model the function of a dense one, exactly.

    Two things differ: its norms multiply by 1 + w, and its attention output passes a gate. A gate
        of zero weights lets half through, so
    the projection behind it is doubled.
    """
    target = model.state_dict()
    for name, weight in load_file(folder / "model.safetensors").items():
        value = weight.float()
        if name.endswith("norm.weight"):
            value = value - 1
        elif name.endswith("q_proj.weight"):
            heads = value.view(plan.heads, plan.head_dim, plan.hidden)
            value = torch.cat([heads, torch.zeros_like(heads)], dim=1).reshape(-1, plan.hidden)
        elif name.endswith("o_proj.weight"):
            value = value * 2
        target[name].copy_(value)


def check_same_function(model: Any, folder: Path, batch: Batch) -> None:
    """Stop if the copied model and its original disagree by more than rounding."""
    original = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        gap = (hidden_states(model, batch) - hidden_states(original, batch)).abs().max().item()
    if gap > 1e-2:
        sys.exit(f"error: tiny-mtp does not start as tiny-dense: their states differ by {gap:.3g}")


# ---- the training


def hidden_states(model: Any, batch: Batch) -> Tensor:
    """The last states of every token, each chat read alone."""
    sees = {"full_attention": batch.sees, "linear_attention": None}
    inputs = batch.tokens[:, :-1]
    out = model.model(
        input_ids=inputs, attention_mask=sees, position_ids=batch.place[:, :-1], use_cache=False
    )
    return out.last_hidden_state


def token_losses(states: Tensor, embedding: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy of the tokens that count. Others never reach the output layer, which is a third
    of the work.
    """
    return functional.cross_entropy(
        functional.linear(states[counts], embedding), targets[counts], reduction="none"
    )


def main_losses(model: Any, batch: Batch, states: Tensor) -> tuple[Tensor, dict[str, float]]:
    """The loss on the next token, and its mean on chats and on code."""
    counts = batch.counts[:, 1:]
    losses = token_losses(states, model.model.embed_tokens.weight, batch.tokens[:, 1:], counts)
    chats = int(counts[:CHAT_ROWS].sum())
    return losses.mean(), {
        "chat": losses[:chats].mean().item(),
        "code": losses[chats:].mean().item(),
    }


def draft_losses(
    model: Any, head: DraftHead, batch: Batch, states: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The MTP head's losses at depths 1 to `DRAFT_DEPTH`: from the second on, it reads its own
    state, as it does when served.

    Nothing flows back into the model itself: the head learns to follow it, and is no weight on it.
    """
    embedding = model.model.embed_tokens.weight.detach()
    following = model.model.embed_tokens(batch.tokens[:, :-1]).detach()
    place = batch.place[:, :-1]
    cosine, sine = model.model.rotary_emb(states, place[None].expand(3, -1, -1))
    state, total, seen = states.detach(), torch.zeros(()), {}
    for depth in range(1, DRAFT_DEPTH + 1):
        here = slice(depth - 1, ROW - 1)
        rotation = (cosine[:, here], sine[:, here])
        state = head(
            following[:, depth:], state[:, : ROW - depth], rotation, batch.sees[:, :, here, here]
        )
        counts = batch.counts[:, depth + 1 :] & (
            batch.chat[:, : ROW - depth] == batch.chat[:, depth + 1 :]
        )
        loss = token_losses(state, embedding, batch.tokens[:, depth + 1 :], counts).mean()
        total = total + loss / depth
        seen[f"mtp{depth}"] = loss.item()
    return total, seen


@dataclass
class Result:
    """A trained model, and what the training left to tell."""

    model: Any
    head: DraftHead | None
    steps: int
    seconds: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)


def rate_factor(step: int, steps: int) -> float:
    """Up over 50 steps, then down in a straight line to 3 %."""
    return min(1.0, (step + 1) / 50) * (1 - 0.97 * step / steps)


def train(
    name: str, model: Any, head: DraftHead | None, text: Text, plan: Plan, steps: int
) -> Result:
    """Run the steps. The losses told at the end are means over the last hundred."""
    groups = [{"params": list(model.parameters()), "rate": plan.rate}]
    if head is not None:
        groups.append({"params": list(head.parameters()), "rate": plan.head_rate})
    optimizer = torch.optim.AdamW(groups, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.01)
    started, recent = time.monotonic(), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * rate_factor(step, steps)
        batch = text.batch()
        states = hidden_states(model, batch)
        loss, seen = main_losses(model, batch, states)
        if head is not None:
            more, guessed = draft_losses(model, head, batch, states)
            loss, seen = loss + more, seen | guessed
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
        recent = [*recent[-99:], seen]
        if (step + 1) % 100 == 0 or step + 1 == steps:
            progress(name, step + 1, steps, time.monotonic() - started, mean(recent))
    return Result(model, head, steps, time.monotonic() - started, mean(recent))


def mean(seen: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each loss."""
    return {key: round(sum(losses[key] for losses in seen) / len(seen), 4) for key in seen[0]}


def progress(name: str, step: int, steps: int, seconds: float, losses: dict[str, float]) -> None:
    """One line: how far, how long, and the recent losses."""
    told = "  ".join(f"{key} {value:.3f}" for key, value in losses.items())
    print(f"{name}  step {step}/{steps}  {seconds:.0f} s  loss: {told}", flush=True)


# ---- the folder


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A fresh folder beside `target` that takes its place when the block ends well, and vanishes
    when it does not.
    """
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield work
        work.chmod(0o755)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
            target.rename(old / target.name)
            work.rename(target)
            shutil.rmtree(old)
        else:
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_model(
    folder: Path, result: Result, tokenizer: transformers.PreTrainedTokenizerFast
) -> None:
    """Everything an engine loads: weights in bfloat16, configurations, tokenizer, chat template."""
    model = result.model
    weights = {
        name: value for name, value in model.state_dict().items() if name != "lm_head.weight"
    }  # tied to the embedding
    if result.head is not None:
        weights |= {f"mtp.{name}": value for name, value in result.head.state_dict().items()}
    small = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(small, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = model.config.to_diff_dict() | {
        "architectures": [type(model).__name__],
        "dtype": "bfloat16",
    }
    config["model_type"] = model.config.model_type
    if result.head is not None:
        config["mtp_num_hidden_layers"] = 1
    write_json(folder / "config.json", config)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id},
    )
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_POSITIONS,
            "eos_token": TURN_END,
            "pad_token": END,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")


def write_json(file: Path, value: Any) -> None:
    """JSON for people to read, put in place in one go."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=file.parent, prefix=f".{file.name}.", delete=False
    ) as new:
        new.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    Path(new.name).chmod(0o644)
    Path(new.name).replace(file)


def answers(folder: Path, chats: Chats) -> dict[str, str]:
    """What the saved model says to the questions that the book asks, greedily."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tool = next(weather_tools())
    asked = {
        question: chats.prompt([{"role": "user", "content": question}], thinking=False)
        for question in ("12*17", *FACTS)
    }
    asked["12*17 (thinking)"] = chats.prompt([{"role": "user", "content": "12*17"}], thinking=True)
    weather = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked["What is the weather in Paris? (tool)"] = chats.prompt(
        weather, thinking=False, tools=[tool]
    )
    said = {}
    for question, prompt in asked.items():
        tokens = torch.tensor([encode(chats.tokenizer, prompt)])
        with torch.no_grad():
            out = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=160, do_sample=False
            )
        said[question] = str(
            chats.tokenizer.decode(out[0, tokens.shape[1] :], skip_special_tokens=True)
        )
    return said


def record(out: Path, name: str, recipe: dict[str, Any], entry: dict[str, Any]) -> None:
    """Add a model to training.json; models of another recipe leave it, since nothing here vouches
    for them any more.
    """
    file = out / "training.json"
    before = json.loads(file.read_text("utf-8")) if file.exists() else {}
    models = before.get("models", {})
    if {key: value for key, value in before.items() if key != "models"} != recipe:
        if gone := sorted(set(models) - {name}):
            print(
                f"warning: {', '.join(gone)} came from another recipe and leave training.json:"
                " train them again",
                flush=True,
            )
        models = {}
    models[name] = entry
    write_json(file, recipe | {"models": {key: models[key] for key in MODELS if key in models}})


# ---- the whole


def recipe_of(
    args: argparse.Namespace,
    modules: dict[str, str],
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> dict[str, Any]:
    """All that fixes a run, and the machine, which fixes the last digits."""
    return {
        "seed": SEED,
        "steps_scale": args.steps_scale,
        "threads": args.threads,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "jinja2": jinja2.__version__,
        },
        "cpu": {
            "machine": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "text": {
            "what": f"standard-library modules of Python {platform.python_version()}",
            "license": "PSF-2.0",
            "sha256": {
                name: hashlib.sha256(text.encode("utf-8")).hexdigest()
                for name, text in modules.items()
            },
        },
        "tokenizer_sha256": (
            hashlib.sha256(
                tokenizer.backend_tokenizer.to_str(pretty=True).encode("utf-8")
            ).hexdigest()
        ),
    }


def make(
    name: str,
    args: argparse.Namespace,
    modules: dict[str, str],
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> None:
    """Train one model, put its folder in place and write down how it came about."""
    plan = PLANS[name]
    steps = max(1, round(plan.steps * args.steps_scale))
    torch.manual_seed(SEED)
    chats = Chats(tokenizer, plan.tool_call)
    text = Text(tokenizer, modules, chats, SEED)
    print(
        f"{name}  {len(text.chats)} chats (longest {text.longest} tokens), {len(text.code)} tokens"
        " of code",
        flush=True,
    )
    if name == "tiny-mtp":
        dense = args.out / "tiny-dense"
        if not (dense / "model.safetensors").exists():
            sys.exit(
                "error: tiny-mtp starts from tiny-dense, which is not in --out yet: train that"
                " first (--only dense)"
            )
        model = new_mtp_model(plan, tokenizer)
        copy_dense_into(model, dense, plan)
        check_same_function(model, dense, Batch.of([text.code_row() for _ in range(ROWS)]))
        head = DraftHead(model.config)
    else:
        model, head = new_model(plan, tokenizer), None
    with replacing(args.out / name) as folder:
        result = train(name, model, head, text, plan, steps)
        write_model(folder, result, tokenizer)
        said = answers(folder, chats)
        weights = (folder / "model.safetensors").read_bytes()
    parameters = sum(part.numel() for part in model.parameters()) + sum(
        part.numel() for part in (head.parameters() if head else ())
    )
    entry = {
        "steps": steps,
        "tokens": steps * ROWS * ROW,
        "parameters": parameters,
        "seconds": round(result.seconds, 1),
        "losses": result.losses,
        "bytes": len(weights),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "answers": said,
    }
    record(args.out, name, recipe_of(args, modules, tokenizer), entry)
    for question, answer in said.items():
        print(f"{name}  {question!r} -> {answer[:200]!r}", flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train tiny-dense, tiny-draft and tiny-mtp (about 20 minutes on one core)."
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder that gets a folder a model, and training.json",
    )
    parser.add_argument(
        "--only",
        choices=[name.removeprefix("tiny-") for name in MODELS],
        help="train just this one",
    )
    parser.add_argument(
        "--steps-scale",
        type=float,
        default=1.0,
        metavar="F",
        help="share of the steps to run: 0.01 for a quick trial",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="CPU threads; another number gives other last digits",
    )
    parser.add_argument(
        "--any-text",
        action="store_true",
        help="go on although this Python's modules are not the pinned ones",
    )
    args = parser.parse_args()
    if args.steps_scale <= 0 or args.threads < 1:
        parser.error("--steps-scale must be above 0, and --threads at least 1")
    return args


def stop(*_: object) -> None:
    """A polite request to end (SIGTERM) is taken as Ctrl-C is."""
    raise KeyboardInterrupt


def main() -> None:
    """Train what was asked for, in the order in which one model needs another."""
    args = arguments()
    signal.signal(signal.SIGTERM, stop)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = (
        False  # costs a twentieth of the time and guards nothing here
    )
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        modules = read_modules(args.any_text)
        args.out.mkdir(parents=True, exist_ok=True)
        tokenizer = make_tokenizer(modules)
        for name in [f"tiny-{args.only}"] if args.only else MODELS:
            make(name, args, modules, tokenizer)
    except KeyboardInterrupt:
        print(
            "stopped: the model in work is discarded, nothing half-written is left", file=sys.stderr
        )
        sys.exit(130)


if __name__ == "__main__":
    main()
