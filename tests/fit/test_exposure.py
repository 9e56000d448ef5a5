"""Windows to (exposed, accepted) per position."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fit.counting import fit, pure, window, with_counts
from tuner.fit.exposure import Basis, build_exposure, proposals_are_optional
from tuner.fit.plausibility import impossible
from tuner.fleet import WindowState


def test_pure_window_exposes_what_was_accepted_before() -> None:
    """At one draft length position 0 is exposed by every draft, position i by the acceptances of i-1."""
    table = build_exposure([window(1000, [800, 560, 370, 0], {3})])
    assert table.exposed.tolist() == [[1000, 800, 560, 0]]
    assert table.accepted.tolist() == [[800, 560, 370, 0]]
    assert table.basis.tolist() == [[Basis.DIRECT, Basis.DIRECT, Basis.DIRECT, Basis.NONE]]
    assert table.draft_len.tolist() == [3]


def test_mix_of_two_solves_the_position_between_them() -> None:
    """With K in {2, 4}, 400 of 1000 drafts went beyond position 1, so 256 of 640 reached position 2."""
    table = build_exposure([window(1000, [800, 640, 205, 164], {2, 4}, draft_tokens=2800.0)])
    assert np.allclose(table.exposed, [[1000, 800, 256, 205]])
    assert table.basis[0].tolist() == [Basis.DIRECT, Basis.DIRECT, Basis.SOLVED, Basis.DIRECT]
    assert np.allclose(table.share, [[1, 1, 0.4, 0.4]])
    assert table.draft_len.tolist() == [0]


@pytest.mark.parametrize("lens", [{1, 2, 4}, {1, 2, 3, 4}])
def test_three_lengths_censor_the_positions_equal_to_one_of_them(lens: set[int]) -> None:
    """Two totals cannot give the shares of three lengths; what no length equals stays exact."""
    table = build_exposure([window(1000, [800, 400, 200, 100], lens, draft_tokens=2400.0)])
    for position in range(1, 4):
        wanted = Basis.CENSORED if position in lens else Basis.DIRECT
        assert table.basis[0, position] == wanted
        assert (table.exposed[0, position] == 0) == (wanted is Basis.CENSORED)


def test_unknown_mix_tells_the_first_position_only() -> None:
    """Every counted draft proposes position 0; nothing else is known of a mix that nobody told."""
    table = build_exposure([window(1000, [800, 640, 205, 164], None, draft_tokens=2800.0)])
    assert table.exposed.tolist() == [[1000, 0, 0, 0]]
    assert table.basis[0].tolist() == [Basis.DIRECT, *[Basis.CENSORED] * 3]


def test_pure_label_contradicted_by_its_draft_tokens_is_an_unknown_mix() -> None:
    """K=4 with 3.5 draft tokens per draft had shorter drafts in it; how many of which is not told."""
    table = build_exposure([window(1000, [800, 640, 500, 400], {4}, draft_tokens=3500.0)])
    assert table.basis[0].tolist() == [Basis.DIRECT, *[Basis.CENSORED] * 3]


@pytest.mark.parametrize(("missing", "kept"), [(0.01, True), (0.03, True), (0.04, False), (0.07, False)])
def test_a_few_cut_drafts_pass_and_more_censor(missing: float, kept: bool) -> None:
    """Up to 0.03 missing tokens a draft expose every position, more of them position 0 alone."""
    tokens = 1000 * (4 - missing)
    table = build_exposure([window(1000, [800, 640, 500, 400], {4}, draft_tokens=tokens)])
    assert (table.draft_len[0], table.asked[0]) == (4 if kept else 0, 4)
    assert table.cut[0] == pytest.approx(missing)
    assert set(table.basis[0, 1:].tolist()) == {Basis.DIRECT if kept else Basis.CENSORED}


def test_intervals_reach_over_what_cut_drafts_may_hide() -> None:
    """0.03 missing tokens a draft may all be last ones: the last hazard then reads 3 % below the truth."""
    whole = [pure(40_000, [0.8, 0.7, 0.6], index) for index in range(40)]
    cut = [
        with_counts(w, draft_tokens=(w.counts.draft_tokens or 0.0) - 0.03 * (w.counts.drafts or 0.0))
        for w in whole
    ]
    last = [fit(windows).positions[2] for windows in (whole, cut)]
    assert last[0].high < 0.6 / 0.97 < last[1].high
    assert last[0].hazard == pytest.approx(last[1].hazard, abs=1e-3)


def test_joint_counts_are_exact_under_any_mix() -> None:
    """n[d][a] gives every position's exposure: drafts longer than i that accepted at least i."""
    joint = {(2, 0): 100.0, (2, 1): 100.0, (2, 2): 400.0, (4, 0): 80.0, (4, 2): 120.0, (4, 4): 200.0}
    table = build_exposure([window(1000, [820, 720, 200, 200], None, joint=joint)])
    assert table.exposed.tolist() == [[1000, 820, 320, 200]]
    assert table.accepted.tolist() == [[820, 720, 200, 200]]
    assert set(table.basis[0].tolist()) == {Basis.DIRECT}
    assert table.share[0].tolist() == pytest.approx([1, 1, 0.4, 0.4])


