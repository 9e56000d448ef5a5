"""The daemon's work: one method for each job, and what they share. No threads and no clock of its own.

Who calls the jobs is a driver's matter, so the same service runs in production and in virtual time.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from tuner._exceptions import FencedError, StoreError
from tuner.daemon.beginning import Beginning
from tuner.daemon.book import JobBook
from tuner.daemon.deciding import ACTOR, Decider
from tuner.daemon.findings import STALLED_SECONDS, clock_stepped, failing, hung, not_pushed, stalled
from tuner.daemon.hanging import WATCHED_JOBS, Hangs
from tuner.daemon.jobs import JOBS, LEASE_TTL, RECALL_SECONDS, RENEWALS, Cadence
from tuner.daemon.notices import Notices
from tuner.daemon.publishing import Published, status_line
from tuner.daemon.reading import read_all
from tuner.daemon.remembering import Remembered
from tuner.daemon.trouble import Trouble
from tuner.daemon.wiring import wire
from tuner.daemon.writing import Writer
from tuner.observe.discovery import Roster, find_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tuner.config import Config
    from tuner.daemon.clock import SteadyClock
    from tuner.daemon.leader import Leader
    from tuner.daemon.logs import Logger
    from tuner.daemon.wiring import Parts, Wiring
    from tuner.fleet import Finding, Window
    from tuner.serve.snapshot import Snapshot

READ_SHARE = 0.8
"""Part of a cycle's interval that reading schedules back may take."""
EVENTS = 100
"""Events that wait for the audit trail; the oldest of more are dropped."""
DOUBTFUL_STEP = 600.0
"""Seconds of a step of the wall clock beyond which nothing is deleted for a while: a clock that is a month
ahead for a minute would make all windows look old. Ten minutes more or less change nothing about 6 h."""
DOUBT_SECONDS = 86_400.0
"""How long; a day of raw windows more takes five times the room of 6 h, and somebody has looked by then."""


