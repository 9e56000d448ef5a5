"""Windows on their way to the database."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.daemon.world import make_world, world_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daemon.conftest import Events


def test_the_last_round_is_not_shown_as_waiting(tmp_path: Path, events: Events) -> None:
    """A snapshot is made before the writer ran: what it is about to write is no backlog, what it left is."""
    world = make_world(world_settings(), tmp_path / "t.db", events)
    world.run_for(60.0)
    writer = world.service.writer
    writer._thread = threading.Thread()  # never started: nothing is written until flushed here
    rounds = world.parts.fleet_scraper.rounds
    while world.parts.fleet_scraper.rounds == rounds:
        world.run_for(1.0)
    assert writer.waiting > 0
    assert world.service.view().buffered == 0
    world.run_for(10.0)
    assert 0 < world.service.view().buffered < writer.waiting
    assert writer.flush()
    assert writer.overdue == 0
