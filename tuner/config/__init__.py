"""Settings: a YAML file, overridden by ``TUNER_*`` variables; secrets only ever from files.

Imported where settings are needed and not before: pydantic costs 0.2 s.
"""

from tuner.config.loading import Checked, Fault, check_config, load_config, read_secret
from tuner.config.models import Config, Cycle, Discovery, PrometheusSource, Retention, Scrape, Store, Web
from tuner.config.pools import (
    Admin,
    Drafter,
    Engines,
    Gpu,
    Guard,
    HardwareRates,
    ModelSize,
    Pool,
    Routes,
    Slo,
)

__all__ = [
    "Admin",
    "Checked",
    "Config",
    "Cycle",
    "Discovery",
    "Drafter",
    "Engines",
    "Fault",
    "Gpu",
    "Guard",
    "HardwareRates",
    "ModelSize",
    "Pool",
    "PrometheusSource",
    "Retention",
    "Routes",
    "Scrape",
    "Slo",
    "Store",
    "Web",
    "check_config",
    "load_config",
    "read_secret",
]
