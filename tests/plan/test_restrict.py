"""Each restriction alone: what it closes, and what it must leave open."""

from __future__ import annotations

import pytest

from tests.plan.tables import proposal_of, table_of
from tuner.plan import restrict
from tuner.plan.goodput import CellState
from tuner.plan.options import PlanOptions
from tuner.plan.proposal import Proposal

MEASURED, EXTRAPOLATED, UNKNOWN = CellState.MEASURED, CellState.EXTRAPOLATED, CellState.UNKNOWN
RISING = table_of([[100, 110, 120, 130]] * 4)


def open_lens(proposal: Proposal) -> list[list[int]]:
    """Return the draft lengths that are open at each batch size."""
    lens = proposal.table.draft_lens
    return [lens[row].tolist() for row in proposal.eligible]


def test_allowed_draft_lens_only() -> None:
    """Draft lengths that the engine cannot run are closed, with a note; nothing is closed by default."""
    start = Proposal.start(RISING)
    assert restrict.allowed(start, PlanOptions()) is start
    after = restrict.allowed(start, PlanOptions(allowed_draft_lens=frozenset({0, 2, 9})))
    assert open_lens(after) == [[0, 2]] * 4
    assert [note.by for note in after.notes] == ["allowed"]


def test_floor_closes_shorter_drafts() -> None:
    """A floor of 1 closes draft length 0."""
    assert open_lens(restrict.floor(Proposal.start(RISING), PlanOptions(floor=1))) == [[1, 2, 3]] * 4


def test_draft_length_that_never_ran_is_closed() -> None:
    """However good it looks, a column without a measured cell is not chosen."""
    table = table_of([[100, 110, 400, 120]] * 2, states=[[MEASURED, MEASURED, EXTRAPOLATED, MEASURED]] * 2)
    after = restrict.support(Proposal.start(table), PlanOptions())
    assert open_lens(after) == [[0, 1, 3]] * 2
    assert after.notes[0].by == "support"


@pytest.mark.parametrize(("sd", "opens"), [(0.01, True), (0.5, False)])
def test_unmeasured_draft_length_needs_its_lower_bound_to_win(sd: float, opens: bool) -> None:
    """With ``allow_unmeasured`` twice the speed is enough when known to 1 %, not when known to 50 %."""
    table = table_of([[100, 200]], sd=sd, states=[[MEASURED, EXTRAPOLATED]])
    after = restrict.support(Proposal.start(table), PlanOptions(allow_unmeasured=True))
    assert open_lens(after) == [[0, 1] if opens else [0]]


def test_draft_length_measured_elsewhere_needs_its_lower_bound_to_win() -> None:
    """Beyond its measured batch sizes a draft length stays open only where its whole interval is ahead."""
    states = [[MEASURED, MEASURED], [MEASURED, EXTRAPOLATED], [MEASURED, EXTRAPOLATED]]
    table = table_of([[100, 110], [200, 230], [400, 405]], states=states)
    assert open_lens(restrict.support(Proposal.start(table), PlanOptions())) == [[0, 1], [0, 1], [0]]


def test_batch_size_without_any_support_keeps_what_is_supported_elsewhere() -> None:
    """Beyond all measurements the draft lengths that ran are compared by their wide intervals."""
    states = [[MEASURED, MEASURED, EXTRAPOLATED], [EXTRAPOLATED] * 3]
    table = table_of([[100, 110, 300], [200, 210, 600]], states=states)
    assert open_lens(restrict.support(Proposal.start(table), PlanOptions())) == [[0, 1], [0, 1]]


def test_sequences_must_fit_the_cache() -> None:
    """1 000 tokens of cache hold 4 sequences of 240 + K + 1 up to K=9, 16 of 60 + K + 1 up to K=1."""
    options = PlanOptions(kv_capacity_tokens=1000, context_tokens=60)
    after = restrict.kv_headroom(Proposal.start(RISING), options)
    assert open_lens(after) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [0]]


def test_tokens_in_flight_are_bounded_only_on_request() -> None:
    """Off by default; at 48 tokens batch 16 keeps K up to 2, batch 64 only the shortest draft."""
    start = Proposal.start(RISING)
    assert restrict.tokens_in_flight(start, PlanOptions()) is start
    after = restrict.tokens_in_flight(start, PlanOptions(max_tokens_in_flight=48))
    assert open_lens(after) == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], [0]]


def test_slo_closes_what_misses_it_where_another_meets_it() -> None:
    """A TPOT of 35 ms at batch 4 takes 114 tokens/s; where nobody reaches it all stay, with a finding."""
    after = restrict.slo(Proposal.start(RISING), PlanOptions(slo_tpot=0.035))
    assert open_lens(after) == [[0, 1, 2, 3], [2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    (finding,) = after.findings
    assert finding.code == "slo_out_of_reach"
    assert finding.evidence["batches"] == [16, 64]


def test_unknown_cells_are_never_open() -> None:
    """A cell about which nothing is known starts closed and cannot be the best."""
    proposal = proposal_of(table_of([[100, 0, 120, 0]]))
    assert open_lens(proposal) == [[0, 2]]
    assert proposal.draft_lens() == [2]
