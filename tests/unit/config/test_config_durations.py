"""Go's duration text and Kubernetes sizes."""

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.config.durations import (
    bytes_from_quantity,
    duration_from_nanoseconds,
    duration_from_text,
    format_duration,
)

LONGEST = timedelta(microseconds=(1 << 63) // 1000)


@settings(deadline=None)
@given(st.timedeltas(min_value=-LONGEST, max_value=LONGEST))
def test_every_duration_survives_its_text(duration: timedelta) -> None:
    assert duration_from_text(format_duration(duration)) == duration


@settings(deadline=None)
@given(st.text(alphabet="0123456789.hmsunµ+-_ x"))
def test_arbitrary_text_is_a_duration_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        duration_from_text(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h30m", 5400),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("250ms", 0.25),
        ("10us", 0.00001),
        ("10µs", 0.00001),
        ("0", 0),
        ("-1m", -60),
        ("+2s", 2),
        ("1h1h", 7200),
    ],
)
def test_go_spellings_are_understood(text: str, seconds: float) -> None:
    assert duration_from_text(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "-", "1", "1d", "s", ".s", "1 s", "1h-2m", "9999999h", "1" * 5000 + "s"]
)
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        duration_from_text(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(minutes=15), "15m0s"),
        (timedelta(hours=24), "24h0m0s"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(milliseconds=2.5), "2.5ms"),
        (timedelta(microseconds=7), "7µs"),
        (timedelta(hours=1, milliseconds=1), "1h0m0.001s"),
        (-timedelta(seconds=90), "-1m30s"),
    ],
)
def test_durations_print_as_go_prints_them(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


def test_less_than_a_microsecond_never_becomes_zero() -> None:
    assert duration_from_text("1ns") == timedelta(microseconds=1)
    assert duration_from_nanoseconds(-1) == timedelta(microseconds=-1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("1K", 1000), ("2Ki", 2048), ("3M", 3_000_000), ("1.5Ki", 1536), ("0.1", 1)],
)
def test_sizes_are_kubernetes_quantities(text: str, size: int) -> None:
    assert bytes_from_quantity(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1Kb", "x", "1e400", "9" * 30])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        bytes_from_quantity(text)
