"""What the rules look at: one line, judged against one release, with the questions that many rules
ask.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkbook import releases
from sparkbook.host.spark import TOTAL_GIB
from sparkbook.launch.arguments import NUMBERS, Arguments, Given, converted, parse
from sparkbook.launch.line import Line
from sparkbook.launch.release import release_of, shown
from sparkbook.lint.models import Family, family_of
from sparkbook.releases import Release, images
from sparkbook.releases.images import ImageInfo
from sparkbook.rules import Edit
from sparkbook.util.shell_text import command_line

if TYPE_CHECKING:
    from sparkbook.checkpoint.values import Quantization

_LARGEST = 10**18
"""Numbers beyond this are read as this, so that no arithmetic leaves what a float holds."""

MOST_SUGGESTED = 50
"""Unknown names of a line that are compared with all known ones, which takes a millisecond each."""


class Case:
    """A line and the release it is judged against.

    Args:
        line: what was read.
        release: a release to judge against; None takes the one that the image holds.

    Attributes:
        version: the release judged against.
        assumed: why that release was assumed; None where it is known.
    """

    def __init__(self, line: Line, release: str | None = None) -> None:
        self.line = line
        self.recipe = line.recipe
        self.image: str | None = None
        self.tag: str | None = None
        self.digest: str | None = None
        if line.image:
            self.image, self.tag, self.digest = images.split(line.image)
        self.info: ImageInfo | None = images.find(line.image) if line.image else None
        if release is None:
            self.version, self.assumed = release_of(line)
        else:
            self.version, self.assumed = releases.get(release).version, None
        self.release: Release = releases.get(self.version)
        self.args: Arguments = (
            parse(line.serve, self.release) if line.serve is not None else Arguments()
        )
        self.serves = line.serve is not None

    @property
    def forked(self) -> str | None:
        """What the image is known to hold instead of a vLLM release; None where it is no fork."""
        return self.info.fork if self.info else None

    @property
    def shown_image(self) -> str:
        """Image and tag, without a digest."""
        return shown(self.line.image)

    # ---- options

    def lacks(self, name: str) -> bool:
        """Whether the line starts a server without this option, as far as it is written out: a file
        of `--config` may state it.
        """
        stated_elsewhere = self.args.spreads or "config" in self.options
        return self.serves and name not in self.options and not stated_elsewhere

    @functools.cached_property
    def options(self) -> dict[str, Given]:
        """Options that the release knows, by long name, the last use of each."""
        return {
            given.option.name: given
            for given in self.args.options
            if given.option is not None and not given.key
        }

    def on(self, name: str) -> bool:
        """Return whether an option is given, and not in its `no-` form."""
        return name in self.options and not self.options[name].negated

    def off(self, name: str) -> bool:
        """Return whether an option is given in its `no-` form."""
        return name in self.options and self.options[name].negated

    def value(self, name: str) -> str | None:
        """Return the value given for an option, where it is known."""
        return self.options[name].value if name in self.options else None

    def number(self, name: str) -> float | None:
        """Return the value of an option as the number that vLLM reads: `64k` is 64,000. None where
        the option is not given, or its value is no number (FLAG105 says so).
        """
        text = self.value(name)
        kind = self.options[name].option.type if name in self.options else ""  # type: ignore[union-attr]
        if text is None or kind not in NUMBERS:
            return None
        try:
            number = converted(text, kind)
        except ValueError:
            return None
        if isinstance(number, float) and not math.isfinite(number):
            return None
        return float(max(-_LARGEST, min(number, _LARGEST)))

    def json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON option with its dotted keys merged in; None where it is not given, or is no
        object.
        """
        result: dict[str, Any] | None = None
        for given in self.args.options:
            if given.option is None or given.option.name != name or not given.values:
                continue
            if given.key:
                result = result or {}
                text = given.values[0].text
                try:
                    result[given.key] = json.loads(text)
                except ValueError:
                    result[given.key] = text
            else:
                try:
                    loaded = json.loads(given.values[0].text)
                except ValueError:
                    return None
                if not isinstance(loaded, dict):
                    return None
                result = {**(result or {}), **loaded}
        return result

    @functools.cached_property
    def spec(self) -> dict[str, Any] | None:
        """The speculative config, the short options included; None without one, or it
        cannot be read.
        """
        config = self.json("speculative-config")
        for name, key in (
            ("spec-method", "method"),
            ("spec-model", "model"),
            ("spec-tokens", "num_speculative_tokens"),
        ):
            if (text := self.value(name)) is not None:
                config = {**(config or {}), key: int(text) if text.isdigit() else text}
        return config

    @property
    def method(self) -> str:
        """The speculative method; empty where none is named."""
        return str((self.spec or {}).get("method") or "")

    @property
    def draft_tokens(self) -> int | None:
        """K, the draft tokens of a step."""
        tokens = (self.spec or {}).get("num_speculative_tokens")
        return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None

    @property
    def mtp(self) -> bool:
        """Whether the draft is the model's own multi-token prediction."""
        return self.method == "mtp" or self.method.endswith("_mtp")

    def shown(self, name: str) -> str:
        """Return an option as it stood; its bare name where it was not given."""
        return self.options[name].shown if name in self.options else f"--{name}"

    # ---- the model

    @property
    def model(self) -> str:
        """Handle or path of the model; empty where the line names none. A path of the container
        counts by its last folder too.
        """
        word = self.args.model
        named = word.shown if word else ""
        return named or (
            self.recipe.model.repo if self.recipe else self.line.env.get("MODEL") or ""
        )

    @property
    def known_names(self) -> str:
        """Everything that may name the model, lower case: handle, path, served name, the recipe's
        repository.
        """
        names = [
            self.model,
            self.value("served-model-name") or "",
            self.recipe.model.repo if self.recipe else "",
        ]
        return " ".join(names).lower()

    @functools.cached_property
    def family(self) -> Family | None:
        """The model's family, recognized by name."""
        return family_of(self.known_names)

    @property
    def nvfp4(self) -> bool:
        """Whether the weights are NVFP4, as the recipe or the name says."""
        return (
            (self.recipe.model.quantization.format == "nvfp4")
            if self.recipe
            else "nvfp4" in self.known_names
        )

    @functools.cached_property
    def quantized(self) -> Quantization | None:
        """How the weights are quantized, as the checkpoint's config says; None: not known."""
        from sparkbook.checkpoint.known import stated_quantization

        return stated_quantization(self.recipe.model.repo if self.recipe else self.model)

    @property
    def producer(self) -> str | None:
        """The tool whose checkpoint format it is, as the recipe, the checkpoint's config or the
        publisher's name says.
        """
        if self.recipe:
            return self.recipe.model.quantization.producer
        if self.quantized:
            return self.quantized.producer
        if re.search(r"(^|[ /])nvidia/\S*-(nvfp4|fp4|fp8)", self.known_names):
            return "modelopt"
        return (
            "compressed-tensors"
            if re.search(
                r"(^|[ /])(redhatai|neuralmagic)/\S*(nvfp4|fp8|w4a16|w8a8)", self.known_names
            )
            else None
        )

    @property
    def weights_gib(self) -> float | None:
        """Size of the weights in GiB, where the recipe says."""
        return self.recipe.model.weights_gib if self.recipe else None

    @functools.cached_property
    def native_context(self) -> int | None:
        """Tokens beyond which vLLM refuses `--max-model-len`: what the checkpoint's config says,
        else the recipe; None: not known.

        The config counts where the two differ, as vLLM reads it and not the card.
        """
        from sparkbook.checkpoint.known import stated_context

        stated = self.recipe.model.context.native if self.recipe else None
        return stated_context(self.recipe.model.repo if self.recipe else self.model) or stated

    @property
    def context_lifted(self) -> bool:
        """Whether the line says that a longer context than the config's is meant: a stretched rope,
        or the variable that takes the risk.
        """
        overridden = any(
            given.option is not None and given.option.name == "hf-overrides"
            for given in self.args.options
        )
        allowed = (self.line.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") or "").strip().lower() in (
            "1",
            "true",
        )
        return (
            overridden or allowed or "hf-overrides" in (self.line.env.get("VLLM_EXTRA_ARGS") or "")
        )

    # ---- where it runs

    @property
    def spark(self) -> bool:
        """Whether it is meant for a Spark: anything but the embedded engine's recipes."""
        return not (self.recipe and self.recipe.family == "embedded")

    @property
    def omni(self) -> bool:
        """Whether vLLM-Omni serves: another program, with options of its own."""
        name = (self.image or "").rpartition("/")[2]
        return name.startswith("vllm-omni") or any(g.name == "omni" for g in self.args.options)

    @property
    def fork(self) -> bool:
        """Whether the image may hold another vLLM than a release: a fork is known to be in it, it
        is built at home or every night, or nothing is known of it.
        """
        if not self.image:
            return False
        if self.info is None or self.info.fork or self.info.local:
            return True
        nightly = "nightly" in (self.tag or "") and not self.info.vllm
        return nightly or not (self.info.vllm or self.info.vllm_range or self.info.pattern())

    @property
    def asked(self) -> str:
        """What to type to see which options the image has."""
        image = self.line.image or "IMAGE"
        words = ("docker", "run", "--rm", "--entrypoint", "vllm", image, "serve", "--help=all")
        return command_line(*words)

    @property
    def contained(self) -> bool:
        """Whether it runs in a container."""
        return self.line.image is not None

    @property
    def nodes(self) -> int:
        """Machines it is spread over, as far as the line says."""
        stated = int(self.number("nnodes") or 1)
        return max(stated, self.line.nodes, self.recipe.topology.nodes if self.recipe else 1)

    @property
    def ray(self) -> bool:
        """Whether Ray spreads it."""
        return (
            self.value("distributed-executor-backend") == "ray"
            or self.value("data-parallel-backend") == "ray"
        )

    def holds(self, distribution: str) -> bool | None:
        """Return whether the image holds a Python distribution: what is known of it, else what its
        vLLM requires; None where nothing says.

        The official images install vLLM's own requirements and little else.
        """
        if self.info and distribution in self.info.contents:
            return self.info.contents[distribution] is not False
        if self.image == "vllm/vllm-openai" and not self.assumed:
            return distribution in self.release.requires
        return True if distribution in self.release.requires else None

    def fraction_gib(self) -> float | None:
        """Return memory that the given fraction asks for (GiB), of the 121.6 GiB that a Spark
        shows.
        """
        fraction = self.number("gpu-memory-utilization")
        return None if fraction is None else fraction * TOTAL_GIB

    # ---- repairs

    def drop(self, given: Given) -> tuple[Edit, ...]:
        """Take an option with its values out of the text, and the blanks or the continued line
        before it.
        """
        first, last = given.words[0], given.words[-1]
        if first.start < 0 or last.end < 0:
            return ()
        return (Edit(self._blank_before(first.start), last.end, ""),)

    def _blank_before(self, start: int) -> int:
        while start and (self.line.text[start - 1].isspace() or self.line.text[start - 1] == "\\"):
            start -= 1
        return start

    def rename(self, given: Given, name: str) -> tuple[Edit, ...]:
        """Give an option another name, its value as it is."""
        word = given.word
        if word.start < 0:
            return ()
        length = len(self.line.text[word.start : word.end].partition("=")[0])
        return (Edit(word.start, word.start + length, f"--{name}"),)

    def append(self, text: str) -> tuple[Edit, ...]:
        """Put words at the end of the line."""
        words = [word for word in self.line.serve or [] if word.end >= 0]
        return (Edit(words[-1].end, words[-1].end, f" {text}"),) if words else ()

    def env_named(self, *patterns: str) -> Iterator[tuple[str, str | None]]:
        """Return variables whose name matches one of the patterns."""
        for name, value in self.line.env.items():
            if any(re.fullmatch(pattern, name) for pattern in patterns):
                yield name, value
