"""How an engine names what the tuner reads: the words that ``observe`` and ``engines`` share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Metric:
    """One logical metric of an engine: where its series are found in a scrape."""

    names: tuple[str, ...]
    """Exact sample names, best first. The first one found wins; they are never added up."""
    where: tuple[tuple[str, str], ...] = ()
    """Label values that a series must carry to count."""
    fold: tuple[str, ...] = ()
    """Labels that split the metric into parts that add up."""
    position: str = ""
    """Label that numbers draft positions, for metrics that are told by position."""

    @property
    def detail_labels(self) -> frozenset[str]:
        """Labels that say which part of the metric a series is, not whose it is."""
        return frozenset((*self.fold, *(name for name, _ in self.where), *filter(None, [self.position])))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How an engine names what the tuner reads; keys are the fields of Counts and Gauges."""

    engine: str
    counters: Mapping[str, Metric]
    gauges: Mapping[str, Metric]
    required: frozenset[str]
    """Counters without which a window cannot be fitted."""
    model_label: str
    rank_label: str
    """Label that tells the ranks of one server apart; each rank has a batch of its own."""
    process_start: Metric
    info: Metric
    """Info metric whose labels describe the KV cache."""
    kv_capacity_labels: tuple[tuple[str, ...], ...] = ()
    """Info labels whose product is the KV capacity in tokens, best first."""
    kv_dtype_label: str = ""
    plugin: Mapping[str, Metric] = field(default_factory=dict)
    """Counters of the tuner's plugin: ``exposed``, ``accepted``, ``route_accepted``, ``schedule_info``."""

    @property
    def sample_names(self) -> frozenset[str]:
        """Every exact sample name to read, the creation times of the counters included."""
        counters = {name for metric in self.counters.values() for name in metric.names}
        others = {name for metric in self.gauges.values() for name in metric.names}
        plugin = {name for metric in self.plugin.values() for name in metric.names}
        names = counters | others | plugin | set(self.process_start.names) | set(self.info.names)
        return frozenset(names | {created_name(name) for name in counters})


def created_name(name: str) -> str:
    """Return the name under which the creation time of a counter's series is exposed."""
    for suffix in ("_total", "_count", "_sum"):
        name = name.removesuffix(suffix)
    return f"{name}_created"
