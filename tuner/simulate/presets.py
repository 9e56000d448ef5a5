"""Fleets that need no description: ``demo``, ``fixed`` and ``scale``."""

from __future__ import annotations

from tuner._exceptions import InputError
from tuner.simulate.spec import CostSpec, FleetSpec, LoadSpec, NoiseSpec, PoolSpec, RouteSpec

POOL_SIZE = 50
"""Engines of one pool of ``scale``."""


def demo() -> FleetSpec:
    """Return three pools whose loads span four times in batch: dense, mixture of experts, two routes.

    The tables at start-up hold three draft lengths, and the loads visit all three.
    """
    dense = PoolSpec(
        name="dense-70b",
        engines=4,
        model="sim/dense-70b",
        routes=(RouteSpec(name="chat", hazards=(0.74, 0.7, 0.67, 0.65), prompt=160.0, output=240.0),),
        cost=CostSpec(overhead=0.002, floor=0.016, per_token=0.00028, per_context_token=1.2e-7),
        load=LoadSpec(profile="walk", batch=(10.0, 44.0), period=120.0),
        schedule=((1, 14, 4), (15, 30, 2), (31, 96, 1)),
        max_batch=96,
    )
    moe = PoolSpec(
        name="moe-a22b",
        engines=4,
        model="sim/moe-a22b",
        method="mtp",
        routes=(RouteSpec(name="chat", alpha=0.78, prompt=140.0, output=220.0),),
        cost=CostSpec(
            overhead=0.002,
            floor=0.02,
            per_token=0.00024,
            sharpness=3.0,
            experts=128,
            experts_per_token=8,
            expert_share=0.75,
            draft_shape="concave",
            draft_base=0.0005,
            draft_slope=0.0012,
        ),
        load=LoadSpec(profile="walk", batch=(8.0, 40.0), period=120.0),
        schedule=((1, 12, 4), (13, 28, 3), (29, 96, 1)),
        max_batch=96,
    )
    mixed = PoolSpec(
        name="mixed-8b",
        engines=4,
        model="sim/mixed-8b",
        routes=(
            RouteSpec(name="tools", share=0.5, alpha=0.85, prompt=220.0, output=160.0, output_spread=0.4),
            RouteSpec(name="chat", share=0.5, alpha=0.45, prompt=120.0, output=220.0),
        ),
        cost=CostSpec(overhead=0.002, floor=0.014, per_token=0.00026, draft_shape="flat", draft_base=0.0018),
        load=LoadSpec(profile="walk", batch=(10.0, 44.0), period=120.0),
        schedule=((1, 14, 4), (15, 30, 2), (31, 96, 1)),
        max_batch=96,
    )
    return FleetSpec(pools=(dense, moe, mixed))


def fixed() -> FleetSpec:
    """Return one pool at one draft length and constant load: nothing can be told from it."""
    return FleetSpec(
        pools=(
            PoolSpec(
                name="fixed",
                engines=4,
                model="sim/fixed",
                load=LoadSpec(profile="constant", batch=(16.0, 16.0), arrivals="closed"),
                schedule=((1, 64, 3),),
            ),
        )
    )


def scale(engines: int = 1000) -> FleetSpec:
    """Return many small engines in pools of 50, with pages of a real engine's size."""
    whole, rest = divmod(engines, POOL_SIZE)
    sizes = [POOL_SIZE] * whole + ([rest] if rest else [])
    pools = tuple(
        PoolSpec(
            name=f"pool-{i:02d}",
            engines=size,
            model=f"sim/model-{i:02d}",
            routes=(RouteSpec(name="chat", alpha=0.6 + 0.02 * (i % 10)),),
            load=LoadSpec(profile="walk", batch=(8.0, 32.0), period=300.0),
            noise=NoiseSpec(),
            cost=CostSpec(floor=0.03, per_token=0.0003 + 0.00002 * (i % 5)),
        )
        for i, size in enumerate(sizes)
    )
    return FleetSpec(pools=pools, pad_bodies=True)


PRESETS = ("demo", "fixed", "scale")


def preset(name: str, engines: int | None = None) -> FleetSpec:
    """Return a built-in fleet; ``engines`` is the size of ``scale``.

    Raises:
        InputError: no such preset, or a size for one that has its own.
    """
    if name == "scale":
        return scale(1000 if engines is None else engines)
    if engines is not None:
        raise InputError(f"preset {name!r} has its own size: use --engines with scale")
    if name == "demo":
        return demo()
    if name == "fixed":
        return fixed()
    raise InputError(f"no preset {name!r}: use one of {', '.join(PRESETS)}")
