"""Settings for tests of the daemon."""

from __future__ import annotations

from typing import Any

from tuner.config import Config


def config(**sections: Any) -> Config:
    """Return settings with one pool of one engine, and what is given."""
    pools = [{"name": "chat", "engine": "vllm", "engines": {"static": ["http://127.0.0.1:1"]}}]
    return Config(**{"pools": pools, **sections})
