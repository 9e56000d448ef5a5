"""Fleet descriptions: what is read, and the one line that says what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tuner._exceptions import InputError
from tuner.simulate import PoolSpec, preset
from tuner.simulate.description import fleet_of, read_fleet

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
pad_bodies: true
pools:
  - name: chat
    engines: 3
    routes:
      - {name: tools, alpha: 0.85, share: 2}
      - {name: chat, hazards: [0.6, 0.5]}
    cost: {floor: 0.02, per_token: 2e-4, draft_shape: flat, experts: 64}
    load: {profile: steps, batch: [4, 16], period: 2m}
    noise: {window: 0}
    schedule: [[1, 8, 3], [9, 32, 1]]
    max_draft_len: 3
    plugin: false
"""


def test_a_description_is_read(tmp_path: Path) -> None:
    """Every kind of field arrives: texts, numbers, durations, lists, nested parts."""
    path = tmp_path / "fleet.yaml"
    path.write_text(TEXT)
    fleet = read_fleet(path)
    (pool,) = fleet.pools
    assert fleet.pad_bodies is True
    assert (pool.name, pool.engines, pool.plugin) == ("chat", 3, False)
    assert [route.hazard_at(5) for route in pool.routes] == [0.85, 0.5]
    assert (pool.cost.per_token, pool.cost.experts, pool.cost.draft_shape) == (2e-4, 64, "flat")
    assert (pool.load.period, pool.load.batch) == (120.0, (4.0, 16.0))
    assert pool.schedule == ((1, 8, 3), (9, 32, 1))
    assert pool.noise.step == PoolSpec().noise.step


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "fleet must be a mapping"),
        ({"pool": []}, "unknown key 'pool': use one of pools, pad_bodies"),
        ({"pools": {}}, "fleet.pools must be a list"),
        ({"pools": []}, "no pools"),
        ({"pools": [{"engines": "two"}]}, r"fleet.pools\[0\].engines must be a whole number"),
        ({"pools": [{"engines": True}]}, r"fleet.pools\[0\].engines must be a int"),
        ({"pools": [{"plugin": 1}]}, "must be"),
        ({"pools": [{"engines": 0}]}, "pool 'pool': engines is 0: give a number from 1"),
        ({"pools": [{"engines": 9999}]}, "use several processes"),
        ({"pools": [{"name": "a"}, {"name": "a"}]}, "two pools have one name"),
        ({"pools": [{"name": "a/b"}]}, "part of URLs"),
        ({"pools": [{"routes": []}]}, "no routes"),
        ({"pools": [{"routes": [{"alpha": 1.2}]}]}, "acceptance is 1.2"),
        ({"pools": [{"routes": [{"alpha": float("nan")}]}]}, "acceptance is nan"),
        ({"pools": [{"load": {"batch": [9]}}]}, "must have 2 items"),
        ({"pools": [{"load": {"batch": [9, 4]}}]}, "batch highest is 4"),
        ({"pools": [{"load": {"period": "soon"}}]}, "is not a duration"),
        ({"pools": [{"load": {"profile": "flat"}}]}, "use one of constant, walk, day, steps"),
        ({"pools": [{"schedule": [[2, 8, 1]]}]}, "ranges start at 1"),
        ({"pools": [{"schedule": [[1, 8, 9]]}]}, "draft length is 9"),
        ({"pools": [{"max_step_tokens": 10}]}, "max_step_tokens is 10"),
    ],
)
def test_faults_are_named_with_their_place(document: object, message: str) -> None:
    """One line names the field, what is there and what to write."""
    with pytest.raises(InputError, match=message) as caught:
        fleet_of(document)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a binary one, and YAML with a fault are named with the path, the last with the line."""
    path = tmp_path / "fleet.yaml"
    with pytest.raises(InputError, match=r"fleet\.yaml: cannot be read: No such file"):
        read_fleet(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        read_fleet(path)
    path.write_text("pools:\n  - {name: a\n")
    with pytest.raises(InputError, match="line 3 is not YAML"):
        read_fleet(path)


def test_presets() -> None:
    """The presets are what docs/simulator.md says; others are refused."""
    assert [pool.name for pool in preset("demo").pools] == ["dense-70b", "moe-a22b", "mixed-8b"]
    assert len({row[2] for row in preset("fixed").pools[0].schedule}) == 1
    scale = preset("scale", 120)
    assert [pool.engines for pool in scale.pools] == [50, 50, 20]
    assert scale.pad_bodies
    with pytest.raises(InputError, match="no preset 'x'"):
        preset("x")
    with pytest.raises(InputError, match="its own size"):
        preset("demo", 5)
