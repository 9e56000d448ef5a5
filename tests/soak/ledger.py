"""Windows in the database counted by SQL, tier against tier; imports nothing of the store."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0

COUNT = """
select s.pool, s.engine, s.route, cast(w.start_time / 86400 as integer), sum({number})
from {table} w join series s on s.id = w.series_id
where w.start_time >= ? and w.start_time < ? group by 1, 2, 3, 4
"""

Key = tuple[str, str, str, int]
"""Pool, pod, route, day since the epoch."""


class Ledger:
    """The windows of a database."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        rows = self._connection.execute("select name, rolled_up_to, kept_from from tiers").fetchall()
        self.rolled_up_to = {name: -math.inf if to is None else to for name, to, _ in rows}
        self.kept_from = {name: -math.inf if since is None else since for name, _, since in rows}

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def span(self, tier: str) -> tuple[float, float]:
        """Return the first and the last start of a tier's rows."""
        first, last = self._connection.execute(
            f"select min(start_time), max(start_time) from windows_{tier}"  # noqa: S608 - a tier's name
        ).fetchone()
        return first, last

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        (count,) = self._connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608 - a name
        return int(count)

    def by_minutes(self) -> Counter[Key]:
        """Return windows by minute as far as they are rolled up, and as observed after that."""
        cut = self.rolled_up_to["raw"]
        return self._count("minute", "windows", -math.inf, cut) + self._count("raw", "1", cut, math.inf)

    def by_hours(self) -> Counter[Key]:
        """Return windows by hour as far as they are rolled up, then by minute, then as observed."""
        hours, minutes = self.rolled_up_to["minute"], self.rolled_up_to["raw"]
        return (
            self._count("hour", "windows", -math.inf, hours)
            + self._count("minute", "windows", hours, minutes)
            + self._count("raw", "1", minutes, math.inf)
        )

    def _count(self, tier: str, number: str, since: float, until: float) -> Counter[Key]:
        query = COUNT.format(number=number, table=f"windows_{tier}")
        bounds = (max(since, -1e12), min(until, 1e12))
        return Counter(
            {
                (pool, engine.partition("/")[0], route, day): int(count)
                for pool, engine, route, day, count in self._connection.execute(query, bounds)
            }
        )
