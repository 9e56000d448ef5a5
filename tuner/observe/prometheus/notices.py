"""What an operator is told about a metrics server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.fleet import Finding
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.fleet import Target

_SHOWN = 5
"""Engines that a finding names; the count is of all."""


def source_down(source: str, seconds: float, reason: str) -> Finding:
    """The server has not answered for long enough to be somebody's task."""
    return Finding(
        "metrics_source_down",
        "critical",
        f"{source} has not answered for {seconds / 60:.0f} min ({reason}): schedules are held as they are. "
        "Check the server and the way to it.",
        {"source": source},
        {"seconds": round(seconds), "reason": reason},
    )


def partial(source: str, pool: str, warnings: Sequence[str]) -> Finding:
    """The server could not reach all of its data."""
    said = warnings[0] if warnings else "the answer is marked as partial"
    return Finding(
        "metrics_source_partial",
        "warning",
        f"{source} answers in part: {said}. Scrapes that lack series are left out. "
        "Look at the stores behind it.",
        {"pool": pool, "source": source},
        {"warnings": list(warnings[:_SHOWN])},
    )


def too_large(source: str, pool: str, instances: Sequence[str]) -> Finding:
    """The server refuses the samples of one engine over a few seconds."""
    return Finding(
        "query_too_large",
        "warning",
        f"{source} refuses the samples of {counted(len(instances), 'instance')} even alone and over seconds: "
        "raise its limit of samples per query, or scrape the pool directly.",
        {"pool": pool, "source": source},
        {"instances": list(instances[:_SHOWN]), "count": len(instances)},
    )


def missing(source: str, pool: str, selector: str, targets: Sequence[Target]) -> Finding:
    """Engines that the server tells nothing about."""
    return Finding(
        "target_not_in_source",
        "warning",
        f"{source} has nothing about {counted(len(targets), 'engine')} under {selector or 'no selector'}, "
        f"the first at {targets[0].url}: check the selector, and that the label instance is the address.",
        {"pool": pool, "source": source},
        {"engines": [target.engine for target in targets[:_SHOWN]], "count": len(targets)},
    )


def doubled(source: str, pool: str, labels: Mapping[Target, tuple[str, ...]]) -> Finding:
    """Engines that the server tells about more than once."""
    names = sorted({name for differing in labels.values() for name in differing})
    return Finding(
        "target_told_twice",
        "warning",
        f"{source} tells {counted(len(labels), 'engine')} several times, apart by {', '.join(names)}: one is "
        "read. Name the label in replica_labels, or narrow the selector.",
        {"pool": pool, "source": source},
        {
            "labels": names,
            "engines": [target.engine for target in list(labels)[:_SHOWN]],
            "count": len(labels),
        },
    )


def own_times(source: str, pool: str, targets: Sequence[Target]) -> Finding:
    """Engines whose samples carry times that are not those of their scrapes."""
    return Finding(
        "timestamps_of_exporter",
        "info",
        f"samples of {counted(len(targets), 'engine')} in {source} carry times of their own: each counts for "
        "the scrape that saw it last. Set honor_timestamps: false unless these times are right.",
        {"pool": pool, "source": source},
        {"engines": [target.engine for target in targets[:_SHOWN]], "count": len(targets)},
    )
