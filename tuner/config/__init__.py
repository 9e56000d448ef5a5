"""Settings: a YAML file, overridden by ``TUNER_*`` variables; secrets only ever from files.

Imported where settings are needed and not before: pydantic costs 0.2 s.
"""

from tuner.config.loading import Checked, Fault, check_config, load_config, read_secret
from tuner.config.models import (
    Admin,
    Config,
    Drafter,
    Guard,
    HardwareRates,
    ModelSize,
    Pool,
    PrometheusSource,
    Routes,
    Slo,
)

__all__ = [
    "Admin",
    "Checked",
    "Config",
    "Drafter",
    "Fault",
    "Guard",
    "HardwareRates",
    "ModelSize",
    "Pool",
    "PrometheusSource",
    "Routes",
    "Slo",
    "check_config",
    "load_config",
    "read_secret",
]
