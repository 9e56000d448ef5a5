"""Rounds of scrapes over time: bounds, back-off, kept connections, and the moment that counts."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pytest

from tests.observe.wire import LONGEST, Server, Wire, answer, page
from tuner.fleet import Target
from tuner.observe.scraping import LONGEST_BACKOFF, Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.observe.wire import Behaviour
    from tuner.observe.scraping import Round

HANG = 30.0


def wanted(_: Target) -> frozenset[str]:
    return frozenset({"a"})


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers, and stop them at the end."""
    servers: list[Server] = []

    def start(behaviour: Behaviour, **options: int) -> Server:
        servers.append(Server(behaviour, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def scraper_of() -> Iterator[Callable[..., Scraper]]:
    """Make scrapers, and close them at the end."""
    made: list[Scraper] = []

    def make(**options: float) -> Scraper:
        settings = {"timeout": 1.0, "interval": 15.0} | options
        made.append(Scraper(clock=lambda: 0.0, **settings))  # type: ignore[arg-type] # whole numbers among them
        return made[-1]

    yield make
    for scraper in made:
        scraper.close()


def tried(scraper: Scraper, target: Target, rounds: int) -> list[int]:
    """Return the numbers of the rounds in which a target was tried."""
    return [number for number in range(rounds) if scraper.round([target], wanted).scraped]


def test_a_failing_engine_is_tried_less_and_less(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """One failure costs no round; after n in a row 2^(n-1) - 1 are left out, fewer by up to a quarter."""
    server = serve(lambda wire: wire.send(answer(status="503 Busy")))

    rounds = tried(scraper_of(), server.target(), 200)

    gaps = [later - earlier for earlier, later in itertools.pairwise(rounds)]
    assert gaps[:2] == [1, 2]
    assert gaps[2] in {3, 4}
    assert gaps[3] in {6, 7, 8}
    most = int(LONGEST_BACKOFF / 15.0)
    assert all(0.74 * most <= gap <= most for gap in gaps[6:])


def test_a_long_interval_knows_no_back_off(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """Where rounds are five minutes apart, none is left out."""
    server = serve(lambda wire: wire.send(answer(status="503 Busy")))
    assert tried(scraper_of(interval=300.0), server.target(), 6) == list(range(6))


def test_an_engine_that_comes_back_is_seen_and_starts_anew(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """After an answer the count of failures is forgotten: the next failure costs no round."""
    server = serve(lambda wire: wire.send(answer(status="503 Busy")))
    scraper, target = scraper_of(), server.target()
    tried(scraper, target, 30)

    server.behaviour = page
    rounds = tried(scraper, target, 30)
    assert rounds == list(range(rounds[0], 30))
    assert rounds[0] < 20

    server.behaviour = lambda wire: wire.send(answer(status="503 Busy"))
    assert tried(scraper, target, 2) == [0, 1]


def test_a_flapping_engine_is_tried_every_round(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """Failures that take turns with answers are never two in a row, so none is waited for."""
    turns = itertools.cycle([page, Wire.reset])

    def flap(wire: Wire) -> None:
        next(turns)(wire)

    server = serve(flap, requests_per_connection=1)
    scraper, target = scraper_of(), server.target()

    outcomes = [scraper.round([target], wanted) for _ in range(8)]

    assert [bool(outcome.scraped[0].error) for outcome in outcomes] == [False, True] * 4


def test_targets_left_out_are_told(serve: Callable[..., Server], scraper_of: Callable[..., Scraper]) -> None:
    """A round says whom it left out, and scrapes the others."""
    bad = serve(lambda wire: wire.send(answer(status="503 Busy"))).target("bad")
    fine = serve(page).target("fine")
    scraper = scraper_of()
    scraper.round([bad, fine], wanted)
    scraper.round([bad, fine], wanted)

    outcome = scraper.round([bad, fine], wanted)

    assert outcome.backing_off == (bad,)
    assert [one.target for one in outcome.scraped] == [fine]


def test_a_target_that_left_and_came_back_is_new(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """What is not among the targets of a round is forgotten, its failures too."""
    bad = serve(lambda wire: wire.send(answer(status="503 Busy"))).target()
    scraper = scraper_of()
    tried(scraper, bad, 6)
    scraper.round([], wanted)
    assert tried(scraper, bad, 2) == [0, 1]


def test_engines_that_hang_hold_up_no_other(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """Twelve engines that hang, with room for four scrapes, and sixty that answer: all of these are read."""
    hung = serve(Wire.hang)
    fine = serve(page)
    targets = [Target("p", f"h{i}", f"http://{hung.address}/{i}") for i in range(12)]
    targets += [Target("p", f"e{i}", f"http://{fine.address}/{i}") for i in range(60)]

    outcome = scraper_of(concurrency=4, timeout=4.0).round(targets, wanted)

    assert [one.target.engine for one in outcome.scraped if not one.error] == [f"e{i}" for i in range(60)]
    assert outcome.seconds < HANG


def test_a_round_ends_in_time_though_no_engine_answers(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """Forty engines hang and two may be asked at once: the rest counts as not reached and is not put off."""
    hung = serve(Wire.hang)
    targets = [Target("p", f"h{i}", f"http://{hung.address}/{i}") for i in range(40)]
    scraper = scraper_of(concurrency=2, timeout=0.4, interval=2.0)

    outcome = scraper.round(targets, wanted)

    reasons = [getattr(one.scrape.result, "reason", "") for one in outcome.scraped]
    assert set(reasons) == {"timeout", "round_over"}
    assert len(reasons) == 40
    assert outcome.seconds < HANG
    again = scraper.round(targets, wanted)
    assert again.backing_off == ()


def test_connections_are_kept(serve: Callable[..., Server], scraper_of: Callable[..., Scraper]) -> None:
    """Rounds ask over one connection."""
    server = serve(page)
    scraper = scraper_of()

    for _ in range(5):
        assert not scraper.round([server.target()], wanted).scraped[0].error

    assert (server.connections, len(server.heads)) == (1, 5)


def test_a_connection_that_was_closed_meanwhile_is_made_anew(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """Servers close idle connections when they like; that is no error."""
    server = serve(page, requests_per_connection=2)
    scraper = scraper_of()

    for _ in range(7):
        assert scraper.round([server.target()], wanted).scraped[0].error == ""

    assert len(server.heads) == 7
    assert server.connections == 4


def test_connections_of_engines_that_are_gone_are_closed(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """The next round drops what it needs no more, and so does the end."""
    gone, stays = serve(page), serve(page)
    scraper = scraper_of()
    scraper.round([gone.target(), stays.target()], wanted)

    scraper.round([stays.target()], wanted)
    assert gone.ended.acquire(timeout=LONGEST)

    scraper.close()
    assert stays.ended.acquire(timeout=LONGEST)
    assert not any(thread.name == "scrape" for thread in threading.enumerate())


def test_the_time_of_a_scrape_is_when_its_answer_began(serve: Callable[..., Server]) -> None:
    """A body that takes long to come was written before its first byte: that moment counts for rates."""
    now = [100.0]
    begun, go_on = threading.Event(), threading.Event()

    def slow(wire: Wire) -> None:
        whole = answer()
        wire.send(whole[:120])
        begun.set()
        go_on.wait(LONGEST)
        wire.send(whole[120:])

    asked: list[float] = []

    def clock() -> float:
        asked.append(now[0])
        now[0] = 200.0
        go_on.set()
        return asked[-1]

    scraper = Scraper(timeout=HANG, interval=60.0, clock=clock)
    (one,) = scraper.round([serve(slow).target()], wanted).scraped
    scraper.close()

    assert begun.is_set()
    assert not one.error
    assert one.scrape.time == 100.0
    assert asked == [100.0]


def test_starts_are_spread_the_same_way_every_time(scraper_of: Callable[..., Scraper]) -> None:
    """Each engine has its place in the spread, given by the seed alone, and places fill the spread."""
    targets = [Target("p", str(i), f"http://10.0.0.{i}/metrics") for i in range(200)]

    def places(seed: int) -> list[float]:
        scraper = scraper_of(seed=seed)
        return [scraper._offset(target) for target in targets]

    assert places(1) == places(1)
    assert places(1) != places(2)
    tenths = [int(place * 10) for place in places(1)]
    assert min(tenths.count(tenth) for tenth in range(10)) >= 8


def test_a_scraper_can_go_on_after_it_was_closed(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """Closing twice is fine, and a later round starts a thread of its own."""
    scraper = scraper_of()
    server = serve(page)
    scraper.round([server.target()], wanted)
    scraper.close()
    scraper.close()
    assert not scraper.round([server.target()], wanted).scraped[0].error


def test_closing_ends_a_round_at_once(
    serve: Callable[..., Server], scraper_of: Callable[..., Scraper]
) -> None:
    """A daemon that stops gives up the scrapes under way: their engines are told as not having answered."""
    asked = threading.Event()

    def hang(wire: Wire) -> None:
        asked.set()
        wire.hang()

    scraper, target = scraper_of(timeout=60.0, interval=600.0), serve(hang).target()
    outcomes: list[Round] = []
    thread = threading.Thread(target=lambda: outcomes.append(scraper.round([target], wanted)))
    thread.start()
    assert asked.wait(LONGEST)

    scraper.close()

    thread.join(LONGEST)
    assert not thread.is_alive()
    assert "did not answer" in outcomes[0].scraped[0].error
