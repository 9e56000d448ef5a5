"""Counts and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner._exceptions import InputError
from tuner.quantities import format_duration, format_number, parse_duration, parse_number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15), ("40ms", 0.04), ("10m", 600), ("1h30m", 5400), ("400d", 34_560_000), ("0", 0), (" 2s ", 2)],
)
def test_durations(text: str, seconds: float) -> None:
    """Whole numbers with units, largest first; zero needs no unit."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "15", "s", "1.5h", "-1s", "30m1h", "1m1m", "1w", "1 h", "15S", "1e3s", "9" * 400 + "d", "２s"],
)
def test_bad_durations(text: str) -> None:
    """Bare numbers, fractions, signs, foreign units, wrong order and absurd lengths are refused."""
    with pytest.raises(InputError, match=r"is not a duration|longer than a century"):
        parse_duration(text)


@given(st.integers(0, 3_000_000_000_000))
def test_durations_survive_writing(milliseconds: int) -> None:
    """What is written is read back, to the millisecond."""
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(
        milliseconds / 1000, abs=1e-6
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("70e9", 70e9),
        ("70B", 70e9),
        ("989T", 989e12),
        ("3.35T", 3.35e12),
        ("0.1", 0.1),
        (".5", 0.5),
        ("7k", 7e3),
    ],
)
def test_numbers(text: str, value: float) -> None:
    """Plain, with exponents, or with suffixes."""
    assert parse_number(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-1", "+1", "1_000", "1,5", "70b", "1e999", "0x10", "70 BB", "٣"]
)
def test_bad_numbers(text: str) -> None:
    """Signs, NaN, infinities, digit groups and foreign digits are refused."""
    with pytest.raises(InputError, match="is not a number"):
        parse_number(text)


@given(st.floats(0.0, 1e24))
def test_numbers_survive_writing(value: float) -> None:
    """What is written is read back exactly."""
    assert parse_number(format_number(value)) == value


def test_large_numbers_read_in_thousands() -> None:
    """Rates are shown with exponents of three, as data sheets have them."""
    assert [format_number(value) for value in (989e12, 3.35e12, 70e9, 256.0, 0.03)] == [
        "989e12",
        "3.35e12",
        "70e9",
        "256",
        "0.03",
    ]


@pytest.mark.parametrize("text", ["x" * 5000, "a\nb", "\x1b[31m"])
def test_messages_stay_on_one_line(text: str) -> None:
    """Whatever was written, the message is one short printable line."""
    for parse in (parse_number, parse_duration):
        with pytest.raises(InputError) as caught:
            parse(text)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 160
