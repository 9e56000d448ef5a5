"""Rounds of direct scrapes: every engine once, side by side, each for itself.

A round ends in time whatever engines do. What one engine does wrong is an error for that engine, and one
that keeps failing is asked less and less often, up to every five minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import resource
import threading
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NoResult
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from tuner._exceptions import ExpositionError, InputError
from tuner.addresses import DEFAULT_PORTS, split_url
from tuner.observe.exposition import MAX_BODY_BYTES, TimedScrape, parse
from tuner.observe.fetching import DaemonLookups, Fetcher, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from concurrent.futures import Future

    from tuner.fleet import Target
    from tuner.observe.exposition import Scrape
    from tuner.observe.fetching import Origin

LONGEST_BACKOFF = 300.0
"""Seconds between two tries of an engine that stays down: it is seen again five minutes later at most."""
STARTS_PER_SECOND = 500.0
"""Scrapes begun a second: 1 000 engines are spread over 2 s, three over 6 ms."""
SPREAD_SHARE = 0.1
"""Share of the interval that starts are spread over at most, so that a round leaves time for the next."""
PATIENCE = 1.0
"""Seconds after which a scrape gives its place to the next one and goes on beside it: 64 engines that hang
would otherwise hold every place until their time-out, and the rest would wait for them."""
ROUND_SHARE = 0.9
"""Share of the interval that a round may take at most."""
SLACK_PER_ENGINE = 0.003
"""Seconds that a round may take for each engine's work, three times what it takes on an idle core."""
GRACE = 5.0
"""Seconds that the event loop may be late, with a dozen bodies of 16 MiB to read at the end of a round."""
IDLE_CHECK = 6.0
"""Seconds after a round when connections are looked at: uvicorn, under vLLM, closes idle ones after 5."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """What came of one engine in a round."""

    target: Target
    scrape: TimedScrape
    """Its time is when the answer began to arrive; its result is an error where there was none to use."""
    seconds: float
    """From the start of the request to the last byte; 0 where it was not begun."""
    error: str
    """One line with address and remedy; empty if the scrape is good."""


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one round."""

    scraped: tuple[Scraped, ...]
    """One for each target that was due, in the order given."""
    backing_off: tuple[Target, ...]
    """Targets left out because they failed before."""
    seconds: float


@dataclass(slots=True)
class _Health:
    """How a target did lately."""

    failures: int = 0
    wait: int = 0
    """Rounds to leave out."""


