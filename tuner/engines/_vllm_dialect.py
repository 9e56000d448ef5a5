"""vLLM's dialect of a schedule: what a speculative config would make it run.

Read in vLLM 0.32.0: ``vllm/v1/spec_decode/dynamic/utils.py``, ``vllm/config/speculative.py``.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tuner._exceptions import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEY = "num_speculative_tokens_per_batch_size"
MAX_KEY = "num_speculative_tokens"

LARGEST_BATCH = 1_000_000
"""Requests per step taken for real; engines run a few thousand at most."""

OVERRIDES = {
    "num_speculative_tokens_per_seq_len": (
        "num_speculative_tokens_per_seq_len is not read: long sequences may run a smaller K"
    ),
    "enable_adaptive_verification": "adaptive verification chooses its own budget, whatever the table says",
}
"""Keys of a speculative config that change K behind the table's back."""

KNOWN_KEYS = frozenset(
    {
        MAX_KEY,
        KEY,
        *OVERRIDES,
        *("method", "model", "enforce_eager", "quantization", "revision", "code_revision", "max_model_len"),
        *("draft_tensor_parallel_size", "tensor_parallel_size", "draft_load_config", "draft_sample_method"),
        *("moe_backend", "attention_backend", "kv_cache_dtype", "index_share_for_mtp_iteration"),
        *("disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction"),
        *("use_heterogeneous_vocab", "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting"),
        *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
        *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob", "dspark_draft_topk"),
        *("rejection_sample_method", "synthetic_acceptance_rate", "synthetic_acceptance_rates"),
        *("synthetic_acceptance_length", "speculative_token_tree", "disable_by_batch_size"),
    }
)
"""Keys that a speculative config has or had in some version; most say nothing about the draft length."""
ALIKE = 0.85
"""Similarity (difflib's ratio) from which an unknown key is taken for a misspelt one: one letter in ten."""
_RANGE = re.compile(r"\s*([0-9]+)\s*(?:[-:,_.]+\s*([0-9]*))?\s*\+?\s*")
"""A key such as 1-16, 17+ or 32."""


def check_bounds(max_batch: int, max_draft_len: int) -> None:
    """Refuse bounds with which no engine starts."""
    if not 1 <= max_batch <= LARGEST_BATCH:
        raise ScheduleError(
            f"max batch {max_batch} must be from 1 to {LARGEST_BATCH}: give the engine's --max-num-seqs"
        )
    if max_draft_len < 1:
        raise ScheduleError(f"max draft length {max_draft_len} is below 1: vLLM refuses {MAX_KEY} below 1")


def unwrap(config: object, max_draft_len: int | None, notes: list[str]) -> tuple[list[Any] | None, int]:
    """Return the table inside a speculative config, if any, and the K it is clamped to.

    Raises:
        ScheduleError: it is none, vLLM would refuse it, or a key in it is not what it was meant to be.
    """
    for name in ("speculative_config", "speculative-config"):
        if isinstance(config, dict) and isinstance(config.get(name), dict):
            config = config[name]
    if isinstance(config, list):
        config = {KEY: config}
    if not isinstance(config, dict):
        raise ScheduleError("neither a speculative config nor a table: give {...} or [[start, end, K], ...]")
    _check_keys(config, notes)
    highest = config.get(MAX_KEY, max_draft_len)
    if highest is None:
        raise ScheduleError(f"it does not say where vLLM clamps: add {MAX_KEY} or give --max-draft-len")
    if isinstance(highest, bool) or not isinstance(highest, int):
        raise ScheduleError(f"{MAX_KEY} is {highest!r}: vLLM needs a whole number of at least 1")
    if max_draft_len is not None and highest != max_draft_len:
        notes.append(f"the config clamps at its own {MAX_KEY} {highest}, not at {max_draft_len}")
    notes.extend(text for key, text in OVERRIDES.items() if config.get(key))
    table = config.get(KEY)
    if table is None:
        notes.append(f"no {KEY}: one draft length at every batch size")
    elif not isinstance(table, list):
        raise ScheduleError(f"{KEY} is a {type(table).__name__}: vLLM takes a list of [start, end, K]")
    return table, highest