def test_exposure_told_by_the_engine_is_taken_as_it_is() -> None:
    """Per-position proposals (TensorRT-LLM, the plugin) need no draft length at all."""
    told = window(100, [80, 50, 0], None, exposed_by_position=(100.0, 80.0, 40.0))
    table = build_exposure([told])
    assert table.exposed.tolist() == [[100, 80, 40]]
    assert table.accepted.tolist() == [[80, 50, 0]]


def test_totals_only_identify_a_single_position() -> None:
    """Accepted over drafts is the hazard at K=1; above, the sum over positions is not split by guess."""
    one = window(1000, (), {1}, accepted=700.0)
    two = window(1000, (), {2}, accepted=1440.0, index=1)
    table = build_exposure([one, two])
    assert table.exposed.tolist() == [[1000, 0], [0, 0]]
    assert table.basis.tolist() == [[Basis.DIRECT, Basis.NONE], [Basis.CENSORED, Basis.CENSORED]]


@pytest.mark.parametrize("state", [state for state in WindowState if state is not WindowState.GOOD])
def test_only_good_windows_count(state: WindowState) -> None:
    """A window that is idle, partial, suspect or in transition gives no evidence."""
    kept = window(100, [80], {1})
    table = build_exposure([kept, window(900, [90], {1}, index=1, state=state)])
    assert table.windows == (kept,)


def test_windows_without_drafts_are_left_out() -> None:
    """Windows at K=0 say nothing about acceptance, and are no fault."""
    table = build_exposure([window(0, [0, 0], set(), draft_tokens=0.0)])
    assert table.windows == ()
    assert table.quarantined == ()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"accepted": 5000.0}, "tokens accepted of"),
        ({"accepted": 1500.0}, "add up"),
        ({"accepted_by_position": (1100.0, 240.0), "accepted": 1340.0}, "position 0 accepted"),
        ({"accepted_by_position": (600.0, 740.0)}, "position 1 accepted"),
        ({"draft_tokens": 2500.0}, "outside the draft lengths"),
        ({"draft_tokens": 900.0, "accepted": 700.0}, "outside the draft lengths"),
        ({"accepted_by_position": (800.0, 500.0, 40.0)}, "beyond the longest"),
        ({"drafts": math.nan}, "not finite"),
        ({"draft_tokens": math.inf}, "not finite"),
        ({"accepted_by_position": (800.0, -1.0)}, "negative"),
        ({"drafts": 0.0}, "without a draft"),
        ({"exposed_by_position": (1000.0, 500.0)}, "proposed 500 times"),
    ],
)
def test_impossible_counts_are_quarantined(changed: dict[str, object], said: str) -> None:
    """Numbers that cannot be are named and left out, never clamped into range."""
    honest = window(1000, [800, 540], {2})
    broken = with_counts(honest, **changed)
    assert impossible(honest) == ""
    assert said in impossible(broken)
    table = build_exposure([broken])
    assert table.windows == ()
    assert table.quarantined[0][0] is broken


