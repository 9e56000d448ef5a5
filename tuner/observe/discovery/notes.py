"""What one refresh of a pool's engines has to say about its sources and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.fleet import Finding
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.fleet import Severity, Target
    from tuner.observe.discovery.spec import Answer

SHOWN = 5
"""Examples that a finding names; there may be thousands."""


class Notes:
    """Findings of one refresh, and which sources answered."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._findings: list[Finding] = []
        self.sources_up: dict[str, bool] = {}
        self.no_admin: list[str] = []
        """Engines without an admin address, and why."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them."""
        return tuple(self._findings)

    def of_source(self, origin: str, answer: Answer, refused: Sequence[str]) -> None:
        """Note whether a source answered, and which of its targets cannot be used."""
        self.sources_up[origin] = not answer.errors
        if answer.errors:
            kept = f"; {counted(len(answer.groups), 'target')} it named before stay" if answer.groups else ""
            self._add(
                "discovery_failed",
                "warning",
                f"{origin} cannot be read{kept}: {_listed(answer.errors)}",
                answer.errors,
                source=origin,
            )
        if answer.unmatched:
            self._add(
                "file_sd_unmatched",
                "warning",
                f"no file matches {_listed(answer.unmatched)}: write one, or correct the pattern",
                answer.unmatched,
                source=origin,
            )
        if refused:
            self._add(
                "target_invalid",
                "warning",
                f"{counted(len(refused), 'target', 'was')} left out: {_listed(refused)}",
                refused,
                source=origin,
            )

    def several(self, code: str, severity: Severity, examples: Sequence[str], text: str) -> None:
        """Note something of several targets, if there are any."""
        if examples:
            self._add(
                code, severity, f"{counted(len(examples), 'target')} {text} ({_listed(examples)})", examples
            )

    def end(self, targets: Sequence[Target]) -> None:
        """Note what shows once all targets are known."""
        if self.no_admin:
            self._add(
                "admin_url_invalid",
                "warning",
                f"{counted(len(self.no_admin), 'engine')} without an admin address, so no schedule is read "
                f"back: {_listed(self.no_admin)}",
                self.no_admin,
            )
        if not targets and self.sources_up and all(self.sources_up.values()):
            self._add(
                "pool_empty",
                "warning",
                f"pool {self._pool} has no engine: check what its discovery lists",
                (),
            )

    def _add(
        self, code: str, severity: Severity, message: str, examples: Sequence[str], **subject: str
    ) -> None:
        """Note one finding."""
        evidence = {"count": len(examples), "examples": list(examples[:SHOWN])} if examples else {}
        self._findings.append(Finding(code, severity, message, {"pool": self._pool, **subject}, evidence))


def _listed(examples: Sequence[str]) -> str:
    """Return the first example, and how many more there are."""
    more = len(examples) - 1
    return examples[0] + (f", and {more} more" if more else "")
