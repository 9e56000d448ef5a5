"""Settings read anew, on SIGHUP or by ``POST /-/reload``: all of them are taken, or none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tuner._exceptions import TunerError
from tuner.daemon.drive import describe
from tuner.daemon.findings import reload_failed, reloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tuner.config import Config
    from tuner.daemon.clock import SteadyClock
    from tuner.daemon.drive import Driver
    from tuner.daemon.logs import Logger
    from tuner.daemon.notify import Notifier
    from tuner.daemon.service import Service

SHOWN = 20
"""Settings that a line of the log names."""


class Reloader:
    """Reads the file and hands its settings to the service; one at a time."""

    def __init__(
        self,
        file: Path,
        service: Service,
        driver: Driver,
        clock: SteadyClock,
        notifier: Notifier,
        log: Logger,
        load: Callable[[Path], Config] | None = None,
    ) -> None:
        """Take where settings are read from and who must know; ``load`` is for tests."""
        self._file = file
        self._service = service
        self._driver = driver
        self._clock = clock
        self._notifier = notifier
        self._log = log
        self._load = load
        self._lock = threading.Lock()
        self._started_with = service.config

    def reload(self) -> str | None:
        """Take the settings as they are in the file now.

        Returns:
            Why they were not taken, one line; ``None`` if they were.
        """
        with self._lock:
            self._notifier.reloading()
            error = self._reload()
            self._service.reloaded(ok=error is None)
            self._notifier.ready(self._service.status_line())
            return error

    def _reload(self) -> str | None:
        from tuner.config import load_config  # noqa: PLC0415 - pydantic costs 0.2 s

        try:
            config = (self._load or load_config)(self._file)
            before, old = self._service.cadence, self._service.config
            self._service.adopt(config)
        except (TunerError, OSError, ValueError) as error:
            text = describe(error)
            self._log.error("settings not reloaded, the old ones stay", error=text)
            reload_failed(self._service.notices, text)
            return text
        if self._service.cadence != before:
            self._driver.reschedule(self._service.cadence, self._clock.now())
        restart = needs_restart(self._started_with, config)
        reloaded(self._service.notices, restart)
        changed = changed_settings(old, config)
        self._log.info(
            "settings reloaded",
            changed=f"{', '.join(changed[:SHOWN])}{' and more' * (len(changed) > SHOWN)}" or "nothing",
            needs_restart=", ".join(restart) or None,
        )
        return None


def changed_settings(old: Config, new: Config) -> tuple[str, ...]:
    """Return the dotted names of the settings that differ, never what they are; pools and servers by name."""
    return tuple(sorted(set(_differing(old.model_dump(), new.model_dump(), ""))))


def _differing(old: object, new: object, name: str) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            if isinstance(key, str) and key.isidentifier():
                yield from _differing(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
            else:
                yield name  # keys that the operator made up, such as headers
        return
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        befores, afters = (_by_name(entries) for entries in (old, new))
        if befores and afters:
            for key in {**befores, **afters}:
                yield from _differing(befores.get(key), afters.get(key), f"{name}[{key}]")
            return
    yield name


def _by_name(entries: Sequence[object]) -> dict[str, object]:
    """Return sections of a list by their names; none where it is a list of something else."""
    named: dict[str, object] = {
        str(entry["name"]): entry for entry in entries if isinstance(entry, dict) and "name" in entry
    }
    return named if len(named) == len(entries) else {}


def needs_restart(old: Config, new: Config) -> tuple[str, ...]:
    """Return the settings that differ and that only a restart takes."""
    pairs = {
        "store.url": (old.store.url, new.store.url),
        "store.password_file": (old.store.password_file, new.store.password_file),
        "web.listen": (old.web.listen, new.web.listen),
        "web.config_file": (old.web.config_file, new.web.config_file),
        "web.token_file": (old.web.token_file, new.web.token_file),
        "web.enable_lifecycle": (old.web.enable_lifecycle, new.web.enable_lifecycle),
    }
    return tuple(name for name, (before, after) in pairs.items() if before != after)
