"""What tests of the daemon share."""

from __future__ import annotations

from typing import Any

import pytest


class Events:
    """A log that remembers."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def debug(self, event: str, **facts: object) -> None:
        self.all.append({"level": "debug", "event": event, **facts})

    def info(self, event: str, **facts: object) -> None:
        self.all.append({"level": "info", "event": event, **facts})

    def warning(self, event: str, **facts: object) -> None:
        self.all.append({"level": "warning", "event": event, **facts})

    def error(self, event: str, **facts: object) -> None:
        self.all.append({"level": "error", "event": event, **facts})

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return all of one event."""
        return [each for each in self.all if each["event"] == event]


@pytest.fixture
def events() -> Events:
    """Return a log that remembers."""
    return Events()
