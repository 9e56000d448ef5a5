"""Faults on demand: each shows what it should, for as long as it should, and leaves the others alone."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.simulate.helper import BEARER, TOKEN, one_pool, value, vllm
from tuner._exceptions import InputError
from tuner.simulate import Fleet
from tuner.simulate.faults import KINDS


@pytest.fixture
def fleet() -> Fleet:
    """Return two engines that have run for 30 s."""
    fleet = Fleet(one_pool(engines=2), seed=6, token=TOKEN)
    fleet.advance(30)
    return fleet


def generated(fleet: Fleet, n: int = 0) -> float:
    """Return the tokens that an engine says it generated."""
    return vllm(fleet.body("p", n), "generation_tokens_total")


def test_a_restart_begins_anew(fleet: Fleet) -> None:
    """Counters fall to zero, the start time moves, requests and a pushed table are lost; others go on."""
    body = {"version": "v", "fence": 3, "schedule": [[1, 64, 1]]}
    fleet.put_schedule("p", 0, body, BEARER)
    boot, other = fleet.get_schedule("p", 0)[1]["boot_id"], generated(fleet, 1)
    assert fleet.fault("restart", "p", 0) == 1
    page = fleet.body("p", 0)
    assert vllm(page, "generation_tokens_total") == 0
    assert vllm(page, "num_requests_running") == 0
    assert value(page, "process_start_time_seconds") == fleet.now
    told = fleet.get_schedule("p", 0)[1]
    assert (told["source"], told["fence"]) == ("startup", 0)
    assert told["boot_id"] != boot
    assert generated(fleet, 1) == other
    fleet.advance(30)
    assert generated(fleet) > 1000


def test_a_crash_lasts_and_ends_in_a_restart(fleet: Fleet) -> None:
    """A crashed engine does nothing until its time is over, and then starts anew."""
    before = generated(fleet)
    fleet.fault("crash", "p", 0, seconds=20)
    fleet.advance(19)
    assert generated(fleet) == before
    assert "crash" in fleet.faults_of("p", 0)
    fleet.advance(2)
    assert value(fleet.body("p", 0), "process_start_time_seconds") == pytest.approx(fleet.now - 1)
    assert fleet.faults_of("p", 0) == {}


def test_acceptance_collapses_and_recovers(fleet: Fleet) -> None:
    """A factor on every acceptance shows at once in running requests, and goes with the fault."""

    def first_position(seconds: float) -> float:
        before = fleet.body("p", 0)
        fleet.advance(seconds)
        after = fleet.body("p", 0)
        drafts, accepted = (
            sum(vllm(page, name, **labels) * sign for page, sign in ((after, 1), (before, -1)))
            for name, labels in (
                ("spec_decode_num_drafts_total", {}),
                ("spec_decode_num_accepted_tokens_per_pos_total", {"position": "0"}),
            )
        )
        return accepted / drafts

    healthy = first_position(30)
    fleet.fault("acceptance", "p", 0, seconds=30, factor=0.3)
    assert first_position(30) == pytest.approx(0.3 * healthy, rel=0.1)
    assert first_position(30) == pytest.approx(healthy, rel=0.1)


def test_a_slow_machine_takes_longer_steps(fleet: Fleet) -> None:
    """Step time is multiplied by the factor while the fault lasts."""
    speed = fleet.engines.state.speed[0]
    fleet.fault("speed", "p", 0, factor=2.0)
    fleet.advance(10)
    assert fleet.engines.state.speed[0] == pytest.approx(2 * speed, rel=0.02)
    fleet.fault("clear", "p", 0)
    assert fleet.engines.state.speed[0] == pytest.approx(speed, rel=0.02)


def test_a_lost_schedule_shows_only_in_reading_back(fleet: Fleet) -> None:
    """The table of the start-up runs again with the same boot id and counters that go on."""
    fleet.put_schedule("p", 0, {"version": "v", "fence": 3, "schedule": [[1, 64, 1]]}, BEARER)
    before, boot = generated(fleet), fleet.get_schedule("p", 0)[1]["boot_id"]
    fleet.fault("schedule_lost", "p", 0)
    told = fleet.get_schedule("p", 0)[1]
    assert (told["source"], told["fence"], told["boot_id"]) == ("startup", 3, boot)
    assert generated(fleet) == before


def test_another_engine_comes_back(fleet: Fleet) -> None:
    """After a change of method the labels name another model, the plugin another version."""
    fleet.fault("method", "p", 0, model="m2", version="0.33.1")
    assert 'model_name="m2"' in fleet.body("p", 0)
    assert "sim/model" not in fleet.body("p", 0)
    assert fleet.get_schedule("p", 0)[1]["engine_version"] == "0.33.1"
    assert "sim/model" in fleet.body("p", 1)


def test_a_stale_page_stays_until_the_fault_ends(fleet: Fleet) -> None:
    """The same bytes come again and again, then the present again."""
    fleet.fault("stale", "p", 0, seconds=20)
    page = fleet.body("p", 0)
    fleet.advance(15)
    assert fleet.body("p", 0) == page
    fleet.advance(10)
    assert generated(fleet) > vllm(page, "generation_tokens_total")


def test_impossible_numbers(fleet: Fleet) -> None:
    """Counters of speculation turn into NaN; the others stay."""
    fleet.fault("nan", "p", 0)
    page = fleet.body("p", 0)
    assert math.isnan(vllm(page, "spec_decode_num_drafts_total"))
    assert generated(fleet) > 0
    assert not math.isnan(vllm(fleet.body("p", 1), "spec_decode_num_drafts_total"))


def test_counters_go_back_without_a_restart(fleet: Fleet) -> None:
    """Counters show less than before while the start time stays."""
    before, page = generated(fleet), fleet.body("p", 0)
    fleet.fault("backwards", "p", 0)
    assert generated(fleet) < before
    started = "process_start_time_seconds"
    assert value(fleet.body("p", 0), started) == value(page, started)


def test_a_cut_page_ends_inside_a_line(fleet: Fleet) -> None:
    """Half a page has no newline at its end."""
    whole = fleet.body("p", 0)
    fleet.fault("truncated", "p", 0)
    assert whole.startswith(fleet.body("p", 0))
    assert not fleet.body("p", 0).endswith("\n")


def test_a_skewed_clock_moves_what_the_engine_dates(fleet: Fleet) -> None:
    """Start time, creation times and the plugin's times are ahead by the offset."""
    before = value(fleet.body("p", 0), "process_start_time_seconds")
    fleet.fault("clock_skew", "p", 0, offset=-3600.0)
    assert value(fleet.body("p", 0), "process_start_time_seconds") == before - 3600
    assert fleet.get_schedule("p", 0)[1]["applied_at"] == before - 3600


