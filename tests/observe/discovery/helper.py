"""What tests of discovery share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx2

from tuner.observe.discovery import Directory, EnginesSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.observe.discovery import Roster
    from tuner.observe.outcomes import SourceError


class Server:
    """A Prometheus server that says what a test tells it to say."""

    name = "main"

    def __init__(self, said: tuple[dict[str, str], ...] | SourceError) -> None:
        self.said = said
        self.asked: list[tuple[str, float]] = []

    def targets(self, selector: str, now: float, /) -> tuple[dict[str, str], ...] | SourceError:
        """Return what the test wants, and note what was asked."""
        self.asked.append((selector, now))
        return self.said


def no_network(request: httpx2.Request) -> httpx2.Response:
    """Fail any test that asks somebody."""
    raise AssertionError(f"nobody should ask {request.url}")


def directory(spec: EnginesSpec) -> Directory:
    """Return a directory without network."""
    return Directory(spec, httpx2.Client(transport=httpx2.MockTransport(no_network)))


def groups(*groups: dict[str, str] | str) -> str:
    """Return target groups as JSON: an address, or labels with the address among them."""
    listed = [{"address": group} if isinstance(group, str) else dict(group) for group in groups]
    return json.dumps([{"targets": [labels.pop("address")], "labels": labels} for labels in listed])


def write(path: Path, text: str) -> Path:
    """Replace a file as configuration management does: written beside, then renamed."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text)
    return beside.replace(path)


def engines(roster: Roster) -> dict[str, str]:
    """Return engine -> address of its metrics."""
    return {target.engine: target.url for target in roster.targets}


def codes(roster: Roster) -> list[str]:
    """Return the codes of a roster's findings."""
    return [finding.code for finding in roster.findings]
