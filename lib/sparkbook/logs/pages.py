"""Pages of the book about signatures: one each, and a table of all by symptom."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.logs.signatures import Signature, signatures

_ROLES = {
    "cause": "A fault by itself.",
    "consequence": "An echo of a fault elsewhere: the doctor lists it, and looks for the cause.",
    "state": "Something a running engine says about itself.",
    "noise": "Looks bad, means nothing.",
}


def _plain(text: str) -> str:
    """A text for readers: `{name}` stands for a figure of the log."""
    return re.sub(r"\{([a-z_0-9]+)\}", r"…", text)


def page(signature: Signature) -> str:
    """The page of one signature, in Markdown."""
    releases = (
        f"{signature.since or 'all'} to {signature.until or 'now'}"
        if signature.since or signature.until
        else "all that are known"
    )
    collect = "".join(f"\n- {item}" for item in signature.collect)
    patterns = "\n".join(f"/{pattern}/" for pattern in signature.pattern)
    extra = "".join(f"\nand: /{pattern}/" for pattern in signature.also) + "".join(
        f"\nnot: /{pattern}/" for pattern in signature.unless
    )
    fields = [
        ("kind", f"`{signature.kind}`" if signature.kind else "none: the cause is elsewhere"),
        ("severity", signature.severity),
        ("what it is", _ROLES[signature.role]),
        ("releases", releases),
        ("confidence", signature.confidence),
        (
            "source",
            f"<{signature.source}>" if signature.source.startswith("http") else signature.source,
        ),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in fields)
    return f"""# {signature.id}: {_plain(signature.title)}

**Cause.** {_upper(_plain(signature.cause))}

**What to do.** {_upper(_plain(signature.fix))}
{f"{chr(10)}**Collect next.**{chr(10)}{collect}{chr(10)}" if collect else ""}
| what | value |
|---|---|
{table}

It is found here:

```text
{signature.example.replace(chr(13), chr(10))}
```

and not here:

```text
{signature.passing.replace(chr(13), chr(10))}
```

:::{{dropdown}} The pattern
```text
{patterns}{extra}
```
:::
"""


@dataclass(frozen=True)
class SymptomTable:
    """All signatures, by what the reader sees; shows itself as a table that a page can search."""

    rows: tuple[tuple[str, str, str, str, str], ...]

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th>{name}</th>"
            for name in ("what the log says", "what it is", "what to do", "kind", "code")
        )
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        return (
            '<div class="symptoms"><input type="search" placeholder="a word of your log"'
            ' aria-label="search the symptoms" oninput="const w=this.value.toLowerCase();for(const'
            " r of this.parentNode.querySelectorAll('tbody"
            " tr'))r.hidden=!r.textContent.toLowerCase().includes(w)\"><div"
            ' class="sb-scroll"><table class="table'
            f' sb-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>'
        )

    def __repr__(self) -> str:
        return "\n".join(
            f"{code}  {symptom[:70]:<70}  {kind}" for symptom, _, _, kind, code in self.rows
        )

    def search(self, word: str) -> SymptomTable:
        """The rows that hold a word, whatever its case."""
        return SymptomTable(
            tuple(row for row in self.rows if word.lower() in " ".join(row).lower())
        )


def symptoms() -> SymptomTable:
    """The table of all signatures, faults first."""
    order = {"cause": 0, "consequence": 1, "state": 2, "noise": 3}
    rows = []
    for signature in sorted(signatures(), key=lambda s: order[s.role]):
        line = signature.example.replace("\r", "\n").splitlines()[-1]
        symptom = line if len(line) <= 160 else f"{line[:159]}…"
        rows.append(
            (
                symptom,
                _plain(signature.title),
                _plain(signature.fix),
                signature.kind or "",
                signature.id,
            )
        )
    return SymptomTable(tuple(rows))


GUIDE_ROWS: tuple[tuple[str, str, str, str], ...] = (
    (
        "permission denied at docker.sock",
        "join the docker group, newgrp",
        "right; newgrp helps one shell only, a notebook needs a new login",
        "LOG401",
    ),
    (
        "out of memory with memory free",
        "drop the page cache before the launch",
        "often right; first see who holds memory (an engine core may have outlived its container)",
        "LOG101, LOG102, LOG106",
    ),
    (
        "out of memory while loading or serving",
        "lower the fraction or the context, or a smaller model",
        "right, but the fraction is no hard limit: for serving, pin --kv-cache-memory-bytes",
        "LOG114, LOG108",
    ),
    (
        "401, gated download fails",
        "set HF_TOKEN, accept the licence",
        "two faults: 401 is the token, 403 the licence",
        "LOG323",
    ),
    (
        "model type not recognized",
        "newer image",
        "mostly right; in 0.27.1 transformers was too new instead",
        "LOG317, LOG319",
    ),
    (
        "unknown quantization, weights misread",
        "ModelOpt: --quantization modelopt; compressed-tensors: leave it out",
        "leave it out always: config.json decides",
        "LOG314, LOG322",
    ),
    (
        "stable image does not run on GB10",
        "use a nightly or NGC",
        "expired: stable images run since 2026; look at the message",
        "LOG204, LOG205, LOG209",
    ),
    (
        "output repeats itself",
        "remove --kv-cache-dtype fp8",
        "right for some models; see whether the checkpoint brings scales",
        "LOG616",
    ),
    (
        "a hybrid MoE nine times slower",
        "remove --enable-chunked-prefill",
        (
            "removing it changes nothing: it is on by default; --no-enable-chunked-prefill, and"
            " measure"
        ),
        "LOG608",
    ),
    ("first request slow", "warm up", "right", "LOG609"),
    (
        "docker rmi does not delete the image",
        "stop and remove the container, name the tag",
        "right; no log tells it",
        "",
    ),
)
"""The guide's eleven symptoms: what it advises, what was found about that, and the signatures that
tell them apart.
"""


def recorded(name: str) -> str:
    """A recorded log that comes with the library: `h100-moe`, `h100-kv-small` or `gb10-fragment`.

    Raises:
        SparkbookError: there is none of that name.
    """
    folder = Path(__file__).with_name("recorded")
    file = folder / f"{name}.log"
    if file.parent != folder or not file.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log")))
        raise SparkbookError(f"there is no recorded log '{name}'; there are {known}")
    return file.read_text(encoding="utf-8")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
