"""Findings as a person reads them: the worst first, equal ones of several pools or engines once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tuner.fleet import Finding

RANK: Final = {"critical": 0, "warning": 1, "info": 2}
NAMED: Final = 5
"""Pools, and engines of a pool, that a line names; the API has all."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """One thing that was noticed, perhaps in several places."""

    code: str
    severity: str
    message: str
    subjects: tuple[Mapping[str, str], ...]

    @property
    def where(self) -> str:
        """Where, in words; empty if it concerns no pool, engine or source."""
        return where(self.subjects)

    def as_dict(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "subjects": [dict(subject) for subject in self.subjects],
        }


def grouped(findings: Iterable[Finding]) -> list[Noticed]:
    """Return findings, equal ones as one, the worst first, otherwise in the order given."""
    places: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for finding in findings:
        subjects = places.setdefault((finding.code, finding.severity, finding.message), [])
        if finding.subject not in subjects:
            subjects.append(finding.subject)
    found = [Noticed(*what, tuple(subjects)) for what, subjects in places.items()]
    return sorted(found, key=lambda each: RANK[each.severity])


def where(subjects: Sequence[Mapping[str, str]]) -> str:
    """Return in words what findings are about, as in ``pool chat (engine e0; engine e1), pool code``."""
    by_pool: dict[str, list[str]] = {}
    for subject in subjects:
        rest = ", ".join(f"{key} {value}" for key, value in sorted(subject.items()) if key != "pool")
        named = by_pool.setdefault(subject.get("pool", ""), [])
        if rest and rest not in named:
            named.append(rest)
    parts: list[str] = []
    for pool, rests in by_pool.items():
        told = _some(rests, "; ")
        if not pool:
            parts += [told] if told else []
        else:
            parts.append(f"pool {pool} ({told})" if told else f"pool {pool}")
    return _some(parts, ", ")


def _some(words: Sequence[str], mark: str) -> str:
    more = f"{mark}{len(words) - NAMED} more" if len(words) > NAMED else ""
    return mark.join(words[:NAMED]) + more
