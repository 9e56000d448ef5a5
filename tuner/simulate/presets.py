"""Fleets that need no description: ``demo``, ``fixed`` and ``scale``."""

from __future__ import annotations

from tuner._exceptions import InputError
from tuner.simulate.spec import CostSpec, FleetSpec, LoadSpec, NoiseSpec, PoolSpec, RouteSpec

POOL_SIZE = 50
"""Engines of one pool of ``scale``."""


DEMO_LOAD = LoadSpec(profile="day", batch=(5.0, 36.0), period=480.0)
"""A day of eight minutes: in ten simulated minutes each engine passes every batch size twice or more."""


def demo() -> FleetSpec:
    """Return three pools, dense, mixture of experts and two routes, whose loads span more than four times.

    The tables at start-up hold three draft lengths the wrong way round, long drafts where the batch is
    large, as someone writes them who looked at acceptance alone. So tokens in flight span thirty times,
    from far below the crossover to far above it, and the right table earns 10-15 %.
    """
    dense = PoolSpec(
        name="dense-70b",
        engines=4,
        model="sim/dense-70b",
        routes=(RouteSpec(name="chat", alpha=0.7, prompt=110.0, output=240.0),),
        cost=CostSpec(overhead=0.0015, floor=0.01, per_token=0.00015, draft_base=0.0006, draft_slope=0.00045),
        load=DEMO_LOAD,
        schedule=((1, 10, 1), (11, 22, 2), (23, 64, 4)),
    )
    moe = PoolSpec(
        name="moe-a22b",
        engines=4,
        model="sim/moe-a22b",
        method="mtp",
        routes=(RouteSpec(name="chat", alpha=0.78, prompt=110.0, output=240.0),),
        cost=CostSpec(
            overhead=0.0015,
            floor=0.0125,
            per_token=0.00014,
            experts=64,
            experts_per_token=8,
            expert_share=0.3,
            draft_base=0.0006,
            draft_slope=0.0004,
        ),
        load=DEMO_LOAD,
        schedule=((1, 10, 1), (11, 22, 3), (23, 64, 4)),
    )
    mixed = PoolSpec(
        name="mixed-8b",
        engines=4,
        model="sim/mixed-8b",
        routes=(
            RouteSpec(name="tools", alpha=0.85, prompt=110.0, output=240.0),
            RouteSpec(name="chat", alpha=0.45, prompt=110.0, output=240.0),
        ),
        cost=CostSpec(
            overhead=0.0015, floor=0.0095, per_token=0.00014, draft_shape="flat", draft_base=0.0014
        ),
        load=DEMO_LOAD,
        schedule=((1, 10, 1), (11, 22, 2), (23, 64, 4)),
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
