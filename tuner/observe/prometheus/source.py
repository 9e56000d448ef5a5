"""A Prometheus (or what speaks its API) as a source of scrapes.

Raw samples are read by range selector, never rates or instant vectors: a rate hides restarts, an instant
vector repeats a value for five minutes after its engine is gone. Answers are the scrapes that the server
made, so that windows come out as if each engine had been scraped directly.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.observe.exposition import TimedScrape
from tuner.observe.outcomes import SourceError
from tuner.observe.prometheus import notices
from tuner.observe.prometheus.client import Access, Client
from tuner.observe.prometheus.fetch import Fetcher
from tuner.observe.prometheus.promql import raw_samples
from tuner.observe.prometheus.streams import (
    UP,
    ambiguous,
    choose,
    instance_of,
    match,
    read_series,
    read_streams,
    timed_scrapes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tuner.fleet import Finding, Target
    from tuner.observe.outcomes import Reading
    from tuner.observe.prometheus.fetch import Fetched
    from tuner.observe.prometheus.streams import Series, Stream

REPLICA_LABELS = ("prometheus_replica", "replica")
"""What the Prometheus operator and Thanos call the label that tells the servers of a pair apart."""
SHARE_OF_INTERVAL = 0.45
"""Largest share of the scrape interval that one round may take, under a half with what follows it."""
SETTLE = 2.0
"""Seconds until the newest scrape is read: VictoriaMetrics shows samples within one second of their scrape,
not all at once, and half a scrape would be a window without some of its counts."""
MOST_INTERVALS = 20
LEAST_SPAN = 300.0
"""After an outage, up to 20 intervals or five minutes are asked for, whichever is longer; what is older
stays unread, and the window over the hole is a baseline and nothing else."""
LOOKBACK = 300.0
"""Seconds for which a target is known after its last sample, as long as an instant query would."""
DOWN_AFTER = 300.0
"""Seconds of errors until ``metrics_source_down``."""
SLOW_SHARE = 0.5
"""Share of its time that a failed round must have used for the server to be left alone for as long again."""
UNREADABLE = "answer holds a sample that is none"
PATIENCE = 20
"""Incomplete scrapes of a target in a row that are refused, then taken for what there is."""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """What a metrics server told about targets; targets without news are left out."""

    scraped: Mapping[Target, tuple[TimedScrape, ...]] = field(default_factory=dict)
    """By time; a scrape that failed is its error. No scrape is handed out twice."""
    warnings: tuple[str, ...] = ()
    partial: bool = False
    error: SourceError | None = None
    """Why nothing is told; ``scraped`` is empty then, which says nothing about the targets."""
    findings: tuple[Finding, ...] = ()


class PrometheusSource:
    """One metrics server. Nothing it does raises; its URL is shown without credentials."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        bearer_token_file: Path | None = None,
        username: str | None = None,
        password_file: Path | None = None,
        ca_file: Path | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
        replica_labels: Iterable[str] = REPLICA_LABELS,
        scrape_interval: float,
        settle: float = SETTLE,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Describe the server; nothing is sent yet.

        Args:
            name: what findings call it.
            url: base address; a path before ``/api`` is kept.
            bearer_token_file: file with a token, read at each use.
            username: for basic authentication, with ``password_file``.
            password_file: file with the password, read at each use.
            ca_file: certificates to trust in place of the system's.
            headers: sent with each request, such as ``X-Scope-OrgID``.
            timeout: seconds that one call may take in all, retries included.
            replica_labels: labels that tell the servers of a pair apart.
            scrape_interval: seconds between rounds; no call takes half of it.
            settle: seconds by which a scrape must be old to be read.
            monotonic: clock of deadlines and of how long the server has been down.
            sleep: waits between tries.
        """
        self.name = name
        access = Access(url, bearer_token_file, username, password_file, ca_file, dict(headers or {}))
        self._shown = access.shown
        self._client = Client(access, monotonic=monotonic, sleep=sleep)
        self._fetcher = Fetcher(self._client)
        self._replicas = tuple(replica_labels)
        self._interval = scrape_interval
        self._settle = settle
        self._seconds = min(timeout, SHARE_OF_INTERVAL * scrape_interval)
        self._monotonic = monotonic
        self._down_since: float | None = None
        self._reason = ""
        self._taken: dict[Target, float] = {}
        self._answered: dict[Target, float] = {}
        self._kept: dict[Target, frozenset[tuple[str, str]]] = {}
        self._told: dict[Target, tuple[int, int]] = {}

    def __repr__(self) -> str:
        """Show name and address, nothing secret."""
        return f"PrometheusSource({self.name}, {self._shown})"

    @property
    def up(self) -> bool:
        """Whether the last question was answered, an empty answer included; true before the first."""
        return self._down_since is None

    def targets(self, selector: str, now: float) -> tuple[dict[str, str], ...] | SourceError:
        """Return the labels of every target under a selector, up or down.

        Read from the samples of ``up`` in the last five minutes, which every server behind this API has, and
        which name a target that does not answer. Replica labels are taken off.
        """
        query = raw_samples({UP}, selector, LOOKBACK)
        answer = self._client.raw_samples(query, now, self._deadline())
        self._note(answer)
        if isinstance(answer, SourceError):
            return answer
        found: dict[frozenset[tuple[str, str]], dict[str, str]] = {}
        for series in answer.series:
            labels = {
                k: str(v) for k, v in series["metric"].items() if k not in ("__name__", *self._replicas)
            }
            found.setdefault(frozenset(labels.items()), labels)
        return tuple(sorted(found.values(), key=lambda labels: sorted(labels.items())))

    def value(self, promql: str, now: float) -> Reading:
        """Return one number, or why there is none; see ``observe.outcomes``."""
        reading = self._client.value(promql, now, self._deadline())
        self._note(reading)
        return reading

    def series(
        self, names: frozenset[str], selector: str, since: float, until: float
    ) -> tuple[Series, ...] | SourceError:
        """Return raw samples of any series, under all of its labels: GPU metrics, say.

        Args:
            names: sample names.
            selector: label matchers, such as ``job="dcgm"``.
            since: unix seconds; at most 20 intervals before ``until`` are read.
            until: unix seconds now.
        """
        start = max(since, until - max(MOST_INTERVALS * self._interval, LEAST_SPAN))
        if until <= start:
            return ()
        answer = self._client.raw_samples(
            raw_samples(names, selector, until - start + self._interval), until, self._deadline()
        )
        out: list[Series] = []
        if not isinstance(answer, SourceError):
            try:
                out = list(read_series(answer.series, self._replicas, start))
            except (ValueError, TypeError, LookupError):
                answer = SourceError(UNREADABLE, retryable=False)
        self._note(answer)
        return answer if isinstance(answer, SourceError) else tuple(out)

    def scrapes(
        self, targets: Sequence[Target], selector: str, wanted: frozenset[str], since: float, until: float
    ) -> SourceAnswer:
        """Return the scrapes of ``targets`` that were not handed out before.

        Args:
            targets: whose scrapes; matched by labels, or by address against ``instance``.
            selector: label matchers of the pool, such as ``job="vllm"``.
            wanted: sample names.
            since: unix seconds; for a target that is asked for the first time, or not since before this time,
                older scrapes are left out. Give the ``until`` of the last call that was answered: then a
                server that lags loses nothing.
            until: unix seconds now.
        """
        end = until - self._settle
        oldest = end - max(MOST_INTERVALS * self._interval, LEAST_SPAN)
        for target in targets:
            if self._answered.get(target, -math.inf) < since:
                self._taken[target] = max(self._taken.get(target, since), since)
        start = max(oldest, min((self._taken[target] for target in targets), default=since))
        if not targets or end <= start:
            self._answered.update(dict.fromkeys(targets, until))
            return SourceAnswer(findings=self.findings())
        deadline = self._deadline()
        instances = sorted({instance_of(target) for target in targets})
        # One interval more, since from Prometheus 3 on a range leaves its left edge out.
        span = (start - self._interval, end)
        fetched = self._fetcher.fetch(wanted | {UP}, selector, instances, span, deadline)
        found = self._sorted(fetched, targets)
        if fetched.error is not None:
            if deadline - self._monotonic() < SLOW_SHARE * self._seconds:
                # Other pools ask the same server in this round, and would wait as long.
                self._client.rest(self._seconds, fetched.error.reason)
            return SourceAnswer(error=fetched.error, findings=self.findings())
        return self._answer(targets, selector, fetched, found, (oldest, end), until)

    def _sorted(self, fetched: Fetched, targets: Sequence[Target]) -> dict[Target, list[Stream]]:
        """Return the streams of each target; an answer that cannot be read becomes an error."""
        found: dict[Target, list[Stream]] = {}
        if fetched.error is None:
            try:
                found = match(read_streams(fetched.series, self._replicas), targets)
            except (ValueError, TypeError, LookupError):
                fetched.error = SourceError(UNREADABLE, retryable=False)
        self._note(fetched.error)
        return found

    def _answer(
        self,
        targets: Sequence[Target],
        selector: str,
        fetched: Fetched,
        found: Mapping[Target, list[Stream]],
        bounds: tuple[float, float],
        until: float,
    ) -> SourceAnswer:
        """Turn streams into scrapes that are new, and say what was noticed."""
        scraped: dict[Target, tuple[TimedScrape, ...]] = {}
        doubled: dict[Target, tuple[str, ...]] = {}
        own_times: list[Target] = []
        self._answered.update(dict.fromkeys(targets, until))
        for target, streams in found.items():
            stream = choose(streams, self._kept.get(target))
            self._kept[target] = stream.identity()
            scrapes, off = timed_scrapes(stream, self.name)
            after = max(self._taken[target], bounds[0])
            new = [one for one in scrapes if after < one.time <= bounds[1]]
            if new:
                self._taken[target] = new[-1].time
                scraped[target] = tuple(self._whole(target, one, partial=fetched.partial) for one in new)
            if differing := ambiguous(streams, self._replicas):
                doubled[target] = differing
            if off:
                own_times.append(target)
        self._forget(bounds[0])
        pool = targets[0].pool
        noticed = [*self.findings()]
        if fetched.partial:
            noticed.append(notices.partial(self.name, pool, fetched.warnings))
        elif missing := [
            target
            for target in targets
            if target not in found and instance_of(target) not in fetched.too_large
        ]:
            noticed.append(notices.missing(self.name, pool, selector, missing))
        if fetched.too_large:
            noticed.append(notices.too_large(self.name, pool, fetched.too_large))
        if doubled:
            noticed.append(notices.doubled(self.name, pool, doubled))
        if own_times:
            noticed.append(notices.own_times(self.name, pool, own_times))
        return SourceAnswer(scraped, tuple(fetched.warnings), fetched.partial, None, tuple(noticed))

    def findings(self) -> tuple[Finding, ...]:
        """Return what is wrong with the server itself."""
        if self._down_since is None:
            return ()
        seconds = self._monotonic() - self._down_since
        return (notices.source_down(self.name, seconds, self._reason),) if seconds >= DOWN_AFTER else ()

    def _whole(self, target: Target, scrape: TimedScrape, *, partial: bool) -> TimedScrape:
        """Refuse a scrape that lacks series which the target told before, where the answer was partial.

        A counter of which a part is missing reads lower than it is, and nothing would show it.
        """
        if isinstance(scrape.result, InputError):
            return scrape
        count = len(scrape.result.samples)
        known, refused = self._told.get(target, (0, 0))
        if partial and count < known and refused < PATIENCE:
            self._told[target] = known, refused + 1
            why = f"{self.name} told {count} of {known} series of this scrape"
            return TimedScrape(scrape.time, InputError(why))
        self._told[target] = count, 0
        return scrape

    def _deadline(self) -> float:
        return self._monotonic() + self._seconds

    def _note(self, outcome: object) -> None:
        """Keep since when the server has been down; an empty or undefined answer is an answer."""
        if not isinstance(outcome, SourceError):
            self._down_since, self._reason = None, ""
            return
        self._reason = outcome.reason
        if self._down_since is None:
            self._down_since = self._monotonic()

    def _forget(self, oldest: float) -> None:
        """Drop targets that nothing was told about for an hour."""
        for target in [target for target, time_ in self._taken.items() if time_ < oldest - 3600.0]:
            del self._taken[target]
            self._answered.pop(target, None)
            self._kept.pop(target, None)
            self._told.pop(target, None)
