"""A daemon over hours: nothing grows that should not, nothing is lost, nothing is counted twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.daemon.processes import Process, python
from tests.soak.ledger import DAY, Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600.0
SCRAPE = 15.0
START = 1_800_000_000
"""2027-01-15, 08:00 UTC: a day of it has a midnight inside."""
HALF_HOUR = 1800.0
PATIENCE = 10_800.0
"""Seconds after which a test gives up: a day takes 12 minutes on two idle cores, more beside others."""
MORE_THAN_AN_HOUR = 3900.0
"""Retention runs a minute after the start and then hourly: with something to delete the second time."""
WARM_HOURS = 4.0
STATED = Path(__file__).parents[2] / "docs" / "database.md"
RAW_SHARE, MINUTE_SHARE = 6 / 24, 24 / 48
"""Part of a day's raw rows, and of the minute rows of two days, that are there after one day."""
GROWTH_FACTOR = 1.5
"""By which a fleet of other engines may differ from the two that the page is measured with: how many draft
lengths take turns within a minute decides how many rows a minute has, one to three."""
MEGABYTES_AN_HOUR = 1.0
MARGIN_WINDOWS = 8
"""Windows that an engine may lack at each end of its life: discovery looks each minute, and a window is
final one scrape after it ended."""

DAY_STEP, HOUR_STEP = 0.24, 0.6
"""Seconds to read the weights once. Steps of a day take 0.27 s and more, so that a window has 50 as on real
engines; those of the hour, of which no fit is asked, take 0.7 s, and the simulator a third of the time."""


def fleet_of(stock: int, routes: int, step: float) -> dict[str, Any]:
    """Return a fleet of engines without the plugin, and of engines with it that serve two routes."""
    engine: dict[str, Any] = {
        "max_batch": 16,
        "schedule": [[1, 3, 4], [4, 8, 2], [9, 16, 1]],
        "cost": {"overhead": 0.02, "floor": step, "per_token": step / 60, "draft_slope": step / 35},
        "load": {"profile": "walk", "batch": [2, 12], "period": 1800},
    }
    chat, code = ({"name": name, "alpha": alpha, "prompt": 40, "output": 60}
                  for name, alpha in (("chat", 0.6), ("code", 0.8)))  # fmt: skip
    return {
        "pools": [
            {"name": "stock", "engines": stock, "plugin": False, "routes": [chat], **engine},
            {"name": "routes", "engines": routes, "routes": [chat, code], **engine},
        ]
    }


