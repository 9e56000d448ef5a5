"""One name for an engine, whatever its ranks and its windows are called."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.serve.samples import named, scrape
from tests.serve.worlds import snapshot, target
from tuner.serve.joining import by_target, target_of, window_names
from tuner.serve.observed import Observed

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    Served = Callable[..., httpx2.Client]

TARGETS = frozenset({("p", "x"), ("p", "ns/pod"), ("q", "y")})


@pytest.mark.parametrize(
    ("engine", "expected"),
    [("x", "x"), ("x/0", "x"), ("x/11", "x"), ("ns/pod", "ns/pod"), ("ns/pod/1", "ns/pod")],
)
def test_a_rank_belongs_to_its_engine(engine: str, expected: str) -> None:
    """A rank's name is the engine's with the rank behind; slashes in the engine's own name do not matter."""
    assert target_of("p", engine, TARGETS) == ("p", expected)


@pytest.mark.parametrize(("pool", "engine"), [("p", "z/0"), ("q", "x/0"), ("p", "ns"), ("p", "x/0/1")])
def test_what_discovery_does_not_list_belongs_to_nobody(pool: str, engine: str) -> None:
    """Engines that are gone, and those of another pool."""
    assert target_of(pool, engine, TARGETS) is None


def test_ranks_are_summed() -> None:
    """Two ranks give what both give; one that is gone gives nothing."""
    measured = {("p", "x/0"): 10.0, ("p", "x/1"): 20.0, ("q", "y"): 1.0, ("p", "gone/0"): 5.0}
    assert by_target(measured, TARGETS) == {("p", "x"): 30.0, ("q", "y"): 1.0}
    assert window_names(measured, TARGETS) == {("p", "x"): ["x/0", "x/1"], ("q", "y"): ["y"]}


def test_metrics_and_api_have_one_name_for_an_engine(served: Served) -> None:
    """Goodput joins the state of its engine by name; windows' names are told beside it."""
    goodput = {("chat", "e0/0"): 10.0, ("chat", "e0/1"): 20.0}
    shown = replace(
        snapshot(targets=(target("chat", "e0"), target("chat", "e1"))), observed=Observed(goodput=goodput)
    )
    series = scrape(shown)
    told = named(series, "tuner_goodput_tokens_per_second")
    assert told == {frozenset({("pool", "chat"), ("engine", "e0")}): 30.0}
    assert set(told) <= set(named(series, "tuner_target_up"))
    first, second = served(view=lambda: shown).get("/api/v1/engines").json()["engines"]
    assert (first["tokens_per_second"], first["window_engines"]) == (30.0, ["e0/0", "e0/1"])
    assert (second["tokens_per_second"], second["window_engines"]) == (None, [])
