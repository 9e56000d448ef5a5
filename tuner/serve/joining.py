"""One name for an engine: what was measured of its ranks is told under the name that discovery gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tuner.serve.snapshot import TargetStatus

Named = tuple[str, str]
"""Pool and engine."""


def target_names(targets: Iterable[TargetStatus]) -> frozenset[Named]:
    """Return pool and name of every engine that discovery knows now."""
    return frozenset((status.target.pool, status.target.engine) for status in targets)


def target_of(pool: str, engine: str, targets: Collection[Named]) -> Named | None:
    """Return the engine that windows named ``engine`` are of, ``None`` if discovery does not list it.

    Windows of a rank are named after the engine, a slash, and the rank. Names of engines may hold slashes
    too, so what discovery knows decides, not the look of the name.
    """
    for name in (engine, engine.rpartition("/")[0]):
        if (pool, name) in targets:
            return pool, name
    return None


def by_target(measured: Mapping[Named, float], targets: Collection[Named]) -> dict[Named, float]:
    """Return values of windows' engines, summed over the ranks of each engine that is listed."""
    out: dict[Named, float] = {}
    for (pool, engine), value in measured.items():
        name = target_of(pool, engine, targets)
        if name is not None:
            out[name] = out.get(name, 0.0) + value
    return out


def window_names(measured: Iterable[Named], targets: Collection[Named]) -> dict[Named, list[str]]:
    """Return engine -> names that its windows carry."""
    out: dict[Named, list[str]] = {}
    for pool, engine in sorted(measured):
        name = target_of(pool, engine, targets)
        if name is not None:
            out.setdefault(name, []).append(engine)
    return out
