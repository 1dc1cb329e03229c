"""What the five source documents hold, as a list of short keys: sections, models, images, table
rows, options, environment variables, faults, figures and settings.

    python tools/extract_outline.py FOLDER > book/outline.yaml

FOLDER holds the documents; they belong to their authors and are not part of this project. What is
written are numbers, names and slugs, no sentences. `tests/register/test_coverage.py` compares a
fresh list with the committed one where the documents are at hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCUMENTS = {
    "guide": "guide-vllm-on-dgx-spark.md",
    "dflash": "dflash-turboquant.md",
    "gemma4": "gemma4-research.md",
    "nvfp4": "nvfp4-kernel-readme.md",
    "thread": "nvfp4-forum-thread.md",
}
# publishers of checkpoints
_ORGANISATIONS = (
    "nvidia|unsloth|Qwen|google|RedHatAI|z-lab|poolside|AEON-7|openai|mistralai|sakamakismile"
    "|chankhavu"
)
_MODEL = re.compile(rf"(?<![\w/.-])(?:{_ORGANISATIONS})/[A-Za-z][\w.-]*[A-Za-z0-9]")
_NOT_MODELS = re.compile(
    r"^(?:nvidia/(?:vllm|cuda|pytorch|spark|containers)|AEON-7/(?:vllm|dgx|Z-Lab))|^openai/v1"
)
_IMAGE = re.compile(
    r"(?<![\w./-])((?:(?:nvcr|ghcr)\.io/[\w./-]+|vllm/vllm-openai|nvidia/cuda|avarok/[\w-]+):(?:latest(?=[A-Z])|[\w.-]*\w))"
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
_VARIABLE = re.compile(
    r"(?:-e |export |^\| ?`?|^`?|\s)([A-Z][A-Z0-9]*_[A-Z0-9_]+|MODEL|PORT)`?(?==| \||\"|'| as )",
    re.MULTILINE,
)
_OTHER_WORDS = {"TRITON_ATTN", "SYSTEM_PROMPT"}
_RULE = re.compile(r"\|[|\s:-]+\|")
# Documents whose headings were lost on the way: a line that begins so opens a section of this name.
_OPENINGS = {
    "dflash": {
        "read-first": r"^\| GPU \|",
        "what-it-is": r"^A pre-built vLLM container",
        "quick-start": r"^Three copy-paste",
        "performance": r"^All numbers below",
        "which-config": r"^\| Your workload",
        "turboquant": r"^For long-context or high-concurrency",
        "configuration": r"^\| Variable \| Default",
        "troubleshooting": r"^Container restarts",
        "how-it-works": r"^DFlash speeds up",
        "nvfp4": r"^NVIDIA's FP4 format",
        "architecture": r"^The model has 64",
        "why-dense": r"^DGX Spark is memory-bandwidth",
        "credits": r"^- DFlash: Zheng",
    },
    "nvfp4": {
        "quick-start": r"^docker pull avarok",
        "build": r"^The Docker image takes",
        "sparse-kernel": r"The sparse_fp4_kernel",
        "why": r"The DGX Spark's GB10 GPU has",
        "performance": r"^\| Stage \|",
        "history": r"^\| Commit \|",
        "architecture": r"This image bridges",
        "e2m1": r"^#if defined",
        "hardware": r"^\| Spec \|",
        "configuration": r"^\| Variable \| Default",
        "files": r"^\| File \| Purpose",
        "fixes": r"^\| File \| Problem",
        "versions": r"^\| Version \| Change",
        "license": r"Built on vLLM",
    },
    "thread": {
        "layers-of-software": r"^Yeah, vLLM",
        "mtp-for-nemotron-h": r"^Exciting stuff",
        "cascade-recipe": r"^@eugr So far",
        "llamacpp-kv-cache": r"^Adding some llama",
        "memory-is-filled": r"^NOB question",
        "nvfp4-kv-cache": r"^1\. Functionality",
        "tiles-are-skipped": r"^OK, with the latest PRs",
        "start-up-log": r"^\(EngineCore pid=94\) INFO 04-01 17:56:55",
        "k64-tiles": r"^@johnny_nv Usually",
        "turbo-kv-types": r"^Built Madreag",
        "slow-super": r"^Openclaw / Neom",
        "prefill-or-decode": r"^1 TFLOPs",
        "two-sparks-minimax": r"^I run minimax",
        "prefix-cache": r"^vLLM handles",
        "wish-for-70b": r"^Would be Great",
    },
}
_CODE_UNMARKED = {"dflash", "nvfp4", "thread"}
"""Documents whose code lost its fences on the way."""
_FAULTS = {
    "dflash": [
        r"^Container restarts",
        r"^API returns 404",
        r"First request takes 30",
        r"^TTFT blows up",
        r"^CUDA out of memory",
        r"^\"Cannot copy",
        r"^DFlash acceptance rate",
        r"^Image won't pull",
    ],
}


# ---- figures and settings
_NOISE = re.compile(
    r"https?://\S+"  # addresses
    r"|\b\d{4}-\d\d-\d\d\b|\b\d\d-\d\d \d\d:\d\d:\d\d"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{1,4}(?:, \d{4})?"  # dates
    # sections, issues, papers, names
    r"|§\s?\d[\d.]*|\bin \d+\.\d+\.\d+|#\d+|arXiv:? ?\d+\.\d+|Apache 2\.0|Qwen \d\.\d|RTX \d+×0"
    # images and their tags
    r"|(?<![\w./:-])(?:[\w.-]+/)+[\w.-]+:\S+|[\w.-]+:\d\d\.\d\d(?:\.\w+)?(?:-py3)?|\b2[56]\.\d\d\b"
    # hosts and ports, hashes
    r"|(?:\d+\.){3}\d+|\d+:\d+|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,}\b"
    # places in a log, builds, headings
    r"|\[[\w.]+:\d+\]|[MNK]=\d+|pid=\d+|cu\d+|(?<=^)#+ \d[\d.]*"
)
_NAME = re.compile(r"(?<![\w.])(?!v\d)[A-Za-z_][\w.+-]*\d[\w.+-]*|(?<![\w.])\d+(?:\.\d+)?B-[\w.-]+")
_UNITS = {
    "tok/s": r"(?:tok(?:ens)?/s(?:ec)?|t/s|tps|TPS|tg/s)",
    "GiB": "GiB",
    "Gb/s": "Gb/s",
    "TB/s": "TB/s",
    "GB/s": "(?:GB/s|GBps)",
    "GB": "GB",
    "TFLOP": "TFLOPs?",
    "%": "%",
    "×": r"(?:×(?!\d)|x)",
    "ms": "ms",
    "s": "s(?:econds?|ecs?)?",
    "min": "min(?:utes?)?",
    "bit": "bits?",
    "B": "B",
    "K": "[Kk]",
    "M": "M",
    "G": "G(?:ig)?",
    "tokens": "tokens?",
    "layers": "layers?",
    "experts": "experts?",
    "lines": "lines?",
    "languages": "languages",
    "model presets": "model presets",
    "benchmarks": "benchmarks",
    "types": "types",
    "intrinsics": "intrinsics",
    "operators": "operators",
    "tiles": "tiles",
}
"""A unit as the outline has it, and how the documents write it."""
_UNIT = re.compile(
    "|".join(rf"(?P<u{number}>{pattern})(?!\w)" for number, pattern in enumerate(_UNITS.values()))
)
_FIGURE = re.compile(
    r"(?<![\w.,/])(?P<low>\d[\d,]*(?:\.\d+)*)(?:(?:a|rc)\d+)?"  # of a version what is released
    r"(?:\s?(?:–|-|to)\s?(?P<high>\d[\d,.]*\d|\d)(?![\w.]*\.\d))?\+?[ -]?"
)
_OPTION_SET = re.compile(
    r"(?<![\w-])(--[a-z][a-z0-9-]*[a-z0-9])(?:=|\s+)(?P<value>(?!-|from\b|to\b)[\w.:/~@=-]*\w)"
)
_VARIABLE_SET = re.compile(
    r"(?<![\w])([A-Z][A-Z0-9]*_[A-Z0-9_]+|MODEL|PORT)=(?P<value>[\w./:-]*\w)"
)
_VARIABLE_CELL = re.compile(r"^\|?\s?`([A-Z][A-Z0-9_]+)` \|$")
_VALUE_CELL = re.compile(r"^`([\w./-]+)` \|$")
_KEY_SET = re.compile(
    r"\"([a-z_]+)\"\s*:\s*\"?(?P<value>[\w./-]+)"
    r"|(?<![\w-])(temperature|top_p|temp|think|port|[a-z]+(?:_[a-z]+)+)[=:]\s?(?P<plain>\d[\d.]*|false|true)\b"
)
_NO_SETTINGS = {
    "model",
    "role",
    "content",
    "messages",
    "type",
    "stream",
    "text_config",
    "rope_parameters",
    "mrope_section",
}


def figures(line: str, fenced: bool) -> list[str]:
    """The figures in a line: numbers and ranges with a unit, versions, and, outside of code,
    numbers with a point. A bare whole number is
    none: it may be a port, a section or a list's.
    """
    line = _OPTION_SET.sub(" ", _VARIABLE_SET.sub(" ", line))
    line = _NAME.sub(" ", _NOISE.sub(" ", _KEY_SET.sub(" ", line)))
    found = []
    for match in _FIGURE.finditer(line):
        low, high = match["low"].rstrip(",."), (match["high"] or "").rstrip(",.")
        named = _UNIT.match(line[match.end() :].lstrip("*`"))
        unit = list(_UNITS)[int(str(named.lastgroup)[1:])] if named else ""
        version = low.count(".") > 1
        if unit or version or (not fenced and ("." in low or high)):
            found.append(f"{low}{f' to {high}' if high and not version else ''} {unit}".strip())
    return found


def settings(line: str, fenced: bool) -> list[str]:
    """The settings in a line, as `NAME=VALUE`; in prose those in code, and those of a number."""
    code = line if fenced else "; ".join(re.findall(r"`([^`]+)`", line))
    found = [(match[1], match["value"]) for match in _OPTION_SET.finditer(code)]
    found += [
        (match[1], match["value"])
        for match in _OPTION_SET.finditer(line)
        if match["value"][0].isdigit()
    ]
    found += [(match[1], match["value"]) for match in _VARIABLE_SET.finditer(line)]
    found += [
        (match[1] or match[3], match["value"] or match["plain"])
        for match in _KEY_SET.finditer(line)
    ]
    return list(
        dict.fromkeys(
            f"{name}={value}"
            for name, value in found
            if name not in _NO_SETTINGS and value not in ("hf_xxx", "N")
        )
    )


def slug(text: str, words: int = 5) -> str:
    """The first words, as a key."""
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower().replace("`", ""))[:words]).strip(".-")


def _first_cell(lines: list[str], at: int, state: dict[str, int]) -> str | None:
    """The first cell of a table's row that begins in this line; None in a heading, a rule, or the
    middle of a row.

    Some documents have their rows cut into a line for each cell; `state` counts cells against the
    table's columns.
    """
    line = lines[at].strip()
    following = lines[at + 1].strip() if at + 1 < len(lines) else ""
    if _RULE.fullmatch(line):
        state.update(columns=line.count("|") - 1, seen=0)
        return None
    if not line.endswith("|"):
        state["seen"] = 0
        return None
    cells = line.count("|") - line.startswith("|")
    begins = line.startswith("|") or state["seen"] == 0
    state["seen"] = 0 if line.startswith("|") else state["seen"] + cells
    if state["columns"] and state["seen"] >= state["columns"]:
        state["seen"] = 0
    is_heading = _RULE.fullmatch(following) or (
        cells == 1 and at + 2 < len(lines) and _RULE.fullmatch(lines[at + 2].strip())
    )
    return line.strip("|").split("|")[0] if begins and not is_heading else None


def outline(name: str, text: str) -> list[str]:
    """The keys of one document, in order, each once: `KIND/WHERE`."""
    found: dict[str, None] = {}
    section, fenced = "top", False
    openings = dict(_OPENINGS.get(name, {}))
    lines, state = text.splitlines(), {"columns": 0, "seen": 0}
    for number_of_line, line in enumerate(lines):
        fenced ^= line.lstrip("> ").startswith("```")
        heading = None if fenced else re.match(r"#{2,4} (?P<title>.+)", line)
        if heading:
            number = re.match(r"(\d+(?:\.\d+)*)\.? ", heading["title"])
            section = number[1] if number else slug(heading["title"], 3)
            found[f"section/{section}"] = None
        for key, pattern in list(openings.items()):
            if re.search(pattern, line):
                section = key
                found[f"section/{section}"] = None
                del openings[key]
        for fault in (
            found_fault
            for pattern in _FAULTS.get(name, [])
            if (found_fault := re.search(pattern, line))
        ):
            found[f"fault/{slug(line[fault.start() :])}"] = None
        if not fenced and (cell := _first_cell(lines, number_of_line, state)) and slug(cell):
            found[f"row/{section}/{slug(cell)}"] = None
        for model in _MODEL.findall(line):
            if not _NOT_MODELS.search(model):
                found[f"model/{model}"] = None
        for image in _IMAGE.findall(line):
            found[f"image/{image}"] = None
        for option in _OPTION.findall(line):
            found[f"option/{option}"] = None
        for variable in _VARIABLE.findall(line):
            if variable not in _OTHER_WORDS:
                found[f"variable/{variable}"] = None
        cell_before = _VARIABLE_CELL.match(lines[number_of_line - 1]) if number_of_line else None
        if (value := _VALUE_CELL.match(line)) and cell_before:
            found[f"setting/{section}/{cell_before[1]}={value[1]}"] = None
        for setting in settings(line, fenced or name in _CODE_UNMARKED):
            found[f"setting/{section}/{setting}"] = None
        for figure in figures(line, fenced):
            found[f"figure/{section}/{figure}"] = None
    if openings:
        raise SystemExit(f"{name}: no line opens {', '.join(openings)}")
    return list(found)


def main(folder: Path) -> str:
    """The list as YAML.

    Raises:
        SystemExit: a document is missing, or is not the one that was expected.
    """
    lines = [
        "# Made by tools/extract_outline.py from the source documents: what has to have a home in"
        " this book. Do not edit."
    ]
    for name, file in DOCUMENTS.items():
        if not (folder / file).is_file():
            raise SystemExit(f"{folder} has no {file}")
        lines.append(f"{name}:")
        lines += [f'  - "{key}"' for key in outline(name, (folder / file).read_text("utf-8"))]
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(main(Path(sys.argv[1])))
