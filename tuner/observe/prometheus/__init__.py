"""Prometheus, and what speaks its API, as a source of scrapes and of targets."""

from tuner.observe.prometheus.source import PrometheusSource, SourceAnswer

__all__ = ["PrometheusSource", "SourceAnswer"]
