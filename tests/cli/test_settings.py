"""What of a configuration reaches a replay: the settings that the reference marks, and no others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tuner.cli import tuner
from tuner.cli.settings import pool_settings
from tuner.config import Pool
from tuner.config.obeyed import OBEYED, obeyed
from tuner.config.structure import section_of
from tuner.engines import engine_names

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

BASE: dict[str, Any] = {
    "name": "a", "engine": "vllm", "max_batch": 64, "allowed_draft_lens": [0, 1, 2],
    "engines": {"static": ["http://10.0.0.5:8000"]}, "admin": {"token_file": "/a"},
    "hardware": {"name": "x", "flops": 1e12, "bandwidth": 1e12},
    "model": {"params": 7e9, "active_params": 7e9}, "drafter": {"method": "eagle3", "params": 1e9},
}  # fmt: skip
OTHER: dict[str, Any] = {
    "name": "b", "mode": "advise", "engine": "other", "max_batch": 32, "allowed_draft_lens": [0, 1],
    "objective": "latency", "engines.static": ["http://10.0.0.6:8000"], "engines.file_sd": ["/etc/x/*.json"],
    "engines.http_sd": "http://10.0.0.7/sd", "engines.prometheus.source": "main",
    "engines.prometheus.selector": 'job="v"', "engines.prometheus.read": "direct",
    "engines.prometheus.fallback": True, "engines.metrics_path": "/m", "engines.identity": ["pod"],
    "gpu.exporters": ["http://10.0.0.8:9400"], "gpu.prometheus.source": "main",
    "gpu.prometheus.selector": 'job="d"', "gpu.join": {"pod": "pod"}, "startup_schedule": [[1, 64, 2]],
    "admin.url_template": "https://{{ address }}",
    "admin.token_file": "/b", "hardware.name": "y", "hardware.flops": 2e12, "hardware.bandwidth": 2e12,
    "model.params": 8e9, "model.active_params": 3e9, "model.weight_bits": 8, "drafter.method": "ngram",
    "drafter.params": 2e9, "slo.tpot": "40ms", "slo.ttft": "2s", "routes.label": "tier",
    "routes.header": "X-Tier", "routes.max": 5, "guard.min_gain": 0.1, "guard.tie": 0.05, "guard.dwell": "1h",
    "guard.max_changes_per_day": 1, "guard.engines_at_once": 2, "guard.lease": "20m", "explore.budget": 0.02,
}  # fmt: skip
"""Every setting of a pool with a value other than in BASE."""


def _leaves(model: type[BaseModel], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key, field in model.model_fields.items():
        section, _ = section_of(field.annotation)
        names += _leaves(section, f"{prefix}{key}.") if section is not None else [prefix + key]
    return names


def _write(path: Path, document: dict[str, Any]) -> Path:
    import json

    sources = {"prometheus": [{"name": "main", "url": "http://127.0.0.1:9090"}]}
    path.write_text(json.dumps({"sources": sources, "pools": [document]}))
    return path


def _with(setting: str) -> dict[str, Any]:
    """Return the base with one setting changed."""
    document = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    *sections, key = setting.split(".")
    here = document
    for section in sections:
        here = here.setdefault(section, {})
    here[key] = OTHER[setting]
    if setting.startswith("gpu"):
        document["gpu"].setdefault("join", {"node": "node"})
        document["gpu"].setdefault("exporters", ["http://10.0.0.9:9400"])
    if setting.startswith(("engines.prometheus", "gpu.prometheus")):
        here.setdefault("source", "main")
        here.setdefault("selector", 'job="x"')
    return document


def test_every_setting_of_a_pool_is_tried() -> None:
    """A new setting has to be listed above, and so decided on."""
    assert set(OTHER) == set(_leaves(Pool))


@pytest.mark.parametrize("setting", sorted(OTHER))
def test_a_replay_obeys_what_the_reference_marks(tmp_path: Path, setting: str) -> None:
    """Changing a setting changes what a replay works with exactly if the reference says that it is used."""
    base = pool_settings(_write(tmp_path / "base.yaml", BASE), None, None, None)
    changed = pool_settings(_write(tmp_path / "changed.yaml", _with(setting)), None, None, None)
    assert (changed != base) is obeyed(f"pools[].{setting}")


def test_sections_are_used_where_anything_in_them_is() -> None:
    """The mark of a section follows from its settings."""
    assert obeyed("pools")
    assert obeyed("pools[].guard")
    assert not obeyed("pools[].explore")
    assert not obeyed("web")


def test_the_help_of_replay_names_what_it_obeys() -> None:
    """``--config.file`` lists the settings, whole sections by their name."""
    text = " ".join(CliRunner().invoke(tuner, ["replay", "--help"]).output.split())
    told = text.partition("--config.file")[2].partition("Options outvote it")[0]
    for name in OBEYED - {"pools", "pools[].name"}:
        short = name.removeprefix("pools[].")
        assert short in told or short.split(".")[0] in re.findall(r"[a-z_]+", told), name


def test_the_kinds_of_engine_are_those_that_are_known() -> None:
    """The description of ``engine`` lists what can be chosen, no more and no less."""
    description = Pool.model_fields["engine"].description
    assert description == f"Kind of engine: {', '.join(engine_names())}."
