"""Simulated engines that speak a real engine's metrics and admin API; they know nothing of the fits."""

from tuner.simulate.fleet import Fleet
from tuner.simulate.presets import preset
from tuner.simulate.spec import CostSpec, FleetSpec, LoadSpec, NoiseSpec, PoolSpec, RouteSpec

__all__ = ["CostSpec", "Fleet", "FleetSpec", "LoadSpec", "NoiseSpec", "PoolSpec", "RouteSpec", "preset"]