class Service:
    """State and jobs. Each job may run beside every other, and none twice at the same time."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        clock: SteadyClock,
        leader: Leader,
        log: Logger,
        *,
        lease_ttl: float = LEASE_TTL,
        threaded: bool = True,
    ) -> None:
        """Wire the parts; nothing is asked of the world yet.

        Args:
            config: settings without fault.
            parts: makes what talks to the world.
            clock: time for everything.
            leader: decides whether this daemon works.
            log: where events go.
            lease_ttl: seconds of the lease, for the job that renews it.
            threaded: ask servers and write in threads of their own; without, everything happens inside
                the calls, in order.

        Raises:
            InputError: a part cannot be made of these settings.
            UnsupportedError: a pool names an engine that is not supported.
        """
        self._parts = parts
        self._clock = clock
        self._log = log
        self._lease_ttl = lease_ttl
        self._threaded = threaded
        self._reloading = threading.Lock()
        self._following = threading.RLock()
        self.leader = leader
        self.notices = Notices(clock.monotonic)
        self.trouble = Trouble(self.notices, log)
        self._told: tuple[Finding, ...] = ()
        self.book = JobBook([spec.name for spec in JOBS], clock.monotonic)
        self.remembered = Remembered(config.cycle.max_windows, config.cycle.half_life)
        self.decider = Decider(self.remembered, leader, self.trouble, log, clock.monotonic)
        self.writer = Writer(leader, self.notices, self.trouble, log)
        self.trouble.waiting = lambda: self.writer.waiting
        self.beginning = Beginning(self.remembered, self.decider, self.trouble, log, clock.monotonic)
        self._events: deque[tuple[str, dict[str, Any], str]] = deque(maxlen=EVENTS)
        self._hangs = Hangs(self.book, log)
        self._wiring = wire(config, parts, self.notices, parallel=threaded)
        self._shared: tuple[Finding, ...] = ()
        self._led = False
        self._ticked = clock.monotonic()
        self._stepped = -math.inf
        self._scraped = False
        self.alive: Callable[[str], None] = lambda _: None
        """Called with a line of status by the watch job while all goes well."""
        self.ailing: Callable[[str], None] = lambda _: None
        """The same while something hangs."""
        self.hasten: Callable[[str, float], None] = lambda _job, _due: None
        """Called with a job that is worth running earlier, and when."""
        self._published = Published(self, clock)

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._wiring.config

    @property
    def cadence(self) -> Cadence:
        """The intervals in force."""
        return Cadence.of(self.config, self._lease_ttl)

    @property
    def scraped(self) -> bool:
        """Whether a round of scrapes is over since this daemon leads."""
        return self._scraped

    @property
    def wiring(self) -> Wiring:
        """The parts in force."""
        return self._wiring

    @property
    def functions(self) -> Mapping[str, Callable[[float], None]]:
        """The job functions by name, as the table says."""
        return {spec.name: getattr(self, spec.function) for spec in JOBS}

    def view(self) -> Snapshot:
        """Return the newest snapshot; never waits."""
        return self._published.snapshot

    def publish(self) -> None:
        """Make a new snapshot of what is known now."""
        self._published.renew()

    def lead(self, _: float) -> None:
        """Take or renew the lease, and begin or end working with it."""
        self.leader.tick()
        if self.leader.problem:
            self.trouble.failed("lease", self.leader.problem, told=True)
        else:
            self.trouble.worked("lease")
        self._follow_lead()
        store, now = self.leader.store, self._clock.now()
        if store is not None and self._leads():
            if self.beginning.read(store, self.config, now, self._lease_ttl / RENEWALS):
                self.hasten("cycle", now + RECALL_SECONDS)
            self._record()
            self._fenced(
                lambda: self.decider.write_findings(self.findings(), now, only_news=True), "findings"
            )

    def discover(self, now: float) -> None:
        """Look for engines, in every pool."""
        if not self._leads():
            return
        wiring = self._wiring
        for pool in wiring.watched.values():
            self._take(pool.refresh(now))
            pool.forget(now)
        self._shared = find_shared({name: Roster(pool.targets) for name, pool in wiring.watched.items()})
        self.remembered.forget(now)

    def read_back(self, _: float) -> None:
        """Ask engines with an admin API which schedule they run."""
        if not self._leads():
            return
        wiring = self._wiring
        seconds = READ_SHARE * self.cadence.cycle
        read_all(wiring.readers, wiring.watched, self.notices, self._clock.now, seconds=seconds)

    def scrape(self, now: float) -> None:
        """Read every engine once, and hand on the windows that became final."""
        if not self._leads():
            return
        wiring = self._wiring
        for pool in wiring.watched.values():
            if pool.found is None:
                pool.refresh(now)
        gathered = wiring.gatherer.round(wiring.watched, now)
        self._told = tuple(gathered.told)
        for finding in gathered.new:
            self._log.info("noticed", code=finding.code, message=finding.message, **finding.subject)
        first, self._scraped = not self._scraped, True
        if first:
            self._log.info("first scrapes", status=self.status_line())
        if not self._leads():  # lost during the round: whoever leads now has scraped too
            return
        self._take(gathered.windows)
        self._follow_lead()

    def cycle(self, now: float) -> None:
        """Fit and plan every pool, and write down what came of it."""
        if not self._leads():
            return
        wiring = self._wiring
        not_pushed(self.notices, wiring.config.pools)
        observed = [finding for pool in wiring.watched.values() for finding in pool.findings]
        self.decider.cycle(wiring, now, observed, self._findings_elsewhere(), self._unread())
        self._follow_lead()

    def roll_up(self, now: float) -> None:
        """Sum windows by minute and hour."""
        store, fence = self.leader.store, self.leader.fence
        if store is not None and fence is not None:
            self._fenced(lambda: store.roll_up(now, fence=fence))

    def retain(self, now: float) -> None:
        """Delete what is older than the settings say, unless the clock that says so was just set."""
        if self._clock.monotonic() - self._stepped < DOUBT_SECONDS:
            self._log.info("nothing deleted, the clock was set less than a day ago")
            return
        store, fence, keep = self.leader.store, self.leader.fence, self.config.retention
        if store is not None and fence is not None:
            self._fenced(lambda: store.retain(now, keep.raw, keep.minute, keep.hour, fence=fence))

    def watch(self, _: float) -> None:
        """Give a sign of life, if a scrape and a cycle both ended within twice their interval."""
        (self.ailing if self.late() else self.alive)(self.status_line())

    def tick(self) -> float:
        """Look at the clock and at the jobs, as the main loop does each second.

        Returns:
            Seconds by which the wall clock was stepped, for the driver to follow; 0 if it was not.
        """
        step = self._clock.settle()
        if step:
            self._log.warning("clock stepped", seconds=round(step, 3))
            clock_stepped(self.notices, step)
            if abs(step) > DOUBTFUL_STEP:
                self._stepped = self._clock.monotonic()
            for pool in self._wiring.watched.values():
                pool.begin_anew()
        paused = self._since_tick()
        if paused > STALLED_SECONDS:
            self._log.warning("process stalled", seconds=round(paused, 1))
            stalled(self.notices, paused)
        self._hangs.tell_slow(self.cadence)
        hung(self.notices, self._hangs.hanging(self.cadence), self.functions, WATCHED_JOBS)
        late = self.late()
        failing(self.notices, self.book.errors(), self.functions)
        if step or bool(late) != bool(self.view().unhealthy):
            self.publish()
        return step

    def _since_tick(self) -> float:
        """Return seconds since the last look of the main loop."""
        last, self._ticked = self._ticked, self._clock.monotonic()
        return self._ticked - last

    def late(self) -> dict[str, float]:
        """Return the watched jobs that hang, and for how long."""
        hanging = self._hangs.hanging(self.cadence)
        return {name: seconds for name, seconds in hanging.items() if name in WATCHED_JOBS}

    def adopt(self, config: Config) -> None:
        """Take other settings; what did not change keeps its state.

        Raises:
            InputError: the settings cannot be used; those in force stay.
            UnsupportedError: likewise.
        """
        with self._reloading:
            before = self._wiring
            after = wire(config, self._parts, self.notices, parallel=self._threaded, before=before)
            now = self._clock.now()
            self.remembered.resize(config.cycle.max_windows, config.cycle.half_life, now)
            pools = {pool.name for pool in config.pools}
            for name in {pool.name for pool in before.config.pools} - pools:
                self.notices.clear_where("pool", name)
            for name in before.servers.keys() - after.servers.keys():
                self.notices.clear_where("source", name)
            self._wiring = after
            self.beginning.keep(pools)
            self.decider.forget(pools)
            self.remembered.keep(pools)
            if before.scraper is not after.scraper:
                before.scraper.close()
        self.publish()

    def reloaded(self, *, ok: bool) -> None:
        """Note whether settings that were read anew were taken."""
        self._published.reload_ok = ok
        if ok:
            self._published.loaded_at = self._clock.now()
            if self._leads():
                self._events.append(("reload", {}, ""))
        self.publish()

    def status_line(self) -> str:
        """Return how things stand, for ``systemctl status``."""
        return status_line(self)

    @property
    def role(self) -> str:
        """What this daemon does among those on its database."""
        if self.leader.store is None:
            return "waiting for the database"
        return "leading" if self.leader.fence is not None else "standing by"

    def not_ready(self) -> tuple[str, ...]:
        """Return why the daemon is not ready; empty if it is."""
        reasons = []
        if self.leader.store is None or (self.leader.problem and not self._leads()):
            reasons.append(self.leader.problem)
        elif self.leader.fence is not None and not self._scraped and self._wiring.watched:
            reasons.append("the first round of scrapes is not over")
        return tuple(reasons)

    def flush(self) -> None:
        """Take the windows that are open, as nothing will follow them."""
        if self._leads():
            for pool in self._wiring.watched.values():
                self._take(pool.flush(pool.targets))

    def _take(self, windows: Sequence[Window]) -> None:
        """Remember windows and have them written."""
        if windows:
            self.remembered.add(windows)
            self.writer.put(windows)

    def findings(self) -> tuple[Finding, ...]:
        """Return everything that is active: of the last cycle, of discovery, of the daemon."""
        return (*self.decider.findings, *self._findings_elsewhere())

    def _findings_elsewhere(self) -> tuple[Finding, ...]:
        found = [f for p in self._wiring.watched.values() if p.found is not None for f in p.found.findings]
        return (*self.notices.active(), *found, *self._told, *self._shared)

    def _leads(self) -> bool:
        return self.leader.fence is not None

    def _follow_lead(self) -> None:
        """Begin with what the database remembers, or stop at once, as the lease was taken or lost."""
        with self._following:
            leads, led, self._led = self._leads(), self._led, self._leads()
            if leads and not led:
                self._events.append(("lead", {"fence": self.leader.fence}, "the lease was free"))
            elif led and not leads:
                self._log.info("stopped writing", windows_waiting=self.writer.waiting)
                self.beginning.anew()
                self._events.clear()
                for pool in self._wiring.watched.values():
                    pool.begin_anew()
                    pool.statuses.clear()
                self._scraped = False
            if self.leader.followed:  # what waits was observed by the other one too
                self.leader.followed = not leads
                if dropped := self.writer.clear():
                    self._log.info("left to another daemon", windows_dropped=dropped)

    def _unread(self) -> frozenset[str]:
        """Return the pools whose past is in the database and not here yet."""
        if self.leader.store is None:  # a dry run
            return frozenset()
        return self.beginning.unread([pool.name for pool in self.config.pools])

    def _fenced(self, work: Callable[[], object], who: str = "jobs") -> bool:
        """Run a job on the database, and stand by if another daemon leads; return whether it was done."""
        try:
            work()
        except FencedError as error:
            self.leader.lost(str(error))
            self._follow_lead()
        except StoreError as error:
            self.trouble.failed(who, str(error))
        else:
            self.trouble.worked(who)
            return True
        return False

    def _record(self) -> None:
        """Add to the audit trail what happened since, if this daemon leads; what fails is tried again."""
        store = self.leader.store
        while store is not None and self._events:
            fence, (action, detail, why) = self.leader.fence, self._events[0]
            if fence is None:
                return
            add = partial(store.add_event, ACTOR, action, {}, why, detail, now=self._clock.now(), fence=fence)
            if not self._fenced(add):
                return
            self._events.popleft()
