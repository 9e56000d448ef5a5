"""The cycle: what is remembered -> fits, findings, proposed schedules, in memory and in the database."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner._exceptions import FencedError, StoreError
from tuner.cycle import State, run_once
from tuner.daemon.notices import key_of
from tuner.daemon.proposing import Proposer
from tuner.daemon.records import fit_records
from tuner.fleet import Schedule, WindowState
from tuner.observe.wording import counted
from tuner.serve.snapshot import ScheduleStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tuner.config import Pool
    from tuner.cycle import Decision, PoolDecision, PoolSettings
    from tuner.daemon.leader import Leader
    from tuner.daemon.logs import Logger
    from tuner.daemon.notices import Key
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
        self._proposer = Proposer()
        self._written: frozenset[Key] | None = None
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
        self._proposer.forget(pool)
        self._written = None

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
            decision = run_once(look.evidence, self._state(wiring, settings), look.now)
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

    def write_findings(self, found: Iterable[Finding], now: float, *, only_news: bool = False) -> None:
        """Write down what is active, if this daemon leads.

        Args:
            found: everything that is active; of equal code and subject the last counts.
            now: unix seconds.
            only_news: not where the same ones were written last.

        Raises:
            FencedError: another daemon leads.
            StoreError: the database failed.
        """
        store, fence = self._leader.store, self._leader.fence
        active = {key_of(finding): finding for finding in found}
        if store is None or fence is None or (only_news and self._written == active.keys()):
            return
        store.record_findings(list(active.values()), now=now, fence=fence)
        self._written = frozenset(active)

    def _state(self, wiring: Wiring, settings: Mapping[str, PoolSettings]) -> State:
        """Return what stays from cycle to cycle: settings, what engines run, and what was proposed last."""
        told = self._of_state(ACTIVE)
        running = {name: pool.running(told.get(name)) for name, pool in wiring.watched.items()}
        active = {name: schedule for name, schedule in running.items() if schedule is not None}
        return State(settings, active=active, proposed=self._of_state(PROPOSED))

    def _of_state(self, state: str) -> dict[str, Schedule]:
        """Return the version of each pool that is in a state."""
        return {pool: held.schedule for (pool, kind), held in self._schedules.items() if kind == state}

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
        guards = {name: (pool.guard.tie, pool.guard.dwell) for name, pool in pools.items()}
        advised = {name: guard for name, guard in guards.items() if pools[name].mode != "observe"}
        try:
            for one in decision.pools:
                records = fit_records(one, wiring.source_of(one.pool))
                ids = store.save_decision(records, now=now, fence=fence) if records else ()
                # Without news a plan only drifts as old evidence loses weight: the one that stands is better.
                news = any(w.end > seen for w in one.windows if w.state is WindowState.GOOD)
                news &= one.pool not in unread
                if not news or one.pool not in advised:
                    continue
                standing, (tie, dwell) = self._schedules.get((one.pool, PROPOSED)), advised[one.pool]
                wanted = self._proposer.wanted(one, standing, tie=tie, dwell=dwell, now=now)
                if wanted is not None:
                    self._propose(store, one, wanted, ids, now, fence)
            self.write_findings((*self.findings, *elsewhere), now)
        except FencedError as error:
            self._leader.lost(str(error))
        except StoreError as error:
            self._trouble.failed("cycle", str(error))
        else:
            self._trouble.worked("cycle")

    def _propose(
        self, store: Store, one: PoolDecision, schedule: Schedule, ids: Sequence[int], now: float, fence: int
    ) -> None:
        why = f"cycle over {counted(len(one.windows), 'window')}"
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
