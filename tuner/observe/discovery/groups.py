"""Prometheus' form of targets: a list of ``{"targets": [host:port, ...], "labels": {...}}``.

https://prometheus.io/docs/prometheus/latest/http_sd/ and
https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_TARGETS = 20_000
"""Targets of one source: more than six times the fleets the tuner is measured at. YAML's references can
write a million of them in a kilobyte."""
LONGEST_LABEL = 1024
"""Characters of a label that is kept. Kubernetes' annotations hold whole manifests."""

ADDRESS = "__address__"


def read_groups(document: object) -> tuple[Mapping[str, str], ...]:
    """Return the label sets of all targets in a document.

    Raises:
        InputError: it has another form, or too many targets; it is used whole or not at all.
    """
    if not isinstance(document, list):
        raise InputError('is no list of targets: write [{"targets": ["host:port"], "labels": {}}]')
    found: list[Mapping[str, str]] = []
    for number, group in enumerate(document, start=1):
        for labels in _group(number, group):
            found.append(labels)
            if len(found) > MOST_TARGETS:
                raise InputError(f"holds more than {MOST_TARGETS} targets: split the pool")
    return tuple(found)


def _group(number: int, group: object) -> Iterator[Mapping[str, str]]:
    """Yield the label sets of one group."""
    if not isinstance(group, dict):
        raise InputError(f'group {number} is no mapping: write {{"targets": ["host:port"]}}')
    labels, targets = group.get("labels") or {}, group.get("targets") or []
    if unknown := sorted(str(key)[:40] for key in group if key not in {"labels", "targets"}):
        raise InputError(f"group {number} has an unknown key {unknown[0]!r}: use targets and labels")
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in (*labels, *labels.values())):
        raise InputError(f"group {number} has labels that are not text: put their values in quotes")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise InputError(f'group {number} has targets that are not text: write "host:port"')
    for target in targets:
        yield {**labels, ADDRESS: target}


def is_plain(text: str) -> bool:
    """Whether a label's name or value is short and on one line, so that it can be kept, told and logged."""
    return len(text) <= LONGEST_LABEL and (text.isprintable() or not text)
