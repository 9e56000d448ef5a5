"""The reference and the example: both hold every setting, and neither is out of date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.config.models import Config
from tuner.config.reference import render
from tuner.config.structure import section_of

MARKS = ("| replay and daemon |", "| daemon |", "| not yet |")
ROOT = Path(__file__).resolve().parents[2]


def _keys(model: type = Config) -> set[str]:
    """Return the name of every setting."""
    names: set[str] = set()
    for name, field in getattr(model, "model_fields").items():  # noqa: B009 - of any section
        names.add(name)
        section, _ = section_of(field.annotation)
        if section is not None:
            names |= _keys(section)
    return names


def test_reference_is_current() -> None:
    """``docs/configuration.md`` is what ``python -m tuner.config.reference`` prints."""
    assert (ROOT / "docs" / "configuration.md").read_text() == render()


@pytest.mark.parametrize("key", sorted(_keys()))
def test_example_holds_every_setting(key: str) -> None:
    """Each setting stands in the example, if only behind a #."""
    assert re.search(rf"\b{key}:", (ROOT / "tuner.example.yaml").read_text())


def test_example_remarks_are_settings_too(tmp_path: Path) -> None:
    """The example with its remarks switched on has no fault but the pairs that exclude each other."""
    from tuner.config import check_config

    text = (ROOT / "tuner.example.yaml").read_text()
    switched_on = re.sub(r"^(\s+)# (?=[a-z_]+: )", r"\1", text, flags=re.MULTILINE)
    path = tmp_path / "all.yaml"
    path.write_text(switched_on)

    assert switched_on != text
    assert [fault.field for fault in check_config(path).faults] == [
        "sources.prometheus[0].username",
        "alerting.alertmanagers",
    ]


def test_every_setting_is_explained() -> None:
    """No description is missing or has its end missing."""
    rows = [line for line in render().splitlines() if line.endswith(MARKS)]

    assert len(rows) > 60
    for row in rows:
        assert row.split("|")[4].strip().endswith((".", "...")), row