def test_engine_order_and_time_order() -> None:
    """Windows come out by engine and time whatever order they came in, so that blocks are consecutive."""
    windows = [pure(100, [0.8], index, engine=name) for index in (2, 0, 1) for name in ("b", "a")]
    table = build_exposure(windows)
    assert [(one.engine, one.start) for one in table.windows] == sorted((w.engine, w.start) for w in windows)
    assert table.engine.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("tokens", "request_steps", "method", "optional"),
    [
        (3000.0, 1000.0, "", False),
        (2710.0, 2500.0, "", True),
        (3000.0, 2500.0, "", False),  # one length, switched off in part of the window
        (3000.0, 1000.0, "ngram", True),
        (3000.0, 1000.0, "suffix_decoding", True),
        (3000.0, 1000.0, "eagle3", False),
    ],
)
def test_optional_proposals(tokens: float, request_steps: float, method: str, optional: bool) -> None:
    """A drafter that may stay silent is known by name, or by few and fractional drafts."""
    windows = [
        window(1000, [800, 500, 300], {3}, index=i, draft_tokens=tokens, request_steps=request_steps)
        for i in range(4)
    ]
    assert proposals_are_optional(build_exposure(windows), method) is optional


@pytest.mark.parametrize(("straddling", "optional"), [(20, True), (19, True), (15, False), (0, False)])
def test_whole_drafts_in_half_of_the_steps_are_optional_if_always_so(straddling: int, optional: bool) -> None:
    """K tokens a draft in half of the steps at every load: silent at will. A table leaves pure ones."""
    windows = [
        window(1000, [800, 500, 300], None, index=i, draft_tokens=3000.0, request_steps=2000.0)
        if i < straddling
        else window(1000, [800, 500, 300], {3}, index=i, request_steps=1000.0)
        for i in range(20)
    ]
    assert proposals_are_optional(build_exposure(windows), "") is optional


@given(st.lists(st.integers(0, 500), min_size=2, max_size=8).filter(any))
def test_pure_counters_and_joint_counts_agree(histogram: list[int]) -> None:
    """Whatever was accepted at one K, counters by position and n[K][a] give the same exposures."""
    draft_len = len(histogram) - 1
    taken = [float(sum(histogram[i + 1 :])) for i in range(draft_len)]
    joint = {(draft_len, a): float(count) for a, count in enumerate(histogram)}
    by_counters = build_exposure([window(sum(histogram), taken, {draft_len})])
    by_joint = build_exposure([window(sum(histogram), taken, None, joint=joint)])
    assert np.array_equal(by_counters.exposed, by_joint.exposed)
    assert np.array_equal(by_counters.accepted, by_joint.accepted)
    assert by_counters.draft_len.tolist() == by_joint.draft_len.tolist()


def test_steps_without_a_proposal_are_no_drafts() -> None:
    """n[0][0] counts steps at K=0: they neither expose a position nor change the shares."""
    table = build_exposure([window(100, [], None, joint={(0, 0): 900.0, (2, 1): 60.0, (2, 0): 40.0})])
    assert table.drafts.tolist() == [100]
    assert table.exposed.tolist() == [[100, 60]]
    assert table.share.tolist() == [[1.0, 1.0]]
    assert table.draft_len.tolist() == [2]


def test_totals_of_an_unknown_mix_expose_nothing() -> None:
    """Drafts and accepted tokens alone, with no draft length told, identify no position and do not crash."""
    table = build_exposure([window(100, [], None, accepted=150.0)])
    assert table.exposed.tolist() == [[0.0]]
    assert table.basis.tolist() == [[Basis.CENSORED]]
