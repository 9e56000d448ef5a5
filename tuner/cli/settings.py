"""What the operator said about a pool, from a configuration file and options of the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tuner.cycle import PoolSettings
from tuner.pool_settings import settings_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NamedSettings", "pool_settings", "settings_of"]


class NamedSettings(NamedTuple):
    """A pool's settings and its name, empty where nothing names it."""

    name: str
    pool: PoolSettings


def pool_settings(
    config_file: Path | None,
    name: str | None,
    max_batch: int | None,
    allowed_draft_lens: tuple[int, ...] | None,
) -> NamedSettings:
    """Return the settings of one pool; an option outvotes the file.

    Raises:
        InputError: the file is faulty, has no such pool, or an option is out of range.
    """
    named = NamedSettings(name or "", PoolSettings())
    if config_file is not None:
        from tuner.config import load_config

        pool = load_config(config_file).pool(name)
        named = NamedSettings(pool.name, settings_of(pool))
    options = named.pool.options
    if max_batch is not None:
        options = replace(options, max_batch=max_batch)
    if allowed_draft_lens is not None:
        options = replace(options, allowed_draft_lens=frozenset(allowed_draft_lens))
    return named._replace(pool=replace(named.pool, options=options))
