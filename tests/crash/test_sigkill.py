"""The daemon killed at random moments: what it said it kept is kept, and nothing is counted twice."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from typing import TYPE_CHECKING

import pytest

from tests.crash.daemons import CHECKER, INTERVAL, Crashes

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = 2


def _survive(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill daemons, each a random moment after its third round, and return what the checker counted."""
    draw = random.Random(seed)
    with Crashes(folder, ENGINES, seed) as crashes:
        for _ in range(kills):
            daemon = crashes.start()
            try:
                crashes.wait_for_scrapes(3 * ENGINES)
                time.sleep(draw.uniform(0.0, 4 * INTERVAL))
            finally:
                crashes.kill(daemon)
        checked = crashes.check()
    assert checked.returncode == 0, checked.stderr + crashes.log.read_text()[-2000:]
    counted: dict[str, int] = json.loads(checked.stdout)
    return counted


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """Twenty SIGKILLs: the database opens, windows are differences of bodies, each counted once."""
    counted = _survive(tmp_path, 20, 20)
    assert counted["windows"] == counted["matched"] >= 20 * ENGINES


@pytest.mark.long
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    """Two hundred SIGKILLs, with schedules proposed between them."""
    counted = _survive(tmp_path, 200, 200)
    assert counted["windows"] == counted["matched"] >= 200 * ENGINES
    assert counted["announced"] > 0


def test_the_checker_sees_what_is_wrong(tmp_path: Path) -> None:
    """A window counted twice, one with foreign counts, and a version that is gone are told."""
    with Crashes(tmp_path, ENGINES, 1) as crashes:
        daemon = crashes.start()
        try:
            crashes.wait_for_scrapes(8 * ENGINES)
        finally:
            crashes.kill(daemon)
        with crashes.log.open("a") as log:
            log.write(json.dumps({"event": "schedule proposed", "version": "0123456789ab"}) + "\n")
        damage = (
            "UPDATE windows_raw SET end_time = end_time + 0.4, emitted = emitted + 1 WHERE start_time = "
            "(SELECT min(start_time) FROM windows_raw)"
        )
        with sqlite3.connect(crashes.database) as connection:
            connection.execute(damage)
        checked = crashes.check()
    assert checked.returncode == 1
    for fault in ("overlap", "emitted", "0123456789ab was announced"):
        assert fault in checked.stderr
    assert CHECKER.read_text().count("tuner") == 0
