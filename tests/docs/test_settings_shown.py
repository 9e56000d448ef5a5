"""Settings that the pages show are settings: each loads as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.config import load_config

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "docs/discovery.md", "docs/simulator.md")


def _shown() -> list[tuple[str, str]]:
    """Return page and text of every block that names pools of engines."""
    return [
        (page, block)
        for page in PAGES
        for block in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        if "pools:" in block and "engine: " in block
    ]


def test_every_page_shows_some() -> None:
    """The blocks are found: pages without any would pass the other test."""
    assert {page for page, _ in _shown()} == set(PAGES)


@pytest.mark.parametrize(("page", "block"), _shown())
def test_settings_load(page: str, block: str, tmp_path: Path) -> None:
    """With a database, where the block names none, they are without fault."""
    file = tmp_path / "tuner.yaml"
    store = "" if "store:" in block else f"store: {{url: 'sqlite:///{tmp_path}/t.db'}}\n"
    file.write_text(store + block)
    config = load_config(file)
    assert config.pools, page
    assert all(pool.engines.named for pool in config.pools)
