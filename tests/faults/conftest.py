"""A daemon that has learnt, for every test anew."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.daemon.conftest import Events
from tests.faults.fleet_server import ServedFleet
from tests.faults.site import LEARN, POOL, SCRAPE, Learnt, Site, settings, slow_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _same_jitter() -> None:
    """Refreshes of discovery are spread by chance: by the same chance in each run."""
    random.seed(1)


@pytest.fixture
def events() -> Events:
    """Return a log that remembers."""
    return Events()


@pytest.fixture(scope="session")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    """Return a fleet and the database of a daemon that learnt its schedule and ended."""
    folder = tmp_path_factory.mktemp("learnt")
    fleet = slow_fleet()
    with ExitStack() as stack:
        served = stack.enter_context(ServedFleet(fleet))
        document = settings(folder, f"{served.url}/targets/{POOL}")
        site = stack.enter_context(Site(served, folder, document))
        site.run_for(LEARN)
        assert site.schedule()
    return Learnt(fleet, folder / "tuner.db")


@pytest.fixture
def served(learnt: Learnt, tmp_path: Path) -> Iterator[ServedFleet]:
    """Serve the fleet that was learnt, as it was then; the database is in ``tmp_path``."""
    with ServedFleet(learnt.copied(tmp_path)) as running:
        yield running


@pytest.fixture
def site(served: ServedFleet, tmp_path: Path) -> Iterator[Site]:
    """Run a daemon that remembers what was learnt, past its first scrapes and cycle."""
    with ExitStack() as stack:
        document = settings(tmp_path, f"{served.url}/targets/{POOL}")
        started = stack.enter_context(Site(served, tmp_path, document))
        warm(started)
        yield started


def warm(site: Site) -> None:
    """Let a daemon come to where it observes and plans."""
    site.run_until(lambda: site.windows() > 0 and site.decided_at() > 0, 20 * SCRAPE)
