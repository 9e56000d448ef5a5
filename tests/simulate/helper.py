"""Small fleets whose every part can be told apart, and plain reading of their pages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.simulate import CostSpec, Fleet, FleetSpec, LoadSpec, NoiseSpec, PoolSpec, RouteSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET = NoiseSpec(window=0.0, step=0.0, drift_low=0.0, drift_high=0.0)
PLAIN = RouteSpec(request_spread=0.0, passage_spread=0.0)
ENDLESS = replace(PLAIN, prompt=1.0, prompt_spread=0.0, output=100_000.0, output_spread=0.0)
"""Requests that do not end within a test, without prompts to speak of: the batch stays as it is."""
TOKEN = "s3cret"  # noqa: S105 - of a simulated engine
BEARER = f"Bearer {TOKEN}"
SERIES = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


def one_pool(*, pad: bool = False, **fields: Any) -> FleetSpec:
    """Return a fleet of one pool called ``p``, without noise where nothing else is said."""
    fields.setdefault("noise", QUIET)
    return FleetSpec(pools=(PoolSpec(name="p", **fields),), pad_bodies=pad)


def held(batch: int, draft_len: int, cost: CostSpec | None = None, route: RouteSpec = ENDLESS) -> Fleet:
    """Return one engine that holds ``batch`` requests at one draft length."""
    spec = one_pool(
        engines=1,
        routes=(route,),
        cost=cost or CostSpec(),
        load=LoadSpec(arrivals="closed", profile="constant", batch=(batch, batch)),
        schedule=((1, 64, draft_len),),
        kv_tokens=100_000_000,
    )
    return Fleet(spec, token=TOKEN)


def series(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of every sample of a page."""
    for line in page.splitlines():
        if line and not line.startswith("#"):
            match = SERIES.match(line)
            assert match is not None, line
            yield match[1], dict(LABEL.findall(match[2] or "")), float(match[3])


def value(page: str, name: str, **labels: str) -> float:
    """Return the sum of the samples of a name that carry these labels."""
    found = [v for n, own, v in series(page) if n == name and labels.items() <= own.items()]
    assert found, name
    return sum(found)


def vllm(page: str, name: str, **labels: str) -> float:
    """Return a value of vLLM's own."""
    return value(page, f"vllm:{name}", **labels)
