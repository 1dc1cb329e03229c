"""Tables in the published form: of measurements and of what others published."""

import pytest
from sparkbook import recipes
from sparkbook.bench import result_tables, sweep


def test_speculation_by_class_and_k():
    found = sweep.recorded("ngram")
    header, rows = result_tables.speculation(found)
    assert [row[:2] for row in rows[:3]] == [["chat", "off"], ["chat", 2], ["chat", 4]] and len(
        rows
    ) == 9
    assert all(len(row) == len(header) for row in rows)
    for row in rows:
        gain = row[header.index("times as fast (95 %)")]
        assert (gain is None) == (row[1] == "off")
        if gain:
            ratio = found.advice().case(row[1], row[0], 1).comparison.ratio
            assert gain.startswith(f"{ratio:.2f} (")


@pytest.mark.parametrize(
    ("recipe", "forms"),
    [
        ("qwen3.5-27b-dflash", ["class", "concurrency"]),
        ("qwen3.5-27b-dflash-turboquant", ["class", "concurrency", "context", "modes"]),
    ],
)
def test_the_four_published_forms(recipe, forms):
    found = result_tables.published(recipes.load(recipe).benchmarks.speed)
    assert list(found) == forms
    assert all(len(row) == len(header) for header, rows in found.values() for row in rows)
    rows = found["concurrency"][1]
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows), (
        "class by class, few requests first"
    )


def test_modes_are_told_apart_and_their_difference_in_percent():
    header, rows = result_tables.published(
        recipes.load("qwen3.5-27b-dflash-turboquant").benchmarks.speed
    )["modes"]
    assert header[3:] == [
        "off, tok/s",
        "capture_only, tok/s",
        "hybrid, tok/s",
        "Δ hybrid vs off, %",
    ]
    code = next(row for row in rows if row[:3] == ["code", 1, None])
    assert (
        code[-1] == pytest.approx(100 * (61.71 / 64.02 - 1)) and result_tables.published([]) == {}
    )
