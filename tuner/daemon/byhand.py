"""The daemon's work done once, by hand: some rounds of scrapes and one cycle. What ``tuner once`` runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner._exceptions import InputError, StoreError
from tuner.daemon.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.config import Config
    from tuner.daemon.clock import SteadyClock
    from tuner.daemon.leader import Leader
    from tuner.daemon.logs import Logger
    from tuner.daemon.wiring import Parts


def observe_and_decide(
    config: Config,
    parts: Parts,
    clock: SteadyClock,
    leader: Leader,
    log: Logger,
    *,
    rounds: int,
    progress: Callable[[int, int], None] = lambda _number, _engines: None,
    wait: Callable[[float], object] | None = None,
) -> Service:
    """Scrape every engine ``rounds`` times, an interval apart, then fit and plan; release the lease.

    Args:
        config: settings without fault.
        parts: makes what talks to the world.
        clock: time for everything.
        leader: with the database, or without for a dry run.
        log: where events go.
        rounds: how often; windows need two at least.
        progress: called before each round with its number and the engines there are.
        wait: waits for seconds; sleeps by default.

    Returns:
        The service, for its decision and its snapshot; it does nothing more.

    Raises:
        InputError: a part cannot be made of these settings, or a daemon works on this database.
        StoreError: the database cannot be used.
        UnsupportedError: a pool names an engine that is not supported.
    """
    service = Service(config, parts, clock, leader, log)
    begun = clock.monotonic()
    pause = threading.Event().wait if wait is None else wait
    try:
        service.lead(clock.now())
        _refuse_to_share(leader)
        service.discover(clock.now())
        service.read_back(clock.now())
        engines = sum(len(pool.targets) for pool in service.wiring.watched.values())
        for number in range(rounds):
            progress(number, engines)
            pause(max(0.0, begun + number * config.scrape.interval - clock.monotonic()))
            service.lead(clock.now())
            service.scrape(clock.now())
        service.cycle(clock.now())
        service.publish()
    finally:
        leader.release()
        service.wiring.scraper.close()
        parts.close()
    return service


def _refuse_to_share(leader: Leader) -> None:
    """Leave a database alone that a daemon works on."""
    if leader.problem:
        raise StoreError(leader.problem)
    if leader.fence is None:
        raise InputError(
            "a daemon works on this database: ask it with tuner status, or leave the database alone "
            "with --dry-run"
        )
