"""The process around the service: signals, the main loop, systemd, and an end within ten seconds."""

from __future__ import annotations

import os
import resource
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.daemon.clock import SteadyClock, SystemClock
from tuner.daemon.drive import ApschedulerDriver, Runner
from tuner.daemon.jobs import LEASE_TTL
from tuner.daemon.leader import Leader
from tuner.daemon.notify import Notifier
from tuner.daemon.opening import OpenedHistory, opener
from tuner.daemon.reload import Reloader
from tuner.daemon.service import Service
from tuner.daemon.signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tuner.config import Config
    from tuner.daemon.logs import Logger
    from tuner.daemon.wiring import Parts
    from tuner.serve.server import WebServer

TICK_SECONDS = 1.0
"""Time between two looks at the clock and the jobs: a stepped clock stops scrapes for that long at most."""
JOBS_SECONDS = 3.0
FLUSH_SECONDS = 3.0
RELEASE_SECONDS = 1.5
WEB_SECONDS = 1.0
"""What a clean stop waits for running jobs, waiting windows, the lease and answers in progress: 8.5 s
together, and 1 s more for the web server, of the ten that are promised. What has not ended by then is left
behind: scrapes are given up, and a window that was not written is missing."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    config_file: Path
    listen: tuple[str, ...] = ()
    """Addresses that outvote ``web.listen``."""
    web_config_file: Path | None = None
    """Outvotes ``web.config_file``."""
    enable_lifecycle: bool = False
    """Switches ``web.enable_lifecycle`` on."""
    lease_ttl: float = LEASE_TTL


class Daemon:
    """One run of the daemon, from start to end."""

    def __init__(
        self,
        config: Config,
        options: Options,
        parts: Callable[[SteadyClock], Parts],
        log: Logger,
        signals: Signals | None = None,
    ) -> None:
        """Wire everything; nothing is opened, bound or asked yet.

        Args:
            config: settings without fault.
            options: what the command line says.
            parts: makes what talks to the world.
            log: where events go.
            signals: held since before the settings were read; otherwise they are from :meth:`run` on.

        Raises:
            InputError: settings that no part can be made of; a listener that would let strangers in.
            UnsupportedError: a pool names an engine that is not supported.
        """
        self._log = log
        self.clock = SteadyClock(SystemClock())
        self.notifier = Notifier(os.environ, self.clock.monotonic, os.getpid())
        holder = f"{socket.gethostname()}:{os.getpid()}"
        self.leader = Leader(opener(config), holder, options.lease_ttl, self.clock.monotonic, log)
        self._parts = parts(self.clock)
        self.service = Service(config, self._parts, self.clock, self.leader, log, lease_ttl=options.lease_ttl)
        book = self.service.book
        runner = Runner(self.service.functions, self.clock, book, log, self.service.publish)
        self.driver = ApschedulerDriver(runner.run, book)
        self.reloader = Reloader(
            options.config_file, self.service, self.driver, self.clock, self.notifier, log
        )
        self.webs = self._make_webs(config, options)
        self.service.alive = self.notifier.alive
        self.service.ailing = self.notifier.status
        self.service.hasten = self.driver.hasten
        self._signals = signals
        self.clean = True
        """Whether everything ended that was going; false leaves threads behind."""

    def run(self) -> int:
        """Run until a signal says to end; return the exit code.

        Raises:
            InputError: an address cannot be bound.
        """
        raise_file_limit()
        signals = self._signals
        if signals is None:
            signals = Signals()
            signals.hold()
        try:
            for web in self.webs:
                web.start()
            self.service.writer.start()
            self.service.book.begin()
            self.driver.start(self.service.cadence, self.clock.now())
            self._loop(signals)
            return self._end()
        finally:
            signals.give_back()

    def _loop(self, signals: Signals) -> None:
        """Look at the clock and the jobs each second, and do what signals ask."""
        told = False
        while not signals.ending:
            signals.wait(TICK_SECONDS)
            if signals.hangup:
                signals.hangup = False
                self.reloader.reload()
            step = self.service.tick()
            if step:
                self.driver.shift(step, self.clock.now())
            if not told and self.leader.asked:
                told = True
                self.notifier.ready(self.service.status_line())
                self._log.info("started", role=self.service.role, pools=len(self.service.config.pools))

    def _end(self) -> int:
        """End in order, each step with a time of its own."""
        self._log.info("ending")
        self.notifier.stopping("writing what waits")
        self.driver.stop()
        clean = self._jobs_end()
        leads = self.leader.fence is not None
        if leads:
            if clean:  # a job that goes on may hold what is flushed
                self.service.flush()
            clean &= self.service.writer.stop(FLUSH_SECONDS)
        clean &= within(RELEASE_SECONDS, self.leader.release)
        for web in self.webs:
            clean &= web.stop(WEB_SECONDS)
        clean &= within(WEB_SECONDS, self._close_parts)
        if self.leader.store is not None:
            clean &= within(WEB_SECONDS, self.leader.store.close)
        self.clean = clean
        self._log.info("ended", clean=clean, windows_not_written=self.service.writer.waiting)
        return 0

    def _close_parts(self) -> None:
        """Drop connections to engines, servers and discovery."""
        self.service.wiring.scraper.close()
        self._parts.close()

    def _jobs_end(self) -> bool:
        """Wait for running jobs, as long as there is time."""
        pause = threading.Event()
        deadline = self.clock.monotonic() + JOBS_SECONDS
        while running := self.service.book.running():
            if self.clock.monotonic() >= deadline:
                self._log.warning("jobs left behind", jobs=", ".join(running))
                return False
            pause.wait(0.05)
        return True

    def _make_webs(self, config: Config, options: Options) -> list[WebServer]:
        """Return a server for each address; they share users and certificates, not an app."""
        from tuner.serve.app import build_app  # noqa: PLC0415 - starlette and uvicorn cost 0.2 s
        from tuner.serve.live import LiveWebConfig  # noqa: PLC0415
        from tuner.serve.server import WebServer  # noqa: PLC0415
        from tuner.serve.webconfig import read_web_config  # noqa: PLC0415

        path = options.web_config_file or config.web.config_file
        auth = None if path is None else LiveWebConfig(read_web_config(path))
        lifecycle = options.enable_lifecycle or config.web.enable_lifecycle
        return [
            WebServer(
                build_app(
                    self.service.view,
                    auth=auth,
                    token_file=config.web.token_file,
                    reload=self.reloader.reload if lifecycle else None,
                    history=OpenedHistory(self.leader),
                ),
                listen,
                auth,
            )
            for listen in (options.listen or (config.web.listen,))
        ]


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: each engine keeps a connection.

    The usual soft limit of 1 024 is for programs that use ``select``, which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems have a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Do something that may hang; return whether it ended in time. It is left behind if it did not."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def leave(daemon: Daemon, code: int) -> None:
    """End the process here if something hangs: on a normal way out Python joins the threads of all pools.

    It does so for daemon threads too (``concurrent.futures``), so which of them are is not asked.
    """
    if daemon.clean and not daemon.service.book.running():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
