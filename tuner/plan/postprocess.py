"""The chain of post-processors, by name and in order; any of them can be switched off by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tuner._exceptions import InputError
from tuner.plan import refine, reshape, restrict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.plan.options import PlanOptions
    from tuner.plan.proposal import Proposal


class PostProcessor(Protocol):
    """A pure step from one proposal to the next."""

    def __call__(self, proposal: Proposal, options: PlanOptions, /) -> Proposal:
        """Return the proposal after this step."""


RESTRICTIONS: Mapping[str, PostProcessor] = {
    "allowed": restrict.allowed,
    "floor": restrict.floor,
    "support": restrict.support,
    "kv_headroom": restrict.kv_headroom,
    "tokens_in_flight": restrict.tokens_in_flight,
    "slo": restrict.slo,
}
"""Close cells before the best is chosen. ``support`` comes after the operator's limits, so that it
compares with what may really run."""

REFINEMENTS: Mapping[str, PostProcessor] = {
    "confidence": refine.confidence,
    "tie": refine.tie,
    "monotone": refine.monotone,
    "mode": reshape.mode,
    "merge": reshape.merge,
    "dead_band": reshape.dead_band,
}
"""Shape the choice. ``dead_band`` comes last: it compares what would be pushed with what runs."""

NAMES = (*RESTRICTIONS, *REFINEMENTS)


def apply(proposal: Proposal, options: PlanOptions) -> Proposal:
    """Run the chain: restrictions, the best cell of each batch size, refinements.

    Raises:
        InputError: ``options.without`` names no post-processor.
    """
    unknown = sorted(options.without - set(NAMES))
    if unknown:
        raise InputError(f"no post-processor is called {unknown[0]!r}: choose from {', '.join(NAMES)}")
    for name, step in RESTRICTIONS.items():
        if name not in options.without:
            proposal = step(proposal, options)
    proposal = proposal.optimised()
    for name, step in REFINEMENTS.items():
        if name not in options.without:
            proposal = step(proposal, options)
    return proposal