@dataclass(frozen=True)
class Life:
    """What came of a daemon's life."""

    told: list[dict[str, Any]]
    """Each half hour, or as often as was asked."""
    end: dict[str, Any]
    ledger: Ledger

    def series(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return one number over time."""
        return np.array([line[name] for line in self.told], dtype=np.float64)

    def held(self) -> int:
        """Return the most windows that any pool held in memory."""
        return max(int(held) for line in self.told for held in line["held"].values())


def live(folder: Path, fleet: dict[str, Any], **task: Any) -> Iterator[Life]:
    """Let a fleet and a daemon live, each in a process of its own; give what came of it."""
    description = folder / "fleet.yaml"
    description.write_text(json.dumps(fleet))
    served = ("--fleet", str(description), "--speed", "0", "--seed", "3", "--start", str(START))
    with Process(python("simulate", "fleet", *served)) as simulator:
        assert simulator.popen.stdout is not None
        ready = json.loads(simulator.popen.stdout.readline())
        command = [sys.executable, "-m", "tests.soak.life"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        journal = folder / "told.jsonl"
        with (
            journal.open("w") as told_to,
            Process(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=told_to,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            ) as daemon,
        ):
            task |= {"fleet": ready, "folder": str(folder)}
            _, errors = daemon.popen.communicate(json.dumps(task), PATIENCE)
    assert daemon.popen.returncode == 0, (daemon.popen.returncode, errors)
    assert not errors, errors
    *told, end = [json.loads(line) for line in journal.read_text().splitlines()]
    ledger = Ledger(folder / "tuner.db")
    yield Life(told, end, ledger)
    ledger.close()


def check_jobs(life: Life, seconds: float, cycle: float) -> None:
    """Every job ran as often as its interval says, without error."""
    every = {"scrape": SCRAPE, "cycle": cycle, "readback": cycle, "discovery": 60.0, "rollup": 60.0}
    every |= {"lease": 5.0, "watch": 5.0, "retention": HOUR}
    assert every.keys() == life.end["jobs"].keys()
    for name, job in life.end["jobs"].items():
        due = seconds / every[name]
        slack = 1 + 0.05 * due * (name == "discovery")  # its times are spread by a twentieth
        assert job["errors"] == job["missed"] == 0, (name, job)
        assert abs(job["runs"] - due) <= slack, (name, job, due)


def check_windows(life: Life) -> None:
    """Each window is in the database once, by whichever tiers it is counted, and none is missing."""
    minutes, hours = life.ledger.by_minutes(), life.ledger.by_hours()
    assert minutes == hours
    counted: dict[str, int] = {}
    for name, number in life.end["windows"].items():
        pool = name.partition(" ")[0]
        counted[pool] = counted.get(pool, 0) + number
    assert counted == {
        pool: sum(n for (own, _, route, _), n in minutes.items() if own == pool and route == "*")
        for pool in counted
    }
    end = life.end["end"]
    for engine, (since, *gone) in life.end["lives"].items():
        until = gone[0] if gone else end
        for day in range(int(since // DAY), int(until // DAY) + 1):
            pool = engine.partition("-")[0]
            seconds = min(until, (day + 1) * DAY) - max(since, day * DAY)
            number = minutes[pool, engine, "*", day]
            assert abs(number - seconds / SCRAPE) <= MARGIN_WINDOWS, (engine, day, number, seconds)


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """Return an hour of ten engines, a pod of which is replaced every ten minutes."""
    yield from live(
        tmp_path_factory.mktemp("hour"),
        fleet_of(6, 4, HOUR_STEP),
        seconds=MORE_THAN_AN_HOUR,
        report=300.0,
        churn=600.0,
        replaced=1,
        sections={
            "cycle": {"interval": "2m", "max_windows": 200, "half_life": "5m"},
            "retention": {"raw": "15m", "minute": "30m", "hour": "30d"},
        },
    )


def test_hour_holds_nothing_without_bound(hour: Life) -> None:
    """Memory of windows, of series and of the database's buffer stay within bounds that settings give."""
    assert hour.held() <= 220
    assert hour.series("waiting").max() == 0
    assert hour.series("dropped").max() == 0
    assert hour.series("targets").tolist() == [10.0] * len(hour.told)
    assert hour.series("up").min() >= 9
    assert hour.series("series").max() <= hour.series("series")[0] * (1 + 6 / 10) * 1.2
    assert hour.series("rss")[-1] - hour.series("rss")[3] < 15.0


def test_hour_counts_each_window_once(hour: Life) -> None:
    """Windows by engine and day are as many as scrapes, in each tier, through restarts and replaced pods."""
    check_windows(hour)


def test_hour_runs_every_job(hour: Life) -> None:
    """No job is missed, and none fails."""
    check_jobs(hour, MORE_THAN_AN_HOUR, cycle=120.0)


def test_hour_forgets_what_is_old(hour: Life) -> None:
    """Windows are summed up by minute, and deleted once they are older than the settings say."""
    first, _ = hour.ledger.span("raw")
    assert hour.ledger.kept_from["raw"] > -np.inf
    assert hour.ledger.rows("windows_minute") > 0
    assert first >= hour.end["end"] - HOUR - 15 * 60.0


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """Return a day of 50 engines, two pods of which are replaced and one of which restarts every hour."""
    yield from live(
        tmp_path_factory.mktemp("day"),
        fleet_of(30, 20, DAY_STEP),
        seconds=24 * HOUR,
        report=HALF_HOUR,
        churn=HOUR,
        replaced=2,
        sections={"cycle": {"interval": "2m", "max_windows": 400}},
    )


@pytest.mark.long
def test_day_takes_no_more_memory_with_time(day: Life) -> None:
    """Resident memory stays flat through a day of replaced pods, and so does all that is held."""
    warm = day.series("hours") >= WARM_HOURS
    slope, _ = np.polyfit(day.series("hours")[warm], day.series("rss")[warm], 1)
    assert slope < MEGABYTES_AN_HOUR, day.series("rss").tolist()
    assert day.held() <= 440
    assert day.series("waiting").max() == day.series("dropped").max() == 0
    assert day.series("series")[warm].max() <= 1.1 * day.series("series")[warm].min()
    assert day.series("up").min() >= 48
    assert day.series("targets").tolist() == [50.0] * 48


@pytest.mark.long
def test_day_counts_each_window_once(day: Life) -> None:
    """Windows by pod and day are as many as scrapes, in each tier, through restarts and replaced pods."""
    check_windows(day)
    assert len(day.end["lives"]) == 50 + 23 * 2


@pytest.mark.long
def test_day_runs_every_job(day: Life) -> None:
    """No job is missed in a day, and none fails."""
    check_jobs(day, 24 * HOUR, cycle=120.0)


@pytest.mark.long
def test_day_sums_and_forgets(day: Life) -> None:
    """Raw windows live 6 to 7 hours; minutes and hours hold the whole day."""
    first, last = day.ledger.span("raw")
    assert day.end["end"] - 7 * HOUR - SCRAPE <= first <= day.end["end"] - 6 * HOUR
    assert last >= day.end["end"] - 3 * SCRAPE
    assert day.ledger.span("minute")[0] < START + 120.0
    assert day.ledger.span("hour")[0] < START + HOUR


def stated(row: str) -> list[float]:
    """Return the bytes that docs/database.md states for SQLite in one row: without the plugin, and with."""
    line = next(line for line in STATED.read_text().splitlines() if line.startswith(f"| {row} "))
    sizes = re.findall(r"([\d. ]+) ?(MB|B)? \|", line.removeprefix(f"| {row} ").partition("|")[2])
    return [float(number.replace(" ", "")) * (1e6 if unit == "MB" else 1.0) for number, unit in sizes[:2]]


@pytest.mark.long
def test_day_fills_the_database_as_stated(day: Life) -> None:
    """The database is as large after a day, and grows as fast in its second half, as its page states."""
    engines = (30, 20)
    raw_rows, raw_bytes = stated("raw rows a day"), stated("a raw row")
    both = stated("raw (6 h) and minute rows (48 h), steady after two days")
    raw = [RAW_SHARE * rows * size for rows, size in zip(raw_rows, raw_bytes, strict=True)]
    minute = [MINUTE_SHARE * (all_of_it - part) for all_of_it, part in zip(both, raw, strict=True)]
    a_day = sum(n * (a + b) for n, a, b in zip(engines, raw, minute, strict=True))
    size = day.series("bytes")
    assert a_day / GROWTH_FACTOR < size[-1] < a_day * GROWTH_FACTOR
    half_a_day = sum(n * b for n, b in zip(engines, minute, strict=True)) / 2
    assert size[-1] - size[23] < half_a_day * GROWTH_FACTOR
