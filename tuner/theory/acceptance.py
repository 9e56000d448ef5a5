"""Acceptance: hazards, survival, tokens per verify step.

A block of K draft tokens is accepted up to its first rejection. The *hazard* ``h[i]`` is the
probability that position i (0-based) is accepted given that all before it were; the *survival*
``s[i] = h[0] * ... * h[i]`` that positions 0..i are all accepted. Every verify step emits one more
token than it accepts: the correction at the first rejection, or the bonus token of the target
after a block that was accepted whole. Hence ``E[tokens per step] = 1 + sum(s)``
(Leviathan et al. 2023, eq. 1 is the special case of one constant hazard).

Profiles are one-dimensional sequences, or arrays whose *last* axis is the position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MAX_DRAFT_LEN = 1024
"""Longest block taken for real. Engines stop far below (vLLM tables go to a few dozen), and at an
acceptance of 0.99 token 1024 is worth 3e-5 tokens; above it a number is a typing error."""

_BISECTIONS = 60
"""Halvings in :func:`solve_alpha`: 2**-60 = 9e-19 lies below the spacing of doubles next to 0.1."""

_SUM_TOLERANCE = 1e-6
"""How far the sum of a distribution may lie from 1: float32 probabilities of a vocabulary of 1e5
tokens add up to 1 within about 1e-6; a distribution cut by top-p without renormalising is off by far more."""


def survival(hazards: ArrayLike) -> NDArray[np.float64]:
    """Return ``s[..., i]``, the probability that positions 0..i are all accepted.

    Args:
        hazards: acceptance by position given reached, shape (..., K), each in [0, 1].

    Raises:
        InputError: a hazard is outside [0, 1] or not a number.
    """
    return np.cumprod(_probabilities(hazards, "hazard"), axis=-1, dtype=np.float64)


def hazards_from_survival(survivals: ArrayLike) -> NDArray[np.float64]:
    """Return the hazards ``s[i] / s[i-1]`` of a survival curve, shape (..., K).

    Raises:
        InputError: the curve rises, leaves [0, 1], or reaches 0 before its last position (what
            comes after a position that was never reached cannot be read off the curve).
    """
    curve = _probabilities(survivals, "survival")
    before = np.concatenate([np.ones_like(curve[..., :1]), curve[..., :-1]], axis=-1)
    if np.any(before == 0.0):
        raise InputError("survival reaches 0 before the last position: cut the curve at its first 0")
    if np.any(curve > before):
        raise InputError("survival rises from one position to the next: give probabilities of reaching i")
    return np.asarray(curve / before)


def expected_tokens(hazards: ArrayLike) -> NDArray[np.float64] | float:
    """Return the tokens emitted per verify step, ``1 + sum(survival)``, bonus token included.

    This is what engines report as mean acceptance length. An empty profile (K = 0) gives 1.

    Args:
        hazards: shape (..., K); the result has shape (...), a float for a single profile.
    """
    total = 1.0 + survival(hazards).sum(axis=-1)
    return float(total) if np.ndim(total) == 0 else total


def expected_tokens_by_draft_len(hazards: ArrayLike) -> NDArray[np.float64]:
    """Return the tokens per verify step at every K from 0 to ``len(hazards)``, shape (..., K + 1)."""
    curve = survival(hazards)
    return 1.0 + np.concatenate([np.zeros_like(curve[..., :1]), np.cumsum(curve, axis=-1)], axis=-1)


@overload
def expected_tokens_geometric(alpha: float, draft_len: int) -> float: ...
@overload
def expected_tokens_geometric(alpha: NDArray[np.float64], draft_len: int) -> NDArray[np.float64]: ...
def expected_tokens_geometric(
    alpha: float | NDArray[np.float64], draft_len: int
) -> float | NDArray[np.float64]:
    """Return ``(1 - alpha**(K+1)) / (1 - alpha)``, the tokens per step at one constant hazard.

    0.8 at K = 4 gives 3.3616. Convex in alpha, so a traffic whose alpha varies earns more than its
    mean alpha says (Jensen): see :func:`expected_tokens_mixture`.
    """
    length = check_draft_len(draft_len)
    total = _geometric_sum(_probabilities(alpha, "acceptance"), length)
    return float(total) if np.ndim(total) == 0 else total


def expected_tokens_mixture(alphas: ArrayLike, shares: ArrayLike, draft_len: int) -> float:
    """Return the tokens per step of traffic that is in turn at each of ``alphas``.

    Args:
        alphas: acceptance of each regime, shape (n,).
        shares: share of *verify steps* spent in each regime, shape (n,), summing to 1.
        draft_len: K.

    Raises:
        InputError: shapes differ, a value leaves [0, 1], or the shares do not sum to 1.
    """
    regimes, weights = _distribution_pair(alphas, shares, "acceptance", "share", sums=(False, True))
    return float(weights @ expected_tokens_geometric(regimes, draft_len))


@overload
def solve_alpha(mean_accepted: float, draft_len: int) -> float: ...
@overload
def solve_alpha(mean_accepted: NDArray[np.float64], draft_len: int) -> NDArray[np.float64]: ...
def solve_alpha(mean_accepted: float | NDArray[np.float64], draft_len: int) -> float | NDArray[np.float64]:
    """Return the alpha with ``alpha + alpha**2 + ... + alpha**K = mean_accepted``.

    The one constant hazard that explains a mean number of accepted tokens per step, the bonus
    token *excluded*: 1.5 at K = 3 gives 0.691. Two engines are compared on it only at the same K,
    since real profiles are not constant (SGLang's 2.00 tokens at K = 1 and 6.25 at K = 7 are
    alpha 1.0 and 0.93 of one drafter).

    Raises:
        InputError: ``mean_accepted`` is outside [0, K], or K is 0.
    """
    length = check_draft_len(draft_len)
    if length == 0:
        raise InputError("draft length 0 says nothing about acceptance: give the K that ran, at least 1")
    wanted = np.asarray(mean_accepted, dtype=np.float64)
    if not np.all((wanted >= 0.0) & (wanted <= length)):
        raise InputError(
            f"mean accepted tokens must lie between 0 and the draft length {length}: "
            "leave the bonus token out and give the K that ran"
        )
    low, high = np.zeros_like(wanted), np.ones_like(wanted)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        below = _geometric_sum(middle, length) - 1.0 < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    alpha = np.where(wanted == length, 1.0, np.where(wanted == 0.0, 0.0, 0.5 * (low + high)))
    return float(alpha) if alpha.ndim == 0 else alpha


def accepted_length_probabilities(hazards: ArrayLike) -> NDArray[np.float64]:
    """Return ``P(a draft tokens accepted)`` for a = 0..K, shape (..., K + 1).

    The accepted-run-length distribution of one verify step: a geometric profile piles up at 0 and
    at K, which is no sign of two populations.
    """
    curve = survival(hazards)
    reached = np.concatenate([np.ones_like(curve[..., :1]), curve], axis=-1)
    left = np.concatenate([curve, np.zeros_like(curve[..., :1])], axis=-1)
    return np.asarray(reached - left)


def full_block_probability(hazards: ArrayLike) -> float:
    """Return the share of verify steps that accept all K tokens: 0.8 four times gives 0.4096."""
    return float(np.prod(_probabilities(hazards, "hazard")))


def bonus_token_share(hazards: ArrayLike) -> float:
    """Return the share of all emitted tokens that are bonus tokens of whole blocks.

    What is lost by dropping the target's own token after a block that was accepted whole:
    0.4096 / 3.3616 = 12 % at alpha 0.8, K = 4.
    """
    return full_block_probability(hazards) / float(expected_tokens(hazards))


def goodput_efficiency(hazards: ArrayLike, verified_tokens: int | None = None) -> float:
    """Return emitted tokens per token that the target verified, in [0, 1].

    0.8 at K = 4 gives 3.3616 / 5 = 67 %. Above the crossover this is the throughput left, relative
    to plain decoding, even if drafting is free.

    Args:
        hazards: shape (K,).
        verified_tokens: tokens per request in the verify step; K + 1 for a chain, the nodes of
            the tree and one for a tree draft.
    """
    length = np.asarray(hazards).shape[-1]
    verified = length + 1 if verified_tokens is None else verified_tokens
    if verified < length + 1:
        raise InputError(f"a step that drafts {length} deep verifies at least {length + 1} tokens a request")
    return float(expected_tokens(hazards)) / verified


def draft_acceptance_rate(hazards: ArrayLike) -> float:
    """Return accepted over drafted tokens, the rate that dashboards show.

    It falls with K by arithmetic alone (0.72, 0.59, 0.45 at K = 2, 4, 7 of a constant 0.8), so it
    must never be compared across draft lengths.
    """
    curve = survival(hazards)
    if curve.shape[-1] == 0:
        raise InputError("an empty profile drafts nothing: give at least one hazard")
    return float(curve.mean(axis=-1))


def acceptance_from_distributions(target: ArrayLike, draft: ArrayLike) -> float:
    """Return ``sum(min(p, q)) = 1 - TV(p, q)``, the exact acceptance of one position.

    The draft token is drawn from q and accepted with probability min(1, p/q) (Leviathan et al.
    2023, corollary 3.6). At temperature 0 both are one-hot and this is agreement on the top token.

    Args:
        target: p, shape (vocabulary,), summing to 1.
        draft: q *as sampled from*, after its own temperature and top-p, same shape.

    Raises:
        InputError: shapes differ, a value leaves [0, 1], or a sum is not 1.
    """
    p, q = _distribution_pair(target, draft, "target", "draft", sums=(True, True))
    return float(np.minimum(p, q).sum())


def total_variation(target: ArrayLike, draft: ArrayLike) -> float:
    """Return ``0.5 * sum(abs(p - q))``, the total variation distance of two distributions."""
    p, q = _distribution_pair(target, draft, "target", "draft", sums=(True, True))
    return float(0.5 * np.abs(p - q).sum())


def residual_distribution(target: ArrayLike, draft: ArrayLike) -> NDArray[np.float64]:
    """Return ``max(0, p - q)`` normalised: what the token after a rejection is drawn from.

    With it ``q * min(1, p/q) + P(reject) * residual = p`` exactly: speculation loses nothing.

    Raises:
        InputError: p equals q, so nothing is ever rejected.
    """
    p, q = _distribution_pair(target, draft, "target", "draft", sums=(True, True))
    surplus = np.maximum(0.0, p - q)
    total = surplus.sum()
    if total == 0.0:
        raise InputError("target and draft are the same distribution: no token is ever rejected")
    return np.asarray(surplus / total)


def check_draft_len(draft_len: int) -> int:
    """Return ``draft_len`` if it is a whole number from 0 to :data:`MAX_DRAFT_LEN`.

    Raises:
        InputError: it is not.
    """
    if not 0 <= draft_len <= MAX_DRAFT_LEN or draft_len != int(draft_len):
        raise InputError(f"draft length must be a whole number from 0 to {MAX_DRAFT_LEN}, got {draft_len}")
    return int(draft_len)


def _geometric_sum(alpha: NDArray[np.float64], draft_len: int) -> NDArray[np.float64]:
    """Return ``1 + alpha + ... + alpha**draft_len``, exact next to 0 and 1."""
    inside = np.clip(alpha, np.finfo(np.float64).tiny, 1.0 - np.finfo(np.float64).epsneg)
    closed = -np.expm1((draft_len + 1) * np.log(inside)) / (1.0 - inside)
    return np.asarray(np.where(alpha == 1.0, draft_len + 1.0, closed))


def _probabilities(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Return ``values`` as floats after checking that all lie in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    bad = ~((array >= 0.0) & (array <= 1.0))
    if np.any(bad):
        worst = float(array[bad].flat[0])
        raise InputError(f"{what} must lie between 0 and 1, got {worst:g}: give a ratio, not a percentage")
    return array


def _distribution_pair(
    first: ArrayLike, second: ArrayLike, first_name: str, second_name: str, *, sums: tuple[bool, bool]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two vectors of equal length after checking their range and, where asked, their sums."""
    one, two = _probabilities(first, first_name), _probabilities(second, second_name)
    if one.ndim != 1 or one.shape != two.shape:
        raise InputError(f"{first_name} and {second_name} must be two lists of the same length")
    for values, name, must_sum in ((one, first_name, sums[0]), (two, second_name, sums[1])):
        if must_sum and abs(float(values.sum()) - 1.0) > _SUM_TOLERANCE:
            raise InputError(
                f"{name} sums to {values.sum():g}, not 1: normalise it over the whole vocabulary"
            )
    return one, two