class Scraper:
    """Scrapes engines in rounds; one round at a time.

    Rounds are counted, not seconds, to know when a failing engine is due again: after the n-th failure in
    a row 2^(n-1) - 1 rounds are left out, up to five minutes' worth, by up to a quarter fewer so that
    engines that failed together do not return together. A single failure leaves out none.
    """

    def __init__(
        self,
        *,
        timeout: float,
        interval: float,
        clock: Callable[[], float],
        concurrency: int = 64,
        max_bytes: int = MAX_BODY_BYTES,
        seed: int = 0,
    ) -> None:
        """Start nothing yet.

        Args:
            timeout: seconds for one scrape: name, connection, headers and body together.
            interval: seconds between rounds; bounds the round and its spread, and scales the back-off.
            clock: unix seconds, asked when an answer begins to arrive.
            concurrency: scrapes side by side.
            max_bytes: longest body, unpacked.
            seed: moves the starts of engines within a round.
        """
        self._timeout = timeout
        self._interval = interval
        self._concurrency = concurrency
        self._clock = clock
        self._seed = seed
        self._most_wait = max(0, int(LONGEST_BACKOFF / interval) - 1)
        self._health: dict[str, _Health] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # half of the descriptors: the rest is for scrapes in flight, the database and listeners
        self._fetcher = Fetcher(clock, min(max_bytes, MAX_BODY_BYTES), most_idle=files // 2)
        self._loop: DaemonLookups | None = None
        self._thread: threading.Thread | None = None
        self._running: Future[None] | None = None

    def round(self, targets: Sequence[Target], wanted: Callable[[Target], frozenset[str]]) -> Round:
        """Scrape every target that is due.

        Args:
            targets: all that there are; what is not among them is forgotten.
            wanted: the sample names to read of a target, the same object each time if possible.

        Returns:
            Results in at most ``min(0.9 * interval, 1.5 * timeout + spread + 3 ms * targets)`` seconds,
            where the spread is ``min(interval / 10, 2 ms * targets)``. Never raises for what an engine does.
        """
        begun = monotonic()
        due, backing_off = self._due(targets)
        run = _Run(self._fetcher, self._clock, self._timeout, asyncio.Semaphore(self._concurrency), wanted)
        spread = min(self._interval * SPREAD_SHARE, len(due) / STARTS_PER_SECOND)
        slack = self._timeout / 2 + spread + len(due) * SLACK_PER_ENGINE
        limit = min(self._interval * ROUND_SHARE, self._timeout + slack)
        if due:
            starts = [(target, self._offset(target) * spread) for target in due]
            self._run(run.all(starts, limit), limit + GRACE)
        scraped = tuple(run.result(target) for target in due)
        for one in scraped:
            if one.target.url in run.begun:
                self._note(one)
        return Round(scraped, tuple(backing_off), monotonic() - begun)

    def close(self) -> None:
        """Drop connections and end the thread; a round under way in another thread ends at once."""
        loop, thread, running = self._loop, self._thread, self._running
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        if running is not None:
            running.cancel()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(GRACE)
        if thread.is_alive():
            return
        loop.run_until_complete(_let_go(self._fetcher))
        loop.close()

    def _due(self, targets: Sequence[Target]) -> tuple[list[Target], list[Target]]:
        """Part targets into those to scrape and those to leave out; forget what is gone."""
        known = {target.url for target in targets}
        self._health = {url: health for url, health in self._health.items() if url in known}
        due: list[Target] = []
        backing_off: list[Target] = []
        for target in targets:
            health = self._health.get(target.url)
            if health is not None and health.wait > 0:
                health.wait -= 1
                backing_off.append(target)
            else:
                due.append(target)
        return due, backing_off

    def _note(self, one: Scraped) -> None:
        """Remember how a target did."""
        if not one.error:
            self._health.pop(one.target.url, None)
            return
        health = self._health.setdefault(one.target.url, _Health())
        health.failures += 1
        # 2^20 rounds are months: the exponent is bounded before the power is taken
        wait = min(2 ** min(health.failures - 1, 20) - 1, self._most_wait)
        health.wait = wait - int(self._fraction(one.target, health.failures) * (wait // 4 + 1))

    def _offset(self, target: Target) -> float:
        """Return when in the spread a target starts, 0-1; one that failed last time starts last."""
        return 1.0 if target.url in self._health else self._fraction(target, 0)

    def _fraction(self, target: Target, salt: int) -> float:
        """Return a number in 0..1 that is always the same for one target."""
        text = f"{self._seed} {salt} {target.url}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) / 2**32

    def _run(self, work: Coroutine[object, object, None], seconds: float) -> None:
        """Run ``work`` on the loop's thread; give up on it after ``seconds``."""
        if self._loop is None:
            self._loop = DaemonLookups()
            self._thread = threading.Thread(target=self._loop.run_forever, name="scrape", daemon=True)
            self._thread.start()
        self._running = future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(seconds)
        except (NoResult, CancelledError):
            future.cancel()
        finally:
            self._running = None


class _Run:
    """One round on the event loop."""

    def __init__(
        self,
        fetcher: Fetcher,
        clock: Callable[[], float],
        timeout: float,
        places: asyncio.Semaphore,
        wanted: Callable[[Target], frozenset[str]],
    ) -> None:
        self.begun: dict[str, float] = {}
        """Address -> when its scrape began, by the loop's clock."""
        self._done: dict[Target, Scraped] = {}
        self._fetcher = fetcher
        self._clock = clock
        self._timeout = timeout
        self._places = places
        self._wanted = wanted

    async def all(self, starts: Sequence[tuple[Target, float]], limit: float) -> None:
        """Scrape every target from its start on; end after ``limit`` seconds."""
        loop = asyncio.get_running_loop()
        self._fetcher.forget_closed()
        self._fetcher.keep_only({_origin(target) for target, _ in starts})
        tasks = {loop.create_task(self._one(target, start)) for target, start in starts}
        late = tasks
        try:
            _, late = await asyncio.wait(tasks, timeout=limit)
        finally:
            for task in late:
                task.cancel()
        if late:
            await asyncio.wait(late)
        loop.call_later(IDLE_CHECK, self._fetcher.forget_closed)

    def result(self, target: Target) -> Scraped:
        """Return what came of a target, late ones included."""
        found = self._done.get(target)
        if found is not None:
            return found
        if target.url in self.begun:
            return self._failed(target, _timed_out(self._timeout), self._timeout)
        return self._failed(
            target,
            ExpositionError(
                "was not reached before the round ended: give the tuner more CPU, or raise scrape.interval",
                reason="round_over",
            ),
            0.0,
        )

    async def _one(self, target: Target, start: float) -> None:
        await asyncio.sleep(start)
        loop = asyncio.get_running_loop()
        await self._places.acquire()
        place = _Place(self._places)
        leaving = loop.call_later(PATIENCE, place.leave)
        self.begun[target.url] = began = loop.time()
        try:
            async with asyncio.timeout(self._timeout):
                page = await self._fetcher.get(target.url)
            self._done[target] = self._read(target, page, loop.time() - began)
        except TimeoutError:
            self._done[target] = self._failed(target, _timed_out(self._timeout), loop.time() - began)
        except InputError as error:
            self._done[target] = self._failed(target, error, loop.time() - began)
        finally:
            leaving.cancel()
            place.leave()

    def _read(self, target: Target, page: Page, seconds: float) -> Scraped:
        """Read the wanted samples of a body."""
        try:
            scrape: Scrape = parse(page.body, wanted=self._wanted(target))
        except ExpositionError as error:
            return self._failed(target, error, seconds)
        return Scraped(target, TimedScrape(page.time, scrape), seconds, "")

    def _failed(self, target: Target, error: InputError, seconds: float) -> Scraped:
        """Return an error that names its place."""
        reason = error.reason if isinstance(error, ExpositionError) else "address"
        place = f"engine {target.engine}" if "@" in target.url else target.url  # no password is repeated
        placed = ExpositionError(f"{place} {error}", reason=reason)
        return Scraped(target, TimedScrape(self._clock(), placed), seconds, str(placed))


async def _let_go(fetcher: Fetcher) -> None:
    """End scrapes under way and connections, and wait until their sockets are closed."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    fetcher.close()
    await asyncio.sleep(0)


class _Place:
    """A place among the scrapes side by side, left once."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def leave(self) -> None:
        """Let the next scrape in."""
        places, self._places = self._places, None
        if places is not None:
            places.release()


def _timed_out(seconds: float) -> ExpositionError:
    return ExpositionError(
        f"did not answer within {seconds:g} s: look at the engine's load, or raise scrape.timeout",
        reason="timeout",
    )


def _origin(target: Target) -> Origin:
    """Return what a target's connections are kept by."""
    try:
        parts = split_url(target.url)
    except InputError:
        return ("", "", 0)
    return parts.scheme, parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
