"""Sizes and times."""

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.units import GIB, format_bytes, format_seconds, gb_to_gib, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("64M", 64 * 2**20),
        ("16g", 16 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("19 GB", 19 * 10**9),
        (" 2kb ", 2000),
        ("1T", 2**40),
    ],
)
def test_parse_size(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1 parsec", "1e3", "1,5G", "0x10", "16 g b"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(SparkbookError, match="is not a size") as caught:
        parse_size(text)
    assert repr(text)[1:-1] in str(caught.value)


def test_gigabytes_are_smaller_than_gibibytes() -> None:
    assert gb_to_gib(128) == pytest.approx(119.2, abs=0.01)
    assert gb_to_gib(GIB / 10**9) == pytest.approx(1)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (-(2**20), "-1.00 MiB"),
        (2**41, "2.00 TiB"),
    ],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (1, "1.0 s"),
        (12.34, "12.3 s"),
        (99.94, "99.9 s"),
        (100, "1 min 40 s"),
        (185, "3 min 05 s"),
        (3600, "60 min 00 s"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9996, "1.0 s"), (99.96, "1 min 40 s"), (119.7, "2 min 00 s")]
)
def test_rounding_never_shows_a_unit_too_small(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(2**20 - 1, "1.00 MiB"), (2**30 - 1, "1.00 GiB")])
def test_rounding_never_shows_1024_of_a_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize("text", ["1" * 400, "9" * 31 + "GB", f"{'1' * 5000}.5g"])
def test_a_size_without_end_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(SparkbookError) as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200


def test_what_is_no_number_is_unknown() -> None:
    assert format_seconds(float("nan")) == "unknown" and format_seconds(float("inf")) == "forever"
    assert format_bytes(float("nan")) == format_bytes(float("inf")) == "unknown"
