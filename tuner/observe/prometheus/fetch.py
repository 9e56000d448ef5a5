"""Raw samples of many targets in as few requests as the server allows.

A server refuses a query over its limits however often it is asked, so the query is made smaller: half the
targets, down to one, then half the time. What worked is remembered, or every round would begin with a
refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.observe.outcomes import SourceError
from tuner.observe.prometheus.client import TooLargeError
from tuner.observe.prometheus.promql import raw_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.observe.prometheus.client import Client

SHORTEST_SPAN = 2.0
"""Seconds below which a range is not halved again: a scrape each second would still be in it."""
MOST_REQUESTS = 64
"""Requests of one round and pool: 1000 targets in groups of 16."""
GROW_AFTER = 20
"""Rounds after which a group of twice the size is tried again; limits are changed by people, in hours."""


@dataclass(slots=True)
class Fetched:
    """What came of one round of queries."""

    series: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    partial: bool = False
    too_large: list[str] = field(default_factory=list)
    """Instances that are refused even alone and for a short time."""
    error: SourceError | None = None


@dataclass(slots=True)
class Fetcher:
    """Asks for samples and remembers how much one server answers at once."""

    client: Client
    _group: dict[str, int] = field(default_factory=dict)
    _rounds: dict[str, int] = field(default_factory=dict)

    def fetch(
        self,
        names: frozenset[str],
        selector: str,
        instances: Sequence[str],
        span: tuple[float, float],
        deadline: float,
    ) -> Fetched:
        """Return the raw samples of ``names`` in ``span``, both ends unix seconds.

        The first error ends the round: half an answer would read as engines that are gone.
        """
        out = Fetched()
        group = self._group.get(selector)
        if group is not None:
            self._rounds[selector] = self._rounds.get(selector, 0) + 1
            if self._rounds[selector] % GROW_AFTER == 0:
                group *= 2
        parts: list[Sequence[str] | None] = [None]
        if group is not None and group < len(instances):
            parts = [instances[i : i + group] for i in range(0, len(instances), group)]
        stack = [(part, span) for part in reversed(parts)]
        budget = MOST_REQUESTS
        largest = 0
        while stack and out.error is None:
            part, (start, end) = stack.pop()
            if budget == 0:
                out.error = SourceError(
                    f"more than {MOST_REQUESTS} requests needed for one round", retryable=False
                )
                break
            budget -= 1
            query = raw_samples(names, selector, end - start, part)
            answer = self.client.raw_samples(query, end, deadline)
            if isinstance(answer, TooLargeError):
                smaller = _smaller(instances if part is None else part, (start, end))
                if not smaller:
                    out.too_large += part if part is not None else instances
                stack += reversed(smaller)
                self._group.setdefault(selector, max(1, len(instances)))
            elif isinstance(answer, SourceError):
                out.error = answer
            else:
                out.series += answer.series
                out.warnings += (text for text in answer.warnings if text not in out.warnings)
                out.partial = out.partial or answer.partial
                largest = max(largest, len(instances) if part is None else len(part))
        if selector in self._group and largest:
            self._group[selector] = largest
        return out


def _smaller(
    instances: Sequence[str], span: tuple[float, float]
) -> list[tuple[Sequence[str], tuple[float, float]]]:
    """Return two questions in place of one, none where it cannot be made smaller."""
    start, end = span
    if len(instances) > 1:
        half = len(instances) // 2
        return [(instances[:half], span), (instances[half:], span)]
    if end - start < 2 * SHORTEST_SPAN or not instances:
        return []
    middle = (start + end) / 2
    return [(instances, (start, middle)), (instances, (middle, end))]
