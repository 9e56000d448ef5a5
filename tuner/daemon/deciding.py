"""The cycle: what is remembered -> fits, findings, proposed schedules, in memory and in the database."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner._exceptions import FencedError, StoreError
from tuner.cycle import State, run_once
from tuner.daemon.records import fit_records
from tuner.fleet import Schedule, WindowState
from tuner.serve.snapshot import ScheduleStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tuner.config import Pool
    from tuner.cycle import Decision, PoolDecision
    from tuner.daemon.leader import Leader
    from tuner.daemon.logs import Logger
    from tuner.daemon.remembering import Remembered
    from tuner.daemon.trouble import Trouble
    from tuner.daemon.wiring import Wiring
    from tuner.fleet import Finding
    from tuner.store import ScheduleRecord, Store

ACTOR = "tuner"
"""Who did what the daemon does by itself, in the audit trail."""
PROPOSED, ACTIVE = "proposed", "active"


class Decider:
    """Runs cycles, and keeps the last good schedule of each pool whatever a later one says."""

    def __init__(
        self,
        remembered: Remembered,
        leader: Leader,
        trouble: Trouble,
        log: Logger,
        monotonic: Callable[[], float],
    ) -> None:
        self._remembered = remembered
        self._leader = leader
        self._trouble = trouble
        self._log = log
        self._monotonic = monotonic
        self._runs: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._schedules: dict[tuple[str, str], ScheduleStatus] = {}
        self._looked = -math.inf
        self.decision: Decision | None = None
        """The last cycle."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the last cycle noticed."""
        decision = self.decision
        if decision is None:
            return ()
        return (*(f for pool in decision.pools for f in pool.findings), *decision.findings)

    @property
    def schedules(self) -> tuple[ScheduleStatus, ...]:
        """Versions in force or proposed, newest first."""
        return tuple(sorted(self._schedules.values(), key=lambda s: (-s.created_at, s.pool, s.state)))

    @property
    def stage_seconds(self) -> dict[str, tuple[int, float]]:
        """Stage of a cycle -> (runs, seconds in all)."""
        return {stage: (runs, float(self._seconds[stage])) for stage, runs in list(self._runs.items())}

    def restore(self, store: Store, pool: str) -> None:
        """Take the open schedules of a pool from the database; one that knows none takes away none.

        Raises:
            StoreError: it cannot be read.
        """
        held = [record for record in store.schedules(pool) if record.state in {PROPOSED, ACTIVE}]
        if held:
            self._schedules = {key: one for key, one in self._schedules.items() if key[0] != pool}
        for record in held:
            self._keep(record)

    def forget(self, pools: Collection[str]) -> None:
        """Drop what is held for pools that are gone."""
        self._schedules = {key: held for key, held in self._schedules.items() if key[0] in pools}
        if (decision := self.decision) is not None:
            self.decision = replace(decision, pools=tuple(p for p in decision.pools if p.pool in pools))

    def cycle(
        self,
        wiring: Wiring,
        now: float,
        observed: Sequence[Finding],
        elsewhere: Sequence[Finding],
        unread: Collection[str] = (),
    ) -> None:
        """Fit and plan all pools as of ``now`` and save what came of it.

        Args:
            wiring: the parts in force.
            now: unix seconds.
            observed: findings made while scrapes were turned into windows.
            elsewhere: findings of discovery and of the daemon, to be saved with those of the cycle.
            unread: pools whose past was not read from the database yet; nothing is proposed for them.
        """
        pools = {pool.name: pool for pool in wiring.config.pools}
        with self._timed("observe"):
            look = self._remembered.look(pools, now, observed)
        settings = {name: watched.settings for name, watched in wiring.watched.items()}
        with self._timed("decide"):
            decision = run_once(look.evidence, State(settings, active=self._active(pools)), look.now)
        self.decision = decision
        seen, self._looked = self._looked, look.now
        with self._timed("store"):
            self._save(decision, pools, wiring, now, elsewhere, seen, unread)
        self._log.debug(
            "cycle",
            pools=len(decision.pools),
            schedules=sum(isinstance(pool.schedule, Schedule) for pool in decision.pools),
            findings=len(self.findings),
        )

    def _active(self, pools: Mapping[str, Pool]) -> dict[str, Schedule]:
        """Return what runs, or was proposed last: another schedule must beat it by more than chance."""
        active = {name: pool.startup for name, pool in pools.items() if pool.startup is not None}
        for state in (PROPOSED, ACTIVE):
            active |= {pool: held.schedule for (pool, kind), held in self._schedules.items() if kind == state}
        return active

    def _save(
        self,
        decision: Decision,
        pools: Mapping[str, Pool],
        wiring: Wiring,
        now: float,
        elsewhere: Sequence[Finding],
        seen: float,
        unread: Collection[str],
    ) -> None:
        """Write fits, proposals and findings; a database that fails loses this cycle's record, no more."""
        store, fence = self._leader.store, self._leader.fence
        if store is None or fence is None:
            return
        try:
            for one in decision.pools:
                records = fit_records(one, wiring.source_of(one.pool))
                ids = store.save_decision(records, now=now, fence=fence) if records else ()
                # Without news a plan only drifts as old evidence loses weight: the one that stands is better.
                news = any(w.end > seen for w in one.windows if w.state is WindowState.GOOD)
                news &= one.pool not in unread
                if news and isinstance(one.schedule, Schedule) and pools[one.pool].mode != "observe":
                    self._propose(store, one, one.schedule, ids, now, fence)
            store.record_findings(_one_each((*self.findings, *elsewhere)), now=now, fence=fence)
        except FencedError as error:
            self._leader.lost(str(error))
        except StoreError as error:
            self._trouble.failed("cycle", str(error))
        else:
            self._trouble.worked("cycle")

    def _propose(
        self, store: Store, one: PoolDecision, schedule: Schedule, ids: Sequence[int], now: float, fence: int
    ) -> None:
        why = f"cycle over {len(one.windows)} windows"
        record = store.propose_schedule(
            one.pool, schedule, state=PROPOSED, why=why, fit_ids=ids, now=now, fence=fence
        )
        before = self._schedules.get((one.pool, record.state))
        if before is None or before.version != record.version:
            self._log.info(
                "schedule proposed", pool=one.pool, version=record.version, schedule=schedule.as_lists()
            )
            detail = {"version": record.version, "number": record.number, "schedule": schedule.as_lists()}
            store.add_event(ACTOR, "propose", {"pool": one.pool}, why, detail, now=now, fence=fence)
        self._keep(record)

    def _keep(self, record: ScheduleRecord) -> None:
        self._schedules[record.pool, record.state] = ScheduleStatus(
            record.pool, record.version, record.state, record.schedule, record.created_at
        )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begun = self._monotonic()
        try:
            yield
        finally:
            self._runs[stage] += 1
            self._seconds[stage] += self._monotonic() - begun  # type: ignore[assignment]  # a Counter of floats


def _one_each(findings: Iterable[Finding]) -> list[Finding]:
    """Return one finding for each code and subject, the last."""
    return list({(f.code, tuple(sorted(f.subject.items()))): f for f in findings}.values())
