"""Engines that answer nonsense, too much, too slowly or nothing: the whole daemon over real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.site import ENGINES, POOL, SCRAPE, endure, recovers

if TYPE_CHECKING:
    from tests.faults.site import Site

DOWN = f'tuner_targets{{pool="{POOL}",state="down"}}'
SOURCE = f'tuner_source_up{{source="scrape:{POOL}"}}'


PAIRS = [
    (("down", "closed the connection"), ("crash", "closed the connection")),
    (("html", "HTML"), ("huge", "over the limit")),
    (("drip", "did not answer within 1 s"), ("slow", "did not answer within 1 s")),
    (("error", "503"), ("redirect", "302")),
    (("truncated", "line"), ("truncated", "line")),
]
"""What each of the two engines does, and what the daemon says of it."""


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(kind for kind, _ in pair))
def test_engines_that_give_nothing_usable(site: Site, pair: tuple[tuple[str, str], ...]) -> None:
    """HTML, 100 MB, a byte a second, 503, refused, cut off, elsewhere: said, the schedule held, recovered."""
    good = site.windows()

    def begin() -> None:
        for engine, (kind, _) in enumerate(pair):
            site.served.fault(kind, POOL, engine)

    def end() -> None:
        assert site.severities("engines_unreachable") == {"critical"}
        assert site.metric(SOURCE) == 0.0
        assert site.windows() <= good + ENGINES  # those that were under way
        for status, (_, said) in zip(site.view.targets, pair, strict=True):
            assert said in status.error
        site.served.fault("clear", POOL)

    endure(site, begin, end, code="engines_unreachable", sample=DOWN, bad=float(ENGINES))
    assert site.metric(SOURCE) == 1.0


def test_one_that_misbehaves_costs_the_others_nothing(site: Site) -> None:
    """One of two drips: it is down, a warning, and the other gives as many windows as before."""
    site.served.fault("drip", POOL, 0)
    site.run_for(3 * SCRAPE)
    before = site.windows()
    site.run_for(6 * SCRAPE)
    assert site.metric(f'tuner_target_up{{engine="{POOL}-0",pool="{POOL}"}}') == 0.0
    assert site.metric(f'tuner_target_up{{engine="{POOL}-1",pool="{POOL}"}}') == 1.0
    assert site.severities("engines_unreachable") == {"warning"}
    assert site.windows() >= before + 3
    site.served.fault("clear", POOL)
    recovers(site, code="engines_unreachable", sample=DOWN, bad=1.0)


def test_engines_that_flap(site: Site) -> None:
    """Gone every other round: windows are twice as long, none is wrong, and the schedule stands."""
    down = set()
    before = site.windows()
    for number in range(12):
        site.served.fault("clear" if number % 2 else "down", POOL)
        site.run_for(SCRAPE)
        down.add(site.metric(DOWN))
        assert ("engines_unreachable" in site.codes()) is (number % 2 == 0)
        assert site.up()
        assert site.schedule()
    assert down == {0.0, float(ENGINES)}
    assert site.windows() >= before + ENGINES
    store = site.daemon.leader.store
    assert store is not None
    spans = {round(w.seconds) for w in store.recent_windows(POOL, site.decided_at() - 60.0, 1000)}
    assert 10 in spans <= {5, 10}
    recovers(site, code="engines_unreachable", sample=DOWN, bad=float(ENGINES))


def test_connections_that_are_cut_once(site: Site) -> None:
    """A server that closes every other connection unanswered is asked again at once: nothing is missed."""
    site.served.fault("flap", POOL)
    before = site.all_windows()
    site.run_for(6 * SCRAPE)
    assert site.metric(DOWN) == 0.0
    assert "engines_unreachable" not in site.codes()
    assert site.all_windows() >= before + 5 * ENGINES


def test_counters_of_speculation_that_are_nan(site: Site) -> None:
    """NaN is neither 0 nor a rate: windows are suspect, a finding says so, nothing of it is planned with."""
    suspect = site.windows("suspect")
    good = site.windows()
    held = site.schedule()
    site.served.fault("nan", POOL)
    for _ in range(9):
        site.run_for(SCRAPE)
        assert site.up()
        assert site.schedule() == held
    assert site.windows("suspect") >= suspect + 5 * ENGINES
    assert site.windows() <= good + ENGINES
    assert "impossible_value" in site.codes()
    assert "NaN" not in site.get("/metrics").text
    site.served.fault("clear", POOL)
    recovers(site, code="impossible_value", sample=DOWN, bad=float(ENGINES), patience=900.0)
