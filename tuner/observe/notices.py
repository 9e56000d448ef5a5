"""What the making of windows noticed: findings about scrapes, series and engines."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from tuner._exceptions import ExpositionError, InputError
from tuner.fleet import Finding, WindowState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tuner.fleet import Fingerprint, Schedule, Vocabulary
    from tuner.observe.evidence import RawWindow
    from tuner.observe.exposition import TimedScrape
    from tuner.observe.snapshots import Group
    from tuner.observe.states import Judged
    from tuner.observe.units import StepUnits

STUCK_WINDOWS = 4
"""Windows without a token at a running gauge above 0 (a minute at 15 s): no prefill takes as long."""
SHOWN = 5


def of_scrapes(outcomes: Sequence[TimedScrape]) -> list[Finding]:
    """Report scrapes that failed and series that were told twice."""
    findings = []
    errors = [(time, result) for time, result in outcomes if isinstance(result, InputError)]
    if errors:
        reasons = Counter(e.reason if isinstance(e, ExpositionError) else "unreadable" for _, e in errors)
        findings.append(
            Finding(
                "scrape_invalid",
                "warning",
                f"{len(errors)} of {len(outcomes)} scrapes cannot be used: {errors[0][1]}",
                {},
                {"count": len(errors), "scrapes": len(outcomes), "reasons": dict(reasons),
                 "first_at": errors[0][0]},
            )
        )  # fmt: skip
    scrapes = [result for _, result in outcomes if not isinstance(result, InputError)]
    findings.extend(
        _told_twice("series_repeated", "with one value: kept once", [s.repeated for s in scrapes])
    )
    findings.extend(
        _told_twice(
            "series_contradicted", "with different values: left out", [s.contradicted for s in scrapes]
        )
    )
    return findings


def _told_twice(code: str, how: str, keys: Iterable[Sequence[object]]) -> Iterator[Finding]:
    """Report series that occur twice in one body."""
    counted = Counter(str(getattr(key, "name", key)) for some in keys for key in some)
    if counted:
        name = counted.most_common(1)[0][0]
        yield Finding(
            code,
            "warning",
            f"{name} stands twice in one scrape {how}; look for a proxy that joins two bodies",
            {},
            {"series": dict(counted.most_common(SHOWN))},
        )


def of_group(
    group: Group,
    judged: Sequence[Judged],
    units: StepUnits,
    subject: Mapping[str, str],
    vocabulary: Vocabulary,
    known: Fingerprint,
    schedule: Schedule | None,
) -> list[Finding]:
    """Report what was noticed about one engine."""
    del group, judged, units, subject, vocabulary, known, schedule
    return []


def visited_draft_lens(window: RawWindow, schedule: Schedule) -> frozenset[int]:
    """Return the draft lengths of the rows whose batch sizes a window may have visited.

    Requests that come and go at random spread the batch by its square root; two of those, and what
    the gauges say, bound it. A row too many only costs information, one too few would be a bias.
    """
    centre = window.occupancy or 1.0
    ends = [gauge for gauge in window.running if gauge]
    spread = 2 * math.sqrt(centre)
    low = max(1, math.floor(min([centre - spread, *ends])))
    high = min(schedule.max_batch, math.ceil(max([centre + spread, *ends])))
    return frozenset(row.draft_len for row in schedule.ranges if row.first <= high and row.last >= low)


__all__ = ["WindowState", "of_group", "of_scrapes", "visited_draft_lens"]
