"""Samples by metric, each in its bounds: no value that is not a number, no series twice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import Metric as Family

from tuner.serve.catalogue import METRICS
from tuner.serve.labels import clean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.serve.catalogue import Metric

BY_NAME = {metric.name: metric for metric in METRICS}
ENDS = ("low", "high")
_SUFFIX = {"counter": "_total", "info": "_info"}


class Page:
    """All families, in the order of the catalogue; those without a sample still tell their help."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        self.left_out: dict[str, int] = {}
        """Label -> values beyond its bound."""
        for metric in METRICS:
            for name in metric.names:
                self._families[name] = _family(metric, name)

    @property
    def families(self) -> list[Family]:
        """What a registry takes."""
        return list(self._families.values())

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add one sample; a value that is not finite, or a series that is there already, is left out."""
        named = self._open(name, labels)
        if named is not None and math.isfinite(value):
            self._families[name].add_sample(name, named, float(value))

    def put_interval(self, name: str, value: float, low: float, high: float, *labels: str) -> None:
        """Add an estimate with the ends of its interval."""
        if not all(math.isfinite(number) for number in (value, low, high)):
            return
        self.put(name, value, *labels)
        for end, number in zip(ENDS, (low, high), strict=True):
            self.put(f"{name}_{end}", number, *labels)

    def put_histogram(self, name: str, counts: Sequence[float], *labels: str) -> None:
        """Add a histogram over the whole numbers 0, 1, ...; ``counts[i]`` observations were i."""
        named = self._open(name, labels)
        if named is None or not all(math.isfinite(count) for count in counts):
            return
        family, total = self._families[name], 0.0
        for value, count in enumerate(counts):
            total += count
            family.add_sample(f"{name}_bucket", {**named, "le": f"{value}.0"}, total)
        family.add_sample(f"{name}_bucket", {**named, "le": "+Inf"}, total)
        family.add_sample(f"{name}_count", named, total)
        family.add_sample(f"{name}_sum", named, sum(i * count for i, count in enumerate(counts)))

    def put_summary(self, name: str, count: float, total: float, *labels: str) -> None:
        """Add a summary without quantiles."""
        named = self._open(name, labels)
        if named is not None:
            self._families[name].add_sample(f"{name}_count", named, float(count))
            self._families[name].add_sample(f"{name}_sum", named, float(total))

    def leave_out(self, label: str, count: int) -> None:
        """Count label values that are not shown."""
        if count:
            self.left_out[label] = self.left_out.get(label, 0) + count

    def _open(self, name: str, labels: tuple[str, ...]) -> dict[str, str] | None:
        """Return clean labels by name, or ``None`` where another value was cleaned to the same."""
        values = tuple(clean(label) for label in labels)
        if (name, values) in self._seen:
            return None
        self._seen.add((name, values))
        metric = BY_NAME.get(name) or BY_NAME[name.rpartition("_")[0]]
        return dict(zip(metric.labels, values, strict=True))


def _family(metric: Metric, name: str) -> Family:
    """Return an empty family; the client library adds the suffix of counters and info by itself."""
    meaning = metric.meaning
    if name != metric.name:
        side = "Lower" if name.endswith("low") else "Upper"
        meaning = f"{side} end of the 95 % interval of {metric.name}."
    return Family(name.removesuffix(_SUFFIX.get(metric.kind, "")), meaning, metric.kind)
