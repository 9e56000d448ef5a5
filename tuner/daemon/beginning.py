"""What an earlier daemon learnt, taken from the database when the lead is taken or a pool is added."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner._exceptions import StoreError
from tuner.fleet import POOLED_ROUTE
from tuner.recall.recall import LIFETIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tuner.config import Config
    from tuner.daemon.deciding import Decider
    from tuner.daemon.logs import Logger
    from tuner.daemon.remembering import Remembered
    from tuner.daemon.trouble import Trouble
    from tuner.store import Store


class Beginning:
    """Knows which pools' past was read since the lead was taken; nothing is proposed for the others."""

    def __init__(
        self,
        remembered: Remembered,
        decider: Decider,
        trouble: Trouble,
        log: Logger,
        monotonic: Callable[[], float],
    ) -> None:
        self._remembered = remembered
        self._decider = decider
        self._trouble = trouble
        self._log = log
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._read: frozenset[str] = frozenset()

    def unread(self, pools: Collection[str]) -> frozenset[str]:
        """Return those of some pools whose past is not known yet."""
        return frozenset(pools) - self._read

    def anew(self) -> None:
        """Forget what was read: another daemon may write from now on."""
        with self._lock:
            self._read = frozenset()

    def keep(self, pools: Collection[str]) -> None:
        """Forget pools that are gone: one of that name that comes later is read again."""
        with self._lock:
            self._read &= frozenset(pools)

    def read(self, store: Store, config: Config, now: float, seconds: float) -> bool:
        """Read what is not known yet; a database that fails is asked again by the next call.

        Args:
            store: the database.
            config: settings in force.
            now: unix seconds.
            seconds: after so many the rest is left to the next call, as the lease must be renewed.

        Returns:
            Whether there were windows.
        """
        begun, some = self._monotonic(), False
        try:
            for pool in config.pools:
                if pool.name in self._read:
                    continue
                since = now - LIFETIMES * config.cycle.half_life
                windows = store.spread_windows(pool.name, since, now, config.cycle.max_windows)
                self._decider.restore(store, pool.name)
                self._remembered.restore(windows)
                with self._lock:
                    self._read |= {pool.name}
                some |= bool(windows)
                of_engines = sum(window.route == POOLED_ROUTE for window in windows)
                routes = len(windows) - of_engines
                self._log.info("remembered", pool=pool.name, windows=of_engines, windows_of_routes=routes)
                if self._monotonic() - begun > seconds:
                    break
        except StoreError as error:
            self._trouble.failed("memory", str(error))
        else:
            self._trouble.worked("memory")
        return some
