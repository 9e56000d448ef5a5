"""The snapshot that every request is answered from, made anew after each job."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner import __version__
from tuner.daemon.deciding import ACTIVE
from tuner.daemon.gathering import servers_up
from tuner.daemon.watching import statuses_of
from tuner.observe.wording import counted
from tuner.serve.snapshot import PoolStatus, Snapshot

if TYPE_CHECKING:
    from tuner.daemon.clock import SteadyClock
    from tuner.daemon.service import Service


class Published:
    """Holds the newest snapshot; readers take it without waiting."""

    def __init__(self, service: Service, clock: SteadyClock) -> None:
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock.now()
        self.loaded_at = clock.now()
        """When settings were last taken."""
        self.reload_ok = True
        """Whether the last attempt to read settings succeeded."""
        self.snapshot = Snapshot(at=self._started, started_at=self._started, version=__version__)

    def renew(self) -> None:
        """Make a snapshot of what is known now."""
        with self._lock:
            self.snapshot = self._made()

    def _made(self) -> Snapshot:
        service, now = self._service, self._clock.now()
        wiring, decider = service.wiring, service.decider
        return Snapshot(
            at=now,
            started_at=self._started,
            version=__version__,
            leader=service.leader.sure,
            fence=service.leader.fence or 0,
            not_ready=service.not_ready(),
            unhealthy=tuple(f"job {name} hangs" for name in service.late()),
            config_loaded_at=self.loaded_at,
            config_reload_ok=self.reload_ok,
            pools=tuple(
                PoolStatus(
                    pool.name,
                    pool.mode,
                    pool.engine,
                    len(wiring.watched[pool.name].targets) if pool.name in wiring.watched else 0,
                    service.remembered.held(pool.name),
                )
                for pool in wiring.config.pools
            ),
            targets=statuses_of(wiring.watched),
            sources_up=_sources_up(service),
            windows_total=service.remembered.counted(),
            decision=decider.decision,
            findings=service.findings(),
            schedules=decider.schedules,
            stage_seconds=decider.stage_seconds,
            jobs=service.book.statuses(),
            buffered=service.writer.overdue,
            dropped_total=service.writer.dropped,
            series_state=sum(pool.series_state for pool in wiring.watched.values()),
            observed=service.remembered.observed(now),
            drift=_drift(service),
            running={
                (name, engine): schedule
                for name, watched in wiring.watched.items()
                for engine, schedule in watched.read.items()
            },
        )


def status_line(service: Service) -> str:
    """Return how things stand in a line, as ``systemctl status`` shows it."""
    statuses = statuses_of(service.wiring.watched)
    up = sum(status.up for status in statuses)
    engines, pools = counted(len(statuses), "engine"), counted(len(service.config.pools), "pool")
    seen = f"{up} of {engines} up in {pools}" if service.scraped else f"no engine asked yet in {pools}"
    waiting = counted(service.writer.waiting, "window")
    findings = counted(len(service.view().findings), "finding")
    late = "".join(f"; {name} hangs" for name in service.late())
    return f"{service.role}; {seen}; {waiting} to be written; {findings}{late}"


def _sources_up(service: Service) -> dict[str, bool]:
    """Return every source that something is read from, and whether it answered last."""
    wiring = service.wiring
    up = servers_up(wiring.servers)
    up["store"] = not service.leader.problem and not service.trouble.errors
    for name, pool in wiring.watched.items():
        if pool.found is not None:
            up[f"discovery:{name}"] = all(pool.found.sources_up.values())
        if answers := pool.answers:
            up[f"scrape:{name}"] = any(status.up for status in answers)
    return up


def _drift(service: Service) -> dict[tuple[str, str], bool]:
    """Return (pool, engine) -> whether it runs another table than the active one; the known alone."""
    active = {s.pool: s.schedule for s in service.decider.schedules if s.state == ACTIVE}
    return {
        (name, engine): schedule != active[name]
        for name, pool in service.wiring.watched.items()
        if name in active
        for engine, schedule in pool.read.items()
    }
