"""One round of scrapes: engines asked directly and servers that hold their samples, at the same time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.daemon.gpus import ORIGIN
from tuner.daemon.watching import error_of
from tuner.observe.gpu import EXPORTER_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.daemon.notices import Notices
    from tuner.daemon.ports import Answer, Answered, Scraper, Server
    from tuner.daemon.watching import Watched
    from tuner.fleet import Finding, Target, Window
    from tuner.observe.windows import WindowSet

SERVER_SHARE = 0.8
"""Part of a scrape interval after which a round goes on without a server that has not answered; what comes
later is read in the next round."""
FIRST_READ = 4.0
"""Scrape intervals that are read from a server at first: the least that gives windows at once where a scrape
is missing."""


@dataclass(slots=True)
class _Errand:
    """A question to one server about one pool, in a thread of its own."""

    pool: str
    targets: tuple[Target, ...]
    until: float
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answered | None = None
    taken: bool = False
    """Whether the answer was read: one that comes after its round is read in the next."""


@dataclass(slots=True)
class Gathered:
    """What came of one round."""

    windows: list[Window] = field(default_factory=list)
    new: list[Finding] = field(default_factory=list)
    """What was not noticed of an engine before this round."""
    told: list[Finding] = field(default_factory=list)
    """What metrics servers noticed of themselves and of what they hold."""
    asked: int = 0
    """Engines that were asked, or asked about."""
    failed: int = 0

    def add(self, seen: WindowSet) -> None:
        """Take what became of the scrapes of one engine."""
        self.windows += seen.windows
        self.new += seen.findings


class Gatherer:
    """Asks and sorts; one round at a time."""

    def __init__(
        self,
        scraper: Scraper,
        servers: Mapping[str, Server],
        notices: Notices,
        *,
        interval: float,
        parallel: bool,
    ) -> None:
        """Take who is asked.

        Args:
            scraper: reads engines.
            servers: metrics servers by name.
            notices: where servers that are down are told of.
            interval: seconds between two rounds.
            parallel: ask servers in threads of their own; without, one after the other.
        """
        self._scraper = scraper
        self._servers = servers
        self._notices = notices
        self._interval = interval
        self._parallel = parallel
        self._errands: dict[str, _Errand] = {}
        self._read_until: dict[str, float] = {}
        self._direct: dict[str, bool] = {}

    def round(self, watched: Mapping[str, Watched], now: float) -> Gathered:
        """Ask every engine of every pool once, or the server that scrapes it."""
        out = Gathered()
        direct: list[Target] = []
        asked: list[_Errand] = []
        for name, pool in watched.items():
            by_server, others = self._split(pool)
            self._change_source(pool, direct=not by_server)
            direct += [*others, *pool.gpus.targets]
            if by_server:
                asked += self._send(name, pool, by_server, now)
        if direct:
            self._scrape(watched, direct, out)
        for errand in asked:
            if errand.done.wait(SERVER_SHARE * self._interval):
                errand.taken = True
                self._take(watched, errand, out)
            else:
                self._late(watched[errand.pool])
        for name, pool in watched.items():
            self._judge(pool)
            if pool.pool.gpu is not None:
                self._fill(name, pool, now, out)
        return out

    def _fill(self, name: str, watched: Watched, now: float, out: Gathered) -> None:
        """Put what GPUs did into the windows of their pool."""
        gpu = watched.pool.gpu
        if gpu is not None and gpu.prometheus is not None:
            source = gpu.prometheus.source
            if why := watched.gpus.read(self._servers[source], now):
                self._server_down(source, why)
        filled = iter(watched.gpus.fill([w for w in out.windows if w.pool == name], watched.targets, now))
        out.windows = [next(filled) if window.pool == name else window for window in out.windows]

    def forget(self, pools: Mapping[str, Watched]) -> None:
        """Drop what is held for pools that are gone."""
        for name in self._direct.keys() - pools.keys():
            del self._direct[name]
            self._errands.pop(name, None)
            self._read_until.pop(name, None)

    def _split(self, watched: Watched) -> tuple[tuple[Target, ...], list[Target]]:
        """Return the engines that a server is asked about, and those that are scraped."""
        way = watched.pool.engines.prometheus
        if way is None or way.read == "direct":
            return (), list(watched.targets)
        server = self._servers[way.source]
        if way.fallback and not server.up:
            # The server itself is still asked by discovery, which notices when it is back.
            return (), list(watched.targets)
        origin = f"prometheus:{way.source}"
        by_server = tuple(target for target in watched.targets if target.origin == origin)
        return by_server, [target for target in watched.targets if target.origin != origin]

    def _change_source(self, watched: Watched, *, direct: bool) -> None:
        """Begin anew where samples come from another place: their times and labels are another's."""
        name = watched.pool.name
        if watched.targets and self._direct.setdefault(name, direct) is not direct:
            self._direct[name] = direct
            self._read_until.pop(name, None)
            watched.begin_anew()

    def _scrape(self, watched: Mapping[str, Watched], targets: Sequence[Target], out: Gathered) -> None:
        round_ = self._scraper.round(targets, lambda target: _wanted(watched, target))
        for answer in round_.scraped:
            pool = watched[answer.target.pool]
            if answer.target.origin == ORIGIN:
                pool.gpus.take(answer.target, answer.scrape)
                self._exporter(answer)
                continue
            pool.answered(answer.target, answer.scrape.time, answer.seconds, answer.error)
            out.failed += bool(answer.error)
            out.add(pool.take(answer.target, (answer.scrape,)))
        out.asked += len(targets)

    def _exporter(self, answer: Answer) -> None:
        """Say whether an exporter answers."""
        source = answer.target.engine
        if answer.error:
            self._down(source, f"{source} cannot be read: {answer.error}")
        else:
            self._notices.clear("source_down", {"source": source})

    def _send(self, name: str, watched: Watched, targets: tuple[Target, ...], now: float) -> list[_Errand]:
        """Ask a server about a pool, unless its last answer is still awaited; return what is to be read."""
        way = watched.pool.engines.prometheus
        assert way is not None
        pending = self._errands.get(name)
        if pending is not None and not pending.done.is_set():
            self._late(watched)
            return []
        late = [] if pending is None or pending.taken else [pending]
        errand = self._errands[name] = _Errand(name, targets, now)
        server = self._servers[way.source]
        since = self._read_until.get(name, now - FIRST_READ * self._interval)

        def ask() -> None:
            try:
                errand.answer = server.scrapes(targets, way.selector, watched.wanted, since, now)
            finally:
                errand.done.set()

        if self._parallel:
            threading.Thread(target=ask, name=f"server-{way.source}", daemon=True).start()
        else:
            ask()
        return [*late, errand]

    def _take(self, watched: Mapping[str, Watched], errand: _Errand, out: Gathered) -> None:
        """Sort a server's answer."""
        pool, answer = watched[errand.pool], errand.answer
        way = pool.pool.engines.prometheus
        assert way is not None
        out.asked += len(errand.targets)
        if answer is None or answer.error is not None:
            why = "it raised an error" if answer is None else str(answer.error)
            out.failed += len(errand.targets)
            self._server_down(way.source, why)
            return
        self._notices.clear("source_down", {"source": way.source})
        out.told += answer.findings
        self._read_until[errand.pool] = errand.until
        here = set(pool.targets)
        for target in (target for target in errand.targets if target in here):
            scrapes = tuple(answer.scraped.get(target, ()))
            if scrapes:
                error = error_of(scrapes[-1])
                pool.answered(target, scrapes[-1].time, 0.0, error)
                out.add(pool.take(target, scrapes))

    def _late(self, watched: Watched) -> None:
        way = watched.pool.engines.prometheus
        assert way is not None
        self._server_down(way.source, f"no answer within {SERVER_SHARE * self._interval:g} s")

    def _server_down(self, source: str, why: str) -> None:
        self._down(
            source,
            f"metrics server {source} cannot be read: {why}. The last schedule stands; what was missed is "
            "read when it is back.",
        )

    def _down(self, source: str, message: str) -> None:
        self._notices.note("source_down", "info", message, {"source": source})

    def _judge(self, watched: Watched) -> None:
        """Say which engines do not answer."""
        subject = {"pool": watched.pool.name}
        finding = watched.unreachable()
        if finding is None:
            self._notices.clear("engines_unreachable", subject)
        else:
            self._notices.add([finding], None)


def _wanted(watched: Mapping[str, Watched], target: Target) -> frozenset[str]:
    return EXPORTER_NAMES if target.origin == ORIGIN else watched[target.pool].wanted


def servers_up(servers: Mapping[str, Server]) -> dict[str, bool]:
    """Return which metrics servers answered last."""
    return {name: server.up for name, server in servers.items()}
