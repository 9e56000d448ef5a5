"""Hardware sheets: dense bf16 FLOP/s and memory bandwidth of common accelerators, with their source.

A sheet is a prior, outvoted by measured steps: sustained clocks and bandwidth lie 10-30 % below
these peaks. Vendors print tensor-core rates "with sparsity"; the dense rate is half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.theory.roofline import Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HardwareSheet:
    """One accelerator: its peaks and where they are printed."""

    name: str
    hardware: Hardware
    source: str


def _sheets(*rows: tuple[str, float, float, str]) -> Mapping[str, HardwareSheet]:
    """Build the table from (name, dense bf16 FLOP/s, bytes/s, source)."""
    return MappingProxyType(
        {name: HardwareSheet(name, Hardware(flops, rate), source) for name, flops, rate, source in rows}
    )


SHEETS = _sheets(
    ("a100-sxm", 312e12, 2.039e12, "NVIDIA A100 80GB SXM datasheet: 312 TFLOPS bf16, 2 039 GB/s"),
    ("a100-pcie", 312e12, 1.935e12, "NVIDIA A100 80GB PCIe datasheet: 312 TFLOPS bf16, 1 935 GB/s"),
    ("h100-sxm", 989e12, 3.35e12, "NVIDIA H100 SXM datasheet: 1 979 TFLOPS bf16 with sparsity, 3.35 TB/s"),
    ("h100-pcie", 756e12, 2.0e12, "NVIDIA H100 PCIe datasheet: 1 513 TFLOPS bf16 with sparsity, 2 TB/s"),
    ("h200-sxm", 989e12, 4.8e12, "NVIDIA H200 SXM datasheet: 1 979 TFLOPS bf16 with sparsity, 4.8 TB/s"),
    ("b200-sxm", 2250e12, 8.0e12, "NVIDIA HGX B200 datasheet: 4.5 PFLOPS bf16 with sparsity, 8 TB/s"),
    ("l40s", 362e12, 0.864e12, "NVIDIA L40S datasheet: 362 TFLOPS bf16, 864 GB/s"),
)
"""The built-in sheets by name."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {"a100": "a100-sxm", "h100": "h100-sxm", "h200": "h200-sxm", "b200": "b200-sxm"}
)
"""Short names for the board that servers carry."""


def hardware_sheet(name: str) -> HardwareSheet:
    """Return the sheet called ``name``, in any case.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    key = name.strip().lower()
    sheet = SHEETS.get(ALIASES.get(key, key))
    if sheet is None:
        raise InputError(
            f"unknown hardware {name!r}: use one of {', '.join(SHEETS)}, or give flops and bandwidth"
        )
    return sheet
