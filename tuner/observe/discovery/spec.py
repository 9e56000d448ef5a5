"""What discovery is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.fleet import Finding, Target
    from tuner.observe.outcomes import SourceError


class PrometheusTargets(Protocol):
    """A Prometheus server that can be asked what it scrapes."""

    @property
    def name(self) -> str:
        """Name of the source in the settings."""

    def targets(self, selector: str, now: float, /) -> tuple[dict[str, str], ...] | SourceError:
        """Return the label sets of the targets that match.

        ``__address__`` (else ``instance``), ``__scheme__``, ``__metrics_path__`` and ``__param_*`` make
        the address, as in Prometheus.
        """


@dataclass(frozen=True, slots=True)
class EnginesSpec:
    """Where the engines of one pool are; several ways may be combined."""

    pool: str
    static: tuple[str, ...] = ()
    """Base addresses; the metrics path is added."""
    file_sd: tuple[str, ...] = ()
    """Paths of Prometheus file_sd files, with wildcards."""
    http_sd: str | None = None
    prometheus: PrometheusTargets | None = None
    selector: str = ""
    """Label matchers for ``prometheus``."""
    metrics_path: str = "/metrics"
    identity_labels: tuple[str, ...] = ()
    """Labels whose values, joined by ``/``, name an engine; its address names it without."""
    admin_url_template: str | None = None
    """As :func:`tuner.addresses.fill_template` takes it; ``None``: engines have no admin API."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The engines of a pool at one moment."""

    targets: tuple[Target, ...] = ()
    """One for each engine, by name."""
    findings: tuple[Finding, ...] = ()
    sources_up: Mapping[str, bool] = field(default_factory=dict)
    """``static``, ``file_sd``, ``http_sd`` or ``prometheus:<source>`` -> whether it answered. One that did
    not answer counts with what it said last."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one source says."""

    groups: tuple[Mapping[str, str], ...] = ()
    """Label sets of targets, ``__address__`` and the other ``__`` labels among them."""
    errors: tuple[str, ...] = ()
    """What could not be read, one line each with a remedy; ``groups`` then holds what was said before."""
    unmatched: tuple[str, ...] = ()
    """Patterns of ``file_sd`` that match no file: no error, since removing a file takes its engines out."""
