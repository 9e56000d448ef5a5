"""How fast the database grows: ``python -m bench.store_growth``.

Engines scraped each 15 s, their windows taken from a recorded engine whose draft length changes every two
minutes and from a simulated one with the plugin and two routes, for 54 hours: long enough for raw (6 h) and
minute (48 h) rows to be trimmed. Roll-up and retention run each hour. Printed for SQLite and PostgreSQL:
bytes of a row with its share of the indices, rows per engine and day, and what follows from the two. Exits 1
beyond 6 MB an engine while it fills or 40 KB an engine and day after.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from bench.live_windows import INTERVAL, KNOWN, VOCABULARY, plugged, recorded
from tests.servers import run_postgres
from tuner.fleet import Target
from tuner.observe.live import LiveWindows
from tuner.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.engine import Connection

    from tests.servers import PostgresServer
    from tuner.fleet import Window
    from tuner.observe.exposition import TimedScrape
    from tuner.store import Store

HOUR = 3600.0
DAY_HOURS = 24
HOURS = 54
ENGINES = 2
MANY = 1000
RAW, MINUTE, HOURLY = 6 * HOUR, 48 * HOUR, 400 * DAY_HOURS * HOUR
TIERS = {"windows_raw": 6.0, "windows_minute": 48.0, "windows_hour": 400.0 * DAY_HOURS}
"""Table -> hours that it is kept."""
BEGIN = 1.8e9
MOST_FILLING_MEGABYTES = 6.0
MOST_KILOBYTES_A_DAY = 40.0


def hour_of(scrapes: Sequence[TimedScrape]) -> list[Window]:
    """Return the windows that an hour of scrapes makes, of all routes."""
    watched = LiveWindows(VOCABULARY, pool="chat", fingerprint=KNOWN, interval=INTERVAL)
    target = Target("chat", "e", "http://10.0.0.1/metrics")
    return [window for one in scrapes for window in watched.add(target, (one,)).windows]


def at_hour(windows: Sequence[Window], hour: int, engine: int) -> list[Window]:
    """Return an hour of windows as another engine and hour would have made them."""
    shift = BEGIN + HOUR * hour - windows[0].start + engine * INTERVAL / ENGINES
    return [
        replace(
            each, engine=f"10.0.0.{engine}:8000", start=each.start + shift, end=each.end + shift, restarts=0
        )
        for each in windows
    ]


@dataclass(frozen=True, slots=True)
class Growth:
    """What one tier takes."""

    rows_a_day: float
    """Per engine."""
    bytes_a_row: float


def sizes(store: Store) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of each tier, indices included."""

    def ask(connection: Connection) -> dict[str, tuple[int, int]]:
        found = {}
        for table in TIERS:
            rows = connection.scalar(text(f"select count(*) from {table}"))  # noqa: S608 - our own names
            query = "select sum(pgsize) from dbstat where name = :name"
            if connection.dialect.name != "sqlite":
                query = "select pg_total_relation_size(to_regclass(:name))"
            found[table] = int(rows), int(connection.scalar(text(query), {"name": table}))
        return found

    return store._database.read(ask)  # noqa: SLF001 - a measurement of the inside


def fill(
    store: Store, windows: Sequence[Window], server: PostgresServer | None
) -> tuple[dict[str, Growth], float]:
    """Run the hours; return what each tier takes, and the seconds of the last roll-up and retention.

    PostgreSQL's autovacuum looks each minute, which is 54 hours here, so it is called each hour instead.
    """
    seconds = 0.0
    for hour in range(HOURS):
        for engine in range(ENGINES):
            store.add_windows(at_hour(windows, hour, engine), fence=0)
        now = BEGIN + HOUR * (hour + 1) + 300
        begun = time.perf_counter()
        store.roll_up(now, fence=0)
        store.retain(now, RAW, MINUTE, HOURLY, fence=0)
        seconds = time.perf_counter() - begun
        if server is not None:
            server.execute("vacuum", store.place.rpartition("/")[2])
    held = {"windows_raw": 6.0, "windows_minute": 48.0, "windows_hour": float(HOURS)}
    return {
        table: Growth(rows / ENGINES / held[table] * DAY_HOURS, size / rows)
        for table, (rows, size) in sizes(store).items()
    }, seconds


