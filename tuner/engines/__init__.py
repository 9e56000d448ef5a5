"""Serving engines, one module each: metric names, capabilities by version, schedule dialect.

A module of this package that offers ``ENGINE`` *is* an engine; nothing else lists them, so adding
one touches no other file.
"""

from __future__ import annotations

import importlib
import pkgutil

from tuner._exceptions import UnsupportedError
from tuner.engines._engine import Engine, Rendered, Setup

__all__ = ["Engine", "Rendered", "Setup", "engine_names", "get_engine"]


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines, in the order of the alphabet."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def get_engine(name: str) -> Engine:
    """Return one engine by its name.

    Raises:
        UnsupportedError: no such engine, or not supported yet.
    """
    if name not in engine_names():
        raise UnsupportedError(
            f"engine {name!r} is not supported yet: choose one of {', '.join(engine_names())}"
        )
    engine = importlib.import_module(f"{__name__}.{name}").ENGINE
    assert isinstance(engine, Engine)
    return engine
