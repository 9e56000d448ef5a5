"""A host's clock that is set an hour on and back, and settings with a fault in the middle of a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.site import CYCLE, ENGINES, POOL, SCRAPE, recovers
from tuner.daemon.jobs import JOBS

if TYPE_CHECKING:
    from tests.faults.site import Site

HOUR = 3600.0
DOWN = f'tuner_targets{{pool="{POOL}",state="down"}}'
RELOADED = "tuner_config_last_reload_successful"
STAMP = "tuner_snapshot_timestamp_seconds"


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["on", "back"])
def test_a_clock_that_is_set_and_set_right(site: Site, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour on (or back), then set right: said each time, a schedule stands, no window spans the step."""
    monkeypatch.setattr("tuner.daemon.findings.LASTING", 3 * CYCLE)
    begun = site.metric(STAMP)
    assert begun is not None
    for by in (step, -step):
        windows, since = site.all_windows(), site.daemon.clock.monotonic()
        decisions = site.view.stage_seconds["decide"][0]
        site.wall.step(by)
        for _ in range(int(2 * CYCLE / SCRAPE)):
            site.run_for(SCRAPE)
            assert site.up()
            assert site.schedule()
        assert "clock_stepped" in site.codes()
        assert site.all_windows() - windows >= (2 * CYCLE / SCRAPE - 2) * ENGINES
        assert site.view.stage_seconds["decide"][0] == decisions + 2
        assert site.daemon.clock.monotonic() == pytest.approx(since + 2 * CYCLE)
    assert site.metric(STAMP) == pytest.approx(begun + 4 * CYCLE, abs=2 * SCRAPE)
    store = site.daemon.leader.store
    assert store is not None
    assert max(w.seconds for w in store.recent_windows(POOL, 0.0, 10_000)) <= 2 * SCRAPE
    site.run_until(lambda: "clock_stepped" not in site.codes(), 4 * CYCLE)
    recovers(site, code="clock_stepped", sample=DOWN, bad=float(ENGINES))


def test_a_clock_that_is_a_month_ahead(site: Site) -> None:
    """Thirty days on: no job makes up for what was missed, and nothing is divided by a month (case B57)."""
    interval = {spec.name: spec.interval(site.daemon.service.cadence) for spec in JOBS}
    before = {job.name: job.runs for job in site.view.jobs}
    goodput = f'tuner_goodput_tokens_per_second{{engine="{POOL}-0",pool="{POOL}"}}'
    usual = site.metric(goodput)
    assert usual is not None
    site.wall.step(30 * 24 * HOUR)
    for _ in range(int(CYCLE / SCRAPE) + 1):
        site.run_for(SCRAPE)
        assert site.up()
        assert site.schedule()
    for job in site.view.jobs:
        assert job.runs - before[job.name] <= (CYCLE + SCRAPE) / interval[job.name] + 1
        assert job.errors == 0
    now = site.metric(goodput)
    assert now is not None
    assert usual / 5.0 < now < usual * 5.0


def test_a_bad_file_during_a_fault(site: Site) -> None:
    """Every engine down and settings with a fault read anew: both are said, both go, nothing is lost."""
    held = site.schedule()
    assert site.metric(RELOADED) == 1.0
    site.served.fault("down", POOL)
    site.run_for(2 * SCRAPE)
    site.write_settings({**site.document, "scrape": {"interval": "0s"}})
    assert site.reloader.reload() is not None
    for _ in range(7):
        site.run_for(SCRAPE)
        assert site.up()
        assert site.schedule() == held
    assert {"config_reload_failed", "engines_unreachable"} <= site.codes()
    assert site.metric(RELOADED) == 0.0
    site.served.fault("clear", POOL)
    site.run_until(lambda: "engines_unreachable" not in site.codes(), 120.0)
    assert "config_reload_failed" in site.codes()
    site.write_settings(site.document)
    assert site.reloader.reload() is None
    assert site.metric(RELOADED) == 1.0
    recovers(site, code="config_reload_failed", sample=RELOADED, bad=0.0)
