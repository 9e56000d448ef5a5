"""The device that ``tuner theory`` reckons with: two rates, or a built-in sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner._exceptions import InputError
from tuner.cli.parameters import LARGEST, Number

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.theory.roofline import Hardware

SHEET_BITS = 16.0
"""Bits of the math whose FLOP/s the sheets hold."""
SMALLEST_FLOPS = 1e9
SMALLEST_BANDWIDTH = 1e6
"""Anything slower is a number given in TFLOP/s or TB/s: 989 instead of 989e12."""


def hardware_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--flops``, ``--bandwidth`` and ``--hardware``."""
    options = (
        click.option(
            "--flops",
            type=Number(SMALLEST_FLOPS, LARGEST, hint="give dense FLOP/s, as in 989e12"),
            help="Dense FLOP/s in the math the model runs, as in 989e12.",
        ),
        click.option(
            "--bandwidth",
            type=Number(SMALLEST_BANDWIDTH, LARGEST, hint="give bytes/s, as in 3.35e12"),
            help="Memory bandwidth in bytes/s, as in 3.35e12.",
        ),
        click.option(
            "--hardware",
            metavar="NAME",
            help="A built-in sheet (dense bf16) in place of the two: h100-sxm, a100-sxm, ...",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def hardware_of(flops: float | None, bandwidth: float | None, name: str | None) -> Hardware:
    """Return the device from its two rates or from a built-in sheet."""
    from tuner.theory.hardware import hardware_sheet
    from tuner.theory.roofline import Hardware

    if name is not None:
        if flops is not None and bandwidth is not None:
            raise InputError("--hardware: give a sheet or --flops and --bandwidth, not all three")
        sheet = hardware_sheet(name).hardware
        return Hardware(flops or sheet.flops, bandwidth or sheet.bandwidth)
    if flops is None or bandwidth is None:
        raise InputError("give --flops and --bandwidth, or --hardware with the name of a sheet")
    return Hardware(flops, bandwidth)


def math_notes(flops: float | None, name: str | None, weight_bits: float) -> list[str]:
    """Say at which rate smaller weights are multiplied, where a sheet's rate was taken for it.

    Weights of 8 bits multiplied in bf16 put an H100's crossover at 148 tokens, multiplied in FP8 at 295.
    """
    if name is None or flops is not None or weight_bits >= SHEET_BITS:
        return []
    text = (
        f"the FLOP/s of a sheet are those of bf16 math: {weight_bits:g}-bit weights are taken to be read as "
        "such and multiplied in bf16; where the engine multiplies in 8 or 4 bits, give its rate by --flops "
        "(for FP8 usually twice the sheet's, which doubles the crossover)"
    )
    return [text]