def _check_keys(config: Mapping[Any, Any], notes: list[str]) -> None:
    """Refuse keys that someone meant to matter and vLLM does not read; note the others it may not know.

    Read past, such a key would leave one draft length at every batch size: the opposite of what was meant.
    """
    unknown = [str(key) for key in config if key not in KNOWN_KEYS]
    for key in unknown:
        found = _RANGE.fullmatch(key)
        if found is not None:
            first, last = found[1], found[2] or "max batch"
            raise ScheduleError(
                f"key {key!r} is a range of batch sizes, and vLLM takes no such keys: "
                f"did you mean {KEY}: [[{first}, {last}, K], ...]?"
            )
        close = get_close_matches(key, KNOWN_KEYS, n=1, cutoff=ALIKE)
        if close:
            raise ScheduleError(f"vLLM has no key {key!r}: did you mean {close[0]}?")
    if len(unknown) == len(config):
        remedy = "render it without --parse" if "schedule" in config else f"give {MAX_KEY} and {KEY}"
        raise ScheduleError(
            f"no key of a speculative config in it: {remedy}, or a bare [[start, end, K], ...]"
        )
    notes.extend(f"key {key} is not known here and was not looked at" for key in unknown)


def rows_of(table: Sequence[Any], notes: list[str]) -> list[tuple[int, int, int]]:
    """Check a table as vLLM does and return its rows sorted by start."""
    if not table:
        raise ScheduleError(f"{KEY} is empty: vLLM refuses it, give at least [1, max batch, K]")
    rows = sorted(_row(row, notes) for row in table)
    if rows[0][0] != 1:
        raise ScheduleError(f"first range starts at {rows[0][0]}: vLLM wants the first one to start at 1")
    for (_, end, _), (start, _, _) in pairwise(rows):
        if start <= end:
            raise ScheduleError(f"range starting at {start} overlaps the one ending at {end}")
    return rows


def _row(row: object, notes: list[str]) -> tuple[int, int, int]:
    """Read one row; vLLM passes each cell through ``int``, so "4", 4.7 and true are numbers to it."""
    if not isinstance(row, list | tuple) or len(row) != 3:  # noqa: PLR2004 - start, end, K
        raise ScheduleError(f"row {row!r} is not [start, end, K]")
    try:
        first, last, draft_len = (int(cell) for cell in row)
    except (TypeError, ValueError, OverflowError):
        raise ScheduleError(f"row {row!r} holds something that vLLM cannot read as a whole number") from None
    if any(type(cell) is not int for cell in row):
        notes.append(f"row {row!r} is read as [{first}, {last}, {draft_len}]")
    if first < 1 or last < 1:
        raise ScheduleError(f"row {row!r}: batch sizes must be above 0")
    if first > last:
        raise ScheduleError(f"row {row!r} ends before it starts")
    if draft_len < 0:
        raise ScheduleError(f"row {row!r} has a negative draft length")
    return first, last, draft_len


def expand(rows: Sequence[tuple[int, int, int]], max_batch: int, highest: int, notes: list[str]) -> list[int]:
    """Return K for batch 1..max_batch as vLLM fills its lookup, noting where it fills in."""
    dense: list[int] = []
    for first, last, draft_len in rows:
        if first > max_batch:
            notes.append(f"range {first}-{last} lies beyond max batch {max_batch}: never used")
            continue
        if first > len(dense) + 1:
            carried = dense[-1]
            notes.append(f"gap: batches {len(dense) + 1}-{first - 1} carry K = {carried} on")
            dense.extend([carried] * (first - 1 - len(dense)))
        if draft_len > highest:
            notes.append(
                f"clamp: K = {draft_len} of range {first}-{last} runs as {highest}, without a warning"
            )
        if last > max_batch:
            notes.append(f"range {first}-{last} is cut at max batch {max_batch}")
        dense.extend([min(draft_len, highest)] * (min(last, max_batch) - first + 1))
    if len(dense) < max_batch:
        notes.append(f"tail: batches {len(dense) + 1}-{max_batch} keep K = {dense[-1]} of the last range")
        dense.extend([dense[-1]] * (max_batch - len(dense)))
    return dense
