"""Acceptance of a real engine, vLLM 0.32.0 with synthetic acceptance .80 .72 .66 .60 by position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fit.counting import fit
from tuner.engines import get_engine
from tuner.fleet import Estimate
from tuner.observe.recording import read_recording
from tuner.observe.windows import build_windows

if TYPE_CHECKING:
    from tuner.fit.acceptance import AcceptanceFit

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
TRUTH = (0.80, 0.72, 0.66, 0.60)


def _fit(name: str) -> AcceptanceFit:
    vocabulary = get_engine("vllm").vocabulary
    scrapes = read_recording(RECORDINGS / name).scrapes(vocabulary.sample_names)
    return fit(build_windows(scrapes, vocabulary).windows)


@pytest.mark.parametrize("name", ["vllm-0.32-cpu", "vllm-0.32-cpu-short"])
def test_hazards_within_three_hundredths(name: str) -> None:
    """Schedule and load change throughout both recordings; no position is off by more than 0.03."""
    found = _fit(name)
    assert [one.hazard for one in found.positions] == pytest.approx(TRUTH, abs=0.03)
    assert [one.state for one in found.positions] == ["measured"] * 4
    assert not [finding for finding in found.findings if finding.code == "k_confounded"]


def test_intervals_of_the_long_recording_contain_the_truth() -> None:
    """At least three of four 95 % intervals hold the truth, and none is wider than 0.1."""
    found = _fit("vllm-0.32-cpu")
    inside = [one.low <= truth <= one.high for one, truth in zip(found.positions, TRUTH, strict=True)]
    assert sum(inside) >= 3
    assert all(one.high - one.low < 0.1 for one in found.positions)


def test_emitted_tokens_of_the_long_recording() -> None:
    """Every K that ran is measured with its stop-trimming, and within 5 % of what the hazards alone say."""
    found = _fit("vllm-0.32-cpu")
    assert sorted(found.emitted) == [1, 2, 3, 4]
    assert 0.0 < found.trimmed < 0.05
    ideal = 1.0
    survival = 1.0
    for draft_len, hazard in enumerate(TRUTH, start=1):
        survival *= hazard
        ideal += survival
        told = found.expected_tokens(draft_len)
        assert isinstance(told, Estimate)
        assert told.value == pytest.approx(ideal, rel=0.05)
        assert told.value < ideal
