"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.servers"]

# A deadline is a timed assertion, and a loaded machine breaks it. In CI the same examples come each time, so
# that a change is judged by what it changed; at home new ones do.
settings.register_profile("home", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")

# Benchmarks take their seeds from the commit. A test that reuses one with a few repetitions must not: its
# bounds are for many, and one commit in a dozen would fail by chance.
os.environ.setdefault("BENCH_COMMIT", "0" * 40)


LONGEST_ID = 40
"""Characters of a text that still names a test; the workers of one run must agree on every name, and salts
and time stamps sit in long texts."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a case by its argument and place where its value is binary or long."""
    if isinstance(val, bytes) or (isinstance(val, str) and len(val) > LONGEST_ID):
        return argname
    return None