@contextmanager
def places() -> Iterator[dict[str, PostgresServer | None]]:
    """Give the servers that there are; SQLite needs none."""
    with ExitStack() as stack:
        servers: dict[str, PostgresServer | None] = {"SQLite": None}
        try:
            servers["PostgreSQL"] = stack.enter_context(run_postgres())
        except pytest.skip.Exception as missing:
            print(f"PostgreSQL is left out: {missing}")
        yield servers


@contextmanager
def new_store(server: PostgresServer | None) -> Iterator[Store]:
    """Give an empty database with its tables."""
    with tempfile.TemporaryDirectory() as folder:
        url = server.new_database() if server is not None else f"sqlite:///{Path(folder) / 'tuner.db'}"
        with closing(open_store(url)) as store:
            store.migrate()
            yield store


def speed(name: str, windows: Sequence[Window], server: PostgresServer | None) -> None:
    """Print how long a round, a roll-up and a cycle's read take with 1 000 engines in one pool."""
    rounds = 8
    with new_store(server) as store:
        took: dict[str, float] = {}
        for number in range(rounds):
            one = windows[number]
            start = BEGIN + INTERVAL * number
            batch = [
                replace(one, engine=f"10.0.{n >> 8}.{n & 255}:8000", start=start, end=start + INTERVAL)
                for n in range(MANY)
            ]
            begun = time.perf_counter()
            store.add_windows(batch, fence=0)
            took["adding a round"] = time.perf_counter() - begun
        begun = time.perf_counter()
        store.roll_up(BEGIN + 600, fence=0)
        took["rolling two minutes up"] = time.perf_counter() - begun
        begun = time.perf_counter()
        store.recent_windows("chat", 0.0, 4 * MANY)
        took["reading 4 000 windows"] = time.perf_counter() - begun
    each = ", ".join(f"{what} {seconds * 1e3:.0f} ms" for what, seconds in took.items())
    print(f"\n{name}, {MANY} engines: {each}", flush=True)


def measure(name: str, load: str, windows: Sequence[Window], server: PostgresServer | None) -> bool:
    """Print what a load takes in a database; return whether it is within the bounds."""
    with new_store(server) as store:
        tiers, seconds = fill(store, windows, server)
        whole = store.size_bytes()
    daily = {table: growth.rows_a_day * growth.bytes_a_row for table, growth in tiers.items()}
    filled = sum(daily[table] * kept / DAY_HOURS for table, kept in TIERS.items() if table != "windows_hour")
    kept = daily["windows_hour"]
    print(f"\n{name}, {load}: {ENGINES} engines, {HOURS} h, {whole / 1e6:.1f} MB in all")
    for table, growth in tiers.items():
        print(
            f"  {table:<15}{growth.rows_a_day:7.0f} rows a day of {growth.bytes_a_row:5.0f} bytes, per engine"
        )
    print(f"  raw and minute rows: {filled / 1e6:.2f} MB per engine, reached after two days")
    print(
        f"  then {kept / 1e3:.1f} KB per engine and day; {(filled + 400 * kept) / 1e6:.1f} MB after 400 days"
    )
    print(f"  roll-up and retention of an hour: {seconds * 1e3 / ENGINES:.0f} ms per engine", flush=True)
    return filled <= MOST_FILLING_MEGABYTES * 1e6 and kept <= MOST_KILOBYTES_A_DAY * 1e3


def main() -> int:
    """Print a table per database and load; judge the recorded engine."""
    loads = {"recorded engine": hour_of(recorded()), "plugin, 2 routes": hour_of(plugged())}
    held = True
    with places() as servers:
        for name, server in servers.items():
            for load, windows in loads.items():
                within = measure(name, load, windows, server)
                held &= within or load != "recorded engine"
            speed(name, loads["recorded engine"], server)
    print(
        f"\nbounds: {MOST_FILLING_MEGABYTES:g} MB, {MOST_KILOBYTES_A_DAY:g} KB a day for the recorded engine"
    )
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
