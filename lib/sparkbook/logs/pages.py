"""The signatures as a table by symptom, the guide's own rows, and the recorded logs."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.logs.signatures import plain, signatures


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
        line = signature.fails.replace("\r", "\n").splitlines()[-1]
        symptom = line if len(line) <= 160 else f"{line[:159]}…"
        rows.append(
            (
                symptom,
                plain(signature.title),
                plain(signature.fix),
                signature.kind or "",
                signature.code,
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
