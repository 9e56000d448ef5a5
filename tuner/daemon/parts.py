"""The real parts: what talks to engines, metrics servers and discovery endpoints, made of settings."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner.daemon.reading import AdminReader
from tuner.engines import get_engine
from tuner.observe.discovery import Directory, EnginesSpec
from tuner.observe.live import LiveWindows
from tuner.observe.prometheus import PrometheusSource
from tuner.observe.scraping import Scraper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx2

    from tuner.config import Config, Pool
    from tuner.daemon.clock import SteadyClock
    from tuner.daemon.ports import Live, Reader, Server
    from tuner.fleet import Fingerprint, Target
    from tuner.observe.outcomes import SourceError
    from tuner.observe.prometheus import SourceAnswer
    from tuner.observe.prometheus.streams import Series
    from tuner.vocabulary import Vocabulary

HTTP_SECONDS = 5.0
"""Time that a discovery endpoint or an admin API gets."""


class RealParts:
    """Makes parts; connections are shared by those that ask the same kind of thing."""

    def __init__(self, clock: SteadyClock) -> None:
        """Take the clock that scrapes are dated by."""
        self._clock = clock
        self._client: httpx2.Client | None = None

    def scraper(self, config: Config) -> Scraper:
        """Return what reads engines."""
        scrape = config.scrape
        return Scraper(
            timeout=scrape.timeout,
            interval=scrape.interval,
            concurrency=scrape.concurrency,
            max_bytes=scrape.max_body,
            clock=self._clock.now,
        )

    def server(self, config: Config, name: str) -> LockedServer:
        """Return one metrics server."""
        source = next(each for each in config.sources.prometheus if each.name == name)
        return LockedServer(
            PrometheusSource(
                source.name,
                source.url,
                bearer_token_file=source.bearer_token_file,
                username=source.username,
                password_file=source.password_file,
                ca_file=source.ca_file,
                headers=source.headers,
                timeout=source.timeout,
                replica_labels=source.replica_labels,
                scrape_interval=config.scrape.interval,
            )
        )

    def directory(self, config: Config, pool: Pool, servers: Mapping[str, Server]) -> Directory:
        """Return what finds the engines of a pool.

        Raises:
            InputError: the template of admin addresses cannot be used.
        """
        engines, way = pool.engines, pool.engines.prometheus
        spec = EnginesSpec(
            pool.name,
            static=engines.static,
            file_sd=engines.file_sd,
            http_sd=engines.http_sd,
            prometheus=None if way is None else servers[way.source],
            selector="" if way is None else way.selector,
            metrics_path=engines.metrics_path,
            identity_labels=engines.identity,
            admin_url_template=None if pool.admin is None else pool.admin.url_template,
        )
        return Directory(spec, self._http(), interval=config.discovery.interval, timeout=HTTP_SECONDS)

    def vocabulary(self, pool: Pool) -> Vocabulary:
        """Return the metric names of a pool's kind of engine.

        Raises:
            UnsupportedError: there is no such engine.
        """
        return get_engine(pool.engine).vocabulary

    def live(self, config: Config, pool: Pool, vocabulary: Vocabulary, fingerprint: Fingerprint) -> Live:
        """Return what turns scrapes of a pool into windows."""
        way = pool.engines.prometheus
        direct = way is None or way.read == "direct"
        return LiveWindows(
            vocabulary,
            pool=pool.name,
            fingerprint=fingerprint,
            # A metrics server scrapes at an interval of its own, which its samples tell.
            interval=config.scrape.interval if direct else None,
            max_routes=pool.routes.max,
        )

    def reader(self, pool: Pool) -> Reader | None:
        """Return what asks engines which schedule they run; ``None`` where no admin API is configured."""
        return None if pool.admin is None else AdminReader(self._http(), pool.admin.token_file)

    def close(self) -> None:
        """Close the connections that directories and readers share; they can ask nothing any more."""
        if self._client is not None:
            self._client.close()

    def _http(self) -> httpx2.Client:
        if self._client is None:
            import httpx2  # noqa: PLC0415 - 0.1 s that commands without network do not pay

            self._client = httpx2.Client(timeout=HTTP_SECONDS, follow_redirects=False, trust_env=False)
        return self._client


class LockedServer:
    """A metrics server that several pools and jobs ask, one after the other."""

    def __init__(self, source: PrometheusSource) -> None:
        self._source = source
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the source in the settings."""
        return self._source.name

    @property
    def up(self) -> bool:
        """Whether it answered last."""
        return self._source.up

    def targets(self, selector: str, now: float, /) -> tuple[dict[str, str], ...] | SourceError:
        """Return the label sets of the engines that it scrapes."""
        with self._lock:
            return self._source.targets(selector, now)

    def series(
        self, names: frozenset[str], selector: str, since: float, until: float
    ) -> tuple[Series, ...] | SourceError:
        """Return raw samples of any series."""
        with self._lock:
            return self._source.series(names, selector, since, until)

    def scrapes(
        self, targets: Sequence[Target], selector: str, wanted: frozenset[str], since: float, until: float
    ) -> SourceAnswer:
        """Return the samples that are new."""
        with self._lock:
            return self._source.scrapes(targets, selector, wanted, since, until)
