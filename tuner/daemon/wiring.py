"""One configuration as running parts; a reload makes another of the same parts where nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tuner.daemon.gathering import Gatherer
from tuner.daemon.watching import Watched
from tuner.fleet import Fingerprint
from tuner.pool_settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.config import Config, Pool
    from tuner.daemon.notices import Notices
    from tuner.daemon.ports import Directory, Live, Reader, Scraper, Server
    from tuner.vocabulary import Vocabulary


class Parts(Protocol):
    """Makes the parts that talk to the world; tests make others."""

    def scraper(self, config: Config) -> Scraper:
        """Return what reads engines."""

    def server(self, config: Config, name: str) -> Server:
        """Return one metrics server."""

    def directory(self, config: Config, pool: Pool, servers: Mapping[str, Server]) -> Directory:
        """Return what finds the engines of a pool."""

    def vocabulary(self, pool: Pool) -> Vocabulary:
        """Return the metric names of a pool's kind of engine.

        Raises:
            UnsupportedError: there is no such engine.
        """

    def live(self, config: Config, pool: Pool, vocabulary: Vocabulary, fingerprint: Fingerprint) -> Live:
        """Return what turns scrapes of a pool into windows."""

    def reader(self, pool: Pool) -> Reader | None:
        """Return what asks engines which schedule they run; ``None`` where no admin API is configured."""

    def close(self) -> None:
        """Drop connections that the parts share."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a job takes at its beginning and uses to its end, whatever is reloaded meanwhile."""

    config: Config
    scraper: Scraper
    servers: Mapping[str, Server]
    gatherer: Gatherer
    watched: Mapping[str, Watched]
    readers: Mapping[str, Reader]
    """By pool."""

    def source_of(self, pool: str) -> str:
        """Return where a pool's samples come from, as fits are marked with it."""
        settings = self.config.pool(pool).engines.prometheus
        if settings is None or settings.read == "direct":
            return "direct"
        return f"prometheus:{settings.source}"


def wire(
    config: Config, parts: Parts, notices: Notices, *, parallel: bool, before: Wiring | None = None
) -> Wiring:
    """Make what ``config`` asks for, and keep of ``before`` what it asks for still.

    Raises:
        InputError: a part cannot be made of these settings; ``before`` is as it was.
        UnsupportedError: a pool names an engine that is not supported.
    """
    old = None if before is None else before.config
    scraper = before.scraper if before and old and old.scrape == config.scrape else parts.scraper(config)
    servers = {
        source.name: (
            before.servers[source.name]
            if before and old and source in old.sources.prometheus and old.scrape == config.scrape
            else parts.server(config, source.name)
        )
        for source in config.sources.prometheus
    }
    watched = {
        pool.name: _watch(pool, config, parts, servers, before.watched.get(pool.name) if before else None)
        for pool in config.pools
        if pool.engines.named
    }
    same = before is not None and before.scraper is scraper and before.servers == servers
    gatherer = (
        before.gatherer
        if before is not None and same
        else Gatherer(scraper, servers, notices, interval=config.scrape.interval, parallel=parallel)
    )
    gatherer.forget(watched)
    readers = {pool.name: reader for pool in config.pools if (reader := parts.reader(pool)) is not None}
    return Wiring(config, scraper, servers, gatherer, watched, readers)


def _watch(
    pool: Pool, config: Config, parts: Parts, servers: Mapping[str, Server], before: Watched | None
) -> Watched:
    """Return a pool as it is watched: as before where it is found and read as before."""
    settings = settings_of(pool, config.cycle.half_life)
    source = pool.engines.prometheus.source if pool.engines.prometheus is not None else None
    server = None if source is None else servers[source]
    alike = (
        before is not None and before.interval == config.scrape.interval and _seen_alike(before.pool, pool)
    )
    if before is not None and alike:
        found_alike = (before.pool.engines, before.pool.admin) == (pool.engines, pool.admin)
        if not found_alike or before.server is not server:
            before.directory = parts.directory(config, pool, servers)
            before.server = server
        before.pool, before.settings = pool, settings
        return before
    vocabulary = parts.vocabulary(pool)
    fingerprint = fingerprint_of(pool)
    made = Watched(
        pool,
        settings,
        vocabulary,
        parts.directory(config, pool, servers),
        lambda: parts.live(config, pool, vocabulary, fingerprint),
        config.scrape.interval,
    )
    made.server = server
    return made


def _seen_alike(old: Pool, new: Pool) -> bool:
    """Whether windows of two settings of a pool mean the same."""
    return (
        old.engine == new.engine
        and old.startup == new.startup
        and old.routes == new.routes
        and old.gpu == new.gpu
        and fingerprint_of(old) == fingerprint_of(new)
    )


def fingerprint_of(pool: Pool) -> Fingerprint:
    """Return what the settings know of the set-up of a pool's engines."""
    return Fingerprint(
        engine=pool.engine,
        method=pool.drafter.method if pool.drafter is not None else "",
        hardware=pool.hardware.name if pool.hardware is not None else "",
    )
