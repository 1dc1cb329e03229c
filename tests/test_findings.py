"""The one kind of answer: its order, its JSON, and how it shows."""

from dataclasses import FrozenInstanceError

import pytest
from rich.console import Console
from sparkbook.findings import Finding, Findings


def finding(rule: str, severity: str, **more: str) -> Finding:
    return Finding(rule=rule, severity=severity, message=f"message of {rule}", **more)  # type: ignore[arg-type]


MIXED = [
    finding("FLAG201", "info"),
    finding("FLAG102", "error"),
    finding("FLAG300", "warning"),
    finding("FLAG101", "error"),
]


def test_errors_come_first_and_the_judges_order_is_kept_within_a_severity() -> None:
    found = Findings(MIXED)
    assert [f.rule for f in found] == ["FLAG102", "FLAG101", "FLAG300", "FLAG201"]
    assert found.worst == "error"
    assert found.summary == {"error": 2, "warning": 1, "info": 1}


def test_errors_since_an_earlier_look_come_with_what_to_do() -> None:
    old, new = finding("FLAG101", "error"), finding("IMG104", "error", fix="Delete the words.")
    assert Findings([old, finding("MEM105", "warning"), new]).errors_since([old]) == [
        "IMG104: message of IMG104 Delete the words."
    ]


def test_nothing_found_is_an_answer() -> None:
    none = Findings()
    assert none.worst is None
    assert none.to_dict() == {"findings": [], "summary": {"error": 0, "warning": 0, "info": 0}}
    assert "Nothing found" in none._repr_html_() and "Nothing found" in rendered(none)


def test_the_shape_of_the_json() -> None:
    answer = Findings(MIXED).to_dict(release="0.19.0")
    assert set(answer) == {"findings", "summary"}
    expected = {
        "rule",
        "kind",
        "severity",
        "message",
        "evidence",
        "fix",
        "why",
        "source",
        "since",
        "until",
        "confidence",
    }
    assert all(set(f) == expected for f in answer["findings"])
    assert answer["findings"][0] == {
        **dict.fromkeys(expected),
        "rule": "FLAG102",
        "severity": "error",
        "message": "message of FLAG102",
        "confidence": "high",
    }
    assert answer["summary"] == {"error": 2, "warning": 1, "info": 1, "release": "0.19.0"}
    assert Finding(**answer["findings"][0]) == MIXED[1]


def test_html_is_escaped() -> None:
    page = Findings(
        [
            finding(
                "FLAG101",
                "error",
                evidence="<script>alert('x')</script>",
                fix="a & b",
                source='"q"',
            )
        ]
    )._repr_html_()
    assert (
        "<script>" not in page
        and "&lt;script&gt;" in page
        and "a &amp; b" in page
        and '"q"' not in page
    )
    message = Finding(rule="A001", severity="info", message="<b>x</b>")._repr_html_()
    assert "<b>x" not in message and "<dl>" not in message


def rendered(value: object, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(value)
    return capture.get()


def test_in_a_terminal() -> None:
    text = rendered(
        Findings(
            [
                finding("FLAG101", "error", evidence="--x [1]", fix="drop --x", since="0.19.0"),
                finding("FLAG300", "warning"),
            ]
        )
    )
    assert text.splitlines() == [
        "error   FLAG101  message of FLAG101",
        "        evidence --x [1]",
        "        fix      drop --x",
        "        releases 0.19.0 to newest",
        "warning FLAG300  message of FLAG300",
    ]
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [20, 60, 80])
def test_a_terminal_wraps_next_to_the_label_and_breaks_no_address(width: int) -> None:
    address = "https://example.org/" + "long/" * 30
    about = finding("FLAG101", "error", fix="Set at most 40960, or " * 5, source=f"Read {address}")
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(about, crop=False)
    lines = capture.get().splitlines()
    assert any(address in line for line in lines)
    assert width < 40 or all(len(line) <= width for line in lines if "long" not in line)
    below = lines[lines.index(next(line for line in lines if "fix" in line)) + 1]
    assert below.startswith(" " * 17 if width > 40 else "  ")


@pytest.mark.parametrize(
    "bad",
    [
        {"rule": "flag101"},
        {"rule": "FLAG1"},
        {"severity": "fatal"},
        {"message": ""},
        {"confidence": "sure"},
        {"rules": "FLAG101"},
    ],
)
def test_a_finding_is_checked(bad: dict[str, str]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Finding(**{"rule": "FLAG101", "severity": "error", "message": "m", **bad})


def test_a_finding_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        MIXED[0].rule = "FLAG999"  # type: ignore[misc]


def test_the_page_opens_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    about = finding("HOST006", "error", why="rules/host.html#host006")
    monkeypatch.delenv("SPARKBOOK_SITE", raising=False)
    assert "why      sparkbook rules show HOST006" in rendered(about)
    monkeypatch.setenv("SPARKBOOK_SITE", "https://example.org/book/")
    assert "why      https://example.org/book/rules/host.html#host006" in rendered(about)
    assert "<dd>rules/host.html#host006</dd>" in about._repr_html_()
    assert about.to_dict()["why"] == "rules/host.html#host006"


def test_a_pipe_gets_what_a_terminal_gets() -> None:
    both = Findings([*MIXED, finding("A001", "info", fix="[bold] :100:", evidence="x")])
    assert f"{both}\n" == rendered(both)
    assert f"{Findings()}\n" == rendered(Findings())
