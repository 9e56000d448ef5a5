"""Asking for one number: a number, no data, something undefined and an error stay four things."""

from __future__ import annotations

from typing import Any

import pytest

from tests.observe.bodies import codes, windows_of
from tuner._exceptions import ExpositionError
from tuner.observe.exposition import TimedScrape
from tuner.observe.notices import content_type_finding
from tuner.observe.outcomes import NoData, SourceError, Undefined, instant_value, reading


def vector(*values: object) -> dict[str, Any]:
    result = [{"metric": {}, "value": [1, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_empty_nan_infinite_and_error_are_distinct() -> None:
    """None of them is 0 or a float: all hold the schedule, only the last counts against the source."""
    assert isinstance(instant_value(200, vector()), NoData)
    assert isinstance(instant_value(200, vector("NaN")), Undefined)
    assert isinstance(instant_value(200, vector("+Inf")), Undefined)
    assert instant_value(500, None) == SourceError("HTTP 500", retryable=True)


def test_numbers_are_read_from_vectors_and_scalars() -> None:
    """A scalar answer has another shape and the same meaning."""
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [1, "5"]}}
    assert instant_value(200, vector("5")) == instant_value(200, scalar) == 5.0


@pytest.mark.parametrize(
    ("status", "document", "retryable"),
    [
        (503, None, True),
        (429, None, True),
        (422, {"status": "error", "error": "too many samples"}, False),
        (200, None, False),
        (200, {"status": "error", "error": "timeout"}, False),
        (200, {"status": "success"}, False),
        (200, {"status": "success", "data": {"resultType": "vector", "result": [{}]}}, False),
    ],
)
def test_errors_say_whether_to_ask_again(
    status: int, document: dict[str, Any] | None, retryable: bool
) -> None:
    """Overload may pass, a query that is too large does not."""
    outcome = instant_value(status, document)
    assert isinstance(outcome, SourceError)
    assert outcome.retryable is retryable


def test_several_series_are_no_single_number() -> None:
    """Two answers to a question for one are not added or picked from."""
    assert isinstance(instant_value(200, vector("1", "2")), Undefined)


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "abc", "", float("nan"), float("inf")])
def test_what_is_no_number_is_undefined(value: float | str) -> None:
    """No NaN leaves as a float."""
    assert isinstance(reading(value), Undefined)


def test_failed_scrapes_are_one_finding_with_their_reasons() -> None:
    """However many scrapes fail, one finding counts them by reason, and there is no window."""
    errors = [TimedScrape(float(i), ExpositionError("x", reason="html" if i else "empty")) for i in range(4)]
    result = windows_of(errors)
    assert (result.windows, codes(result)) == ((), {"scrape_invalid"})
    assert result.findings[0].evidence["reasons"] == {"empty": 1, "html": 3}


@pytest.mark.parametrize(
    ("content_type", "warned"),
    [
        ("text/plain; version=0.0.4; charset=utf-8", False),
        ("application/openmetrics-text; version=1.0.0", False),
        ("application/json", True),
        ("", True),
    ],
)
def test_a_content_type_that_prometheus_refuses_is_a_warning(content_type: str, warned: bool) -> None:
    """Valid text served as JSON is read here, and not by Prometheus 3 without a fallback protocol."""
    assert (content_type_finding(content_type) is not None) is warned
