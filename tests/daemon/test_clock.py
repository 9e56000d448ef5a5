"""Steady time: goes on with monotonic time, follows the wall slowly, reports steps."""

from __future__ import annotations

import pytest

from tuner.daemon.clock import STEP_SECONDS, SteadyClock, SystemClock, VirtualClock


def test_time_goes_on_with_the_wall() -> None:
    """Without any step steady time is wall time."""
    wall = VirtualClock()
    steady = SteadyClock(wall)
    for _ in range(100):
        wall.advance(15.0)
        assert steady.settle() == 0.0
        assert steady.now() == pytest.approx(wall.now())


@pytest.mark.parametrize("step", [3600.0, -3600.0, 30 * 86_400.0, -2.5])
def test_a_step_is_reported_once_and_then_taken(step: float) -> None:
    """A step shows neither in ``now`` nor anywhere until the clock is settled, and is told exactly once."""
    wall = VirtualClock()
    steady = SteadyClock(wall)
    wall.advance(10.0)
    before = steady.now()
    wall.step(step)
    assert steady.now() == before
    assert steady.settle() == pytest.approx(step)
    assert steady.now() == pytest.approx(wall.now())
    wall.advance(1.0)
    assert steady.settle() == 0.0


def test_slow_changes_are_followed_and_never_take_time_back() -> None:
    """A wall clock that is slewed by 0.4 ms a second is followed; time never goes back meanwhile."""
    wall = VirtualClock()
    steady = SteadyClock(wall)
    last = steady.now()
    for _ in range(5000):
        wall.advance(1.0)
        wall.step(-0.0004)
        assert steady.settle() == 0.0
        assert steady.now() > last
        last = steady.now()
    assert steady.now() == pytest.approx(wall.now(), abs=0.01)


def test_a_small_leap_is_no_step() -> None:
    """A second, as a leap second, is made up for slowly and not reported."""
    wall = VirtualClock()
    steady = SteadyClock(wall)
    wall.step(STEP_SECONDS / 2)
    assert steady.settle() == 0.0
    wall.advance(1.0)
    steady.settle()
    assert wall.now() - steady.now() == pytest.approx(STEP_SECONDS / 2, abs=0.01)
    for _ in range(1100):
        wall.advance(1.0)
        steady.settle()
    assert steady.now() == pytest.approx(wall.now(), abs=0.001)


def test_the_system_clock_goes_forward() -> None:
    """The host's clock gives both readings."""
    clock = SystemClock()
    assert clock.now() > 1_700_000_000.0
    assert clock.monotonic() <= clock.monotonic()