def test_faults_of_a_pool_and_of_all(fleet: Fleet) -> None:
    """Without an engine a fault is the pool's, without a pool the fleet's; clear ends one kind or all."""
    assert fleet.fault("down", "p") == 2
    assert fleet.fault("html") == 2
    assert set(fleet.faults_of("p", 1)) == {"down", "html"}
    fleet.fault("clear", "p", fault="down")
    assert set(fleet.faults_of("p", 0)) == {"html"}
    fleet.fault("clear")
    assert fleet.faults_of("p", 1) == {}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_fault_begins_and_ends(fleet: Fleet, kind: str) -> None:
    """No fault stops the fleet, and after its end the engine counts again."""
    fleet.fault(kind, "p", 0, seconds=5)
    fleet.advance(10)
    assert fleet.faults_of("p", 0) == {}
    before = generated(fleet)
    fleet.advance(20)
    assert generated(fleet) > before


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        ("fire", {}, "no fault 'fire'"),
        ("speed", {"speed": 2}, "no parameter 'speed'"),
        ("speed", {"factor": 0}, "factor"),
        ("speed", {"factor": "two"}, "must be a number"),
        ("method", {"model": 3}, "must be text"),
        ("slow", {"delay": math.inf}, "out of range"),
        ("clear", {"factor": 3}, "clear takes no parameter"),
    ],
)
def test_faults_that_do_not_exist(fleet: Fleet, kind: str, given: dict[str, Any], named: str) -> None:
    """An unknown kind or parameter is refused in one line, and nothing begins."""
    with pytest.raises(InputError, match=named):
        fleet.fault(kind, "p", 0, **given)
    assert fleet.faults_of("p", 0) == {}


def test_a_fault_of_no_engine(fleet: Fleet) -> None:
    """A pool or an engine that is not there is refused."""
    for pool, engine in (("q", 0), ("p", 2), ("p", -1), (None, 0)):
        with pytest.raises(InputError):
            fleet.fault("down", pool, engine)
