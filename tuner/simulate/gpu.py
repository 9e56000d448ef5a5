"""GPU metrics of simulated engines as the DCGM exporter names them, from the engine's own roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.simulate.cost import DRAM_CEILING, TENSOR_CEILING

if TYPE_CHECKING:
    from tuner.simulate.engines import Engines

IDLE_WATTS, FULL_WATTS = 90.0, 690.0
CLOCK_MHZ = 1980.0


def gpu_page(engines: Engines, engine: int, host: str) -> str:
    """Return the DCGM page of the one GPU that an engine runs on; fields of the device in percent."""
    busy, memory, compute = engines.gpu[:, engine].tolist()
    pool = engines.pools[engines.fixed.pool_of[engine]]
    labels = (
        f'gpu="0",UUID="GPU-{engine:08x}-0000-4000-8000-000000000000",device="nvidia0",modelName="{pool.gpu}",'
        f'Hostname="{host}"'
    )
    tensor, dram = TENSOR_CEILING * compute, DRAM_CEILING * memory
    watts = IDLE_WATTS + (FULL_WATTS - IDLE_WATTS) * (0.4 * busy + 0.6 * max(compute, memory))
    rows = (
        ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", CLOCK_MHZ),
        ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", round(watts, 3)),
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", float(round(100 * busy))),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", float(round(100 * dram))),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", round(busy, 6)),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor pipe is active.", round(tensor, 6)),
        (
            "DCGM_FI_PROF_DRAM_ACTIVE",
            "Ratio of cycles the device memory interface is active.",
            round(dram, 6),
        ),
    )
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n{name}{{{labels}}} {value!r}\n"
        for name, text, value in rows
    )
