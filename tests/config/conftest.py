"""What tests of the settings share: a file that is fine, and a clean environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FINE = "pools:\n  - name: chat\n    engine: vllm\n"
"""The smallest settings there are."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep ``TUNER_*`` variables of whoever runs the tests out of them."""
    for name in list(os.environ):
        if name.upper().startswith("TUNER_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Write a settings file and return its path."""

    def call(text: str | bytes) -> Path:
        path = tmp_path / "tuner.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return call


@pytest.fixture
def fine() -> str:
    """Return the text of the smallest settings there are."""
    return FINE
