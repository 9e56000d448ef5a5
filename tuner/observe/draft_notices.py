"""What an engine's drafts gave away: cut short, of lengths that nobody named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.fleet import SHORT_DRAFT_TOKENS, Finding, WindowState
from tuner.observe.engine_notices import OPTIONAL_PROPOSALS, SURE_WINDOWS
from tuner.observe.states import MIX
from tuner.observe.tables import visited_draft_lens
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tuner.fleet import Schedule
    from tuner.observe.engine_notices import EngineView
    from tuner.observe.states import Judged

ALL_STEPS = 0.95
"""Share of request steps that drafted above which steps without a draft are no matter: with fewer, the
drafter was silent or switched off in between, which is another finding."""
CLEARLY_SHORT = 0.25
"""Missing tokens per draft up to which a few cut drafts are the plain reading. Two draft lengths that take
turns miss as little only if the shorter one ran in a quarter of the steps or less."""


@dataclass(frozen=True, slots=True)
class _Short:
    """A window whose drafts were shorter, on average, than the longest of them."""

    draft_len: int
    missing: float
    """Draft tokens per draft."""


def of_drafts(view: EngineView, schedule: Schedule | None) -> Iterator[Finding]:
    """Report drafts that were cut short beyond what is passed over.

    Args:
        view: one engine.
        schedule: the table that ran, ``None`` where none was named or it was refuted.
    """
    refuted = view.held is not None and view.held.refuted
    if view.fingerprint.method in OPTIONAL_PROPOSALS or refuted:
        return
    short = _shortened(view.judged, schedule)
    if len(short) < SURE_WINDOWS:
        return
    worst = max(short, key=lambda one: one.missing)
    drafted = f"{worst.draft_len - worst.missing:.2f} of {worst.draft_len} draft tokens a draft"
    evidence = {
        "windows": len(short),
        "draft_len": worst.draft_len,
        "draft_tokens_per_draft": worst.draft_len - worst.missing,
    }
    where = f"in {counted(len(short), 'window')}, down to {drafted}"
    if schedule is not None:
        yield view.finding(
            "drafts_shortened",
            "info",
            f"drafts are shorter than the table says {where}, as if a grammar cut them: speed is measured at "
            "the table's draft length, acceptance at the first position only",
            **evidence,
        )
    elif worst.missing <= CLEARLY_SHORT:
        yield view.finding(
            "drafts_shortened",
            "warning",
            f"drafts are a little shorter than one draft length {where}, as if a grammar cut some: which "
            "draft length ran is not known; name the table that ran with --schedule",
            **evidence,
        )
    else:
        yield view.finding(
            "draft_lens_unknown",
            "warning",
            f"draft lengths take turns, drafts are cut short or the drafter proposes what it finds {where}: "
            "which lengths ran is not known; name the table that ran with --schedule, and n-gram or suffix "
            "drafters by drafter.method",
            **evidence,
        )


def drafts_are_cut(judged: Sequence[Judged], schedule: Schedule) -> bool:
    """Tell whether drafts miss tokens where the batch stays in one row of the table that ran.

    Then they do so where it crosses rows as well, and the mean there is no measure of their shares.
    """
    return len(_shortened(judged, schedule)) >= SURE_WINDOWS


def misses_tokens(one: Judged, schedule: Schedule | None) -> bool:
    """Tell whether a concluded window drafted fewer tokens than its one draft length asks for."""
    return _short(one, schedule) is not None


def _shortened(judged: Sequence[Judged], schedule: Schedule | None) -> list[_Short]:
    return [short for one in judged if (short := _short(one, schedule)) is not None]


def _short(one: Judged, schedule: Schedule | None) -> _Short | None:
    """Return by how much a window's drafts miss its draft length, ``None`` where they do not or it is off."""
    counts = one.raw.counts
    if one.state is not WindowState.GOOD or one.draft_len != MIX or not counts.drafts:
        return None
    if counts.drafts < ALL_STEPS * (counts.request_steps or 0.0):
        return None
    drafted = (counts.draft_tokens or 0.0) / counts.drafts
    if schedule is None:
        longest = max((i + 1 for i, count in enumerate(counts.accepted_by_position) if count), default=0)
    else:
        rows = visited_draft_lens(one.raw, schedule)
        longest = max(rows) if len(rows) == 1 else 0
    missing = longest - drafted
    return _Short(longest, missing) if missing > SHORT_DRAFT_TOKENS else None
