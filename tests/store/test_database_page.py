"""The questions that ``docs/database.md`` shows how to ask: each runs, on both databases, and is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy

from tests.store.samples import SCHEDULE, T0, window
from tuner.store.rollup import SETTLE_SECONDS

if TYPE_CHECKING:
    from tuner.store import Store

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "database.md").read_text()
HOUR = 3600.0


def _queries() -> list[str]:
    """Return the statements of the page."""
    blocks = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    return [statement for block in blocks for statement in block.split(";") if statement.strip()]


@pytest.fixture
def answers(store: Store, url: str) -> list[list[Any]]:
    """Ask everything of two hours of two engines, whose windows begin at odd times."""
    for engine, offset in (("e0", 0.004), ("e1", 2417.998)):
        starts = [T0 + offset + hour * HOUR + place for hour in (0, 1) for place in (0.0, 600.0)]
        store.add_windows([window(start, steps=90.0, engine=engine) for start in starts], fence=0)
    store.propose_schedule("chat-70b", SCHEDULE, state="proposed", why="because", fit_ids=(), now=T0, fence=0)
    store.roll_up(T0 + 2 * HOUR + SETTLE_SECONDS, fence=0)
    database = sqlalchemy.create_engine(url)
    with database.connect() as connection:
        out = [list(connection.execute(sqlalchemy.text(query))) for query in _queries()]
    database.dispose()
    return out


def test_tokens_per_second_have_one_row_an_hour(answers: list[list[Any]]) -> None:
    """Both engines in the hour that they ran in, one row for each pool and hour."""
    emitted = 2 * 8 * 90.0
    assert [tuple(row) for row in answers[0]] == [
        ("chat", T0 + hour * HOUR, pytest.approx(4 * emitted / HOUR)) for hour in (0, 1)
    ]


def test_the_history_of_a_schedule_has_its_versions(answers: list[list[Any]]) -> None:
    """The one version there is, with its reason."""
    (row,) = answers[1]
    assert (row.number, row.version, row.state, row.why) == (1, SCHEDULE.version, "proposed", "because")
