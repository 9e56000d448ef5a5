"""One step of every engine that is behind: arrivals, prefill chunks, verify, draft, counters.

The order within a step is vLLM's: running requests are scheduled first, prompts share what is left of the
token budget, K is looked up by the number of scheduled requests (prefills included), drafted in this step
and verified in the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.simulate.acceptance import logistic
from tuner.simulate.state import (
    BATCH_BOUNDS,
    E2E_BOUNDS,
    ITL_BOUNDS,
    NEVER,
    QUEUE,
    STEP_BOUNDS,
    TTFT_BOUNDS,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tuner.simulate.cost import Floats, Ints
    from tuner.simulate.state import State

    Rows = slice | Ints

IDLE_SECONDS = 0.02
"""How long an engine without requests waits before it looks again; less than a step."""
KV_WATERMARK = 0.98
"""Share of the KV cache above which nothing is admitted."""

_ITL = np.array(ITL_BOUNDS)
_TTFT = np.array(TTFT_BOUNDS)
_E2E = np.array(E2E_BOUNDS)
_STEP = np.array(STEP_BOUNDS)
_BATCH = np.array(BATCH_BOUNDS)


class Stepper:
    """Moves the state; holds no state but its source of random numbers."""

    def __init__(self, state: State, rng: np.random.Generator) -> None:
        """Work on ``state`` with ``rng``."""
        self.state = state
        self.rng = rng
        self._all = np.arange(state.fixed.engines)

    def run(self, until: float) -> int:
        """Step every living engine until its clock has reached ``until``; return the rounds it took."""
        state = self.state
        dead = ~state.alive
        if dead.any():
            state.clock[dead] = until
        rounds = 0
        while True:
            behind = state.clock < until
            if not (count := int(np.count_nonzero(behind))):
                return rounds
            if count == len(behind):
                self._step(slice(None), self._all)
            else:
                rows = behind.nonzero()[0]
                self._step(rows, rows)
            rounds += 1

    def _step(self, rows: Rows, ids: Ints) -> None:
        """Do one step of the engines ``ids``; ``rows`` selects the same ones, as a slice where it can."""
        state, fixed = self.state, self.state.fixed
        self._arrive(rows, ids)
        self._admit(rows, ids)
        draft_len = state.draft_len[rows].copy()
        decoding = state.decoding[rows].copy()
        if (decoding * (draft_len + 1) + state.context[rows] > fixed.kv_tokens[rows]).any():
            self._preempt(ids, draft_len)
            decoding = state.decoding[rows].copy()
        verified = decoding * (draft_len + 1)
        chunks, scheduled, done = self._prefill(rows, ids, decoding, verified)
        tokens = (verified + chunks).astype(np.float64)
        busy = scheduled > 0
        next_len = state.table[ids, scheduled]
        costs = fixed.costs.at(rows)
        seconds, memory, compute = costs.step(
            tokens, state.context[rows], next_len, scheduled.astype(np.float64)
        )
        noise = np.exp(fixed.step_noise[rows] * self.rng.standard_normal(len(ids)))
        seconds = np.where(busy, seconds * state.speed[rows] * noise, IDLE_SECONDS)
        end = state.clock[rows] + seconds
        emitted, finished = self._verify(rows, ids, draft_len)
        counters = state.counters
        counters.itl_seconds[rows] += decoding * seconds
        counters.itl_hist[ids, _ITL.searchsorted(seconds)] += decoding
        prompts = self._first_tokens(ids, end, done, emitted)
        outputs = emitted > 0
        computed = emitted + prompts
        counters.steps[rows] += outputs
        counters.step_tokens[rows] += computed
        counters.step_hist[ids, _STEP.searchsorted(computed)] += outputs
        counters.generated[rows] += emitted
        counters.busy_seconds[rows] += seconds * busy
        counters.memory_seconds[rows] += memory * busy
        counters.compute_seconds[rows] += compute * busy
        bucket = (ids, _BATCH.searchsorted(scheduled), draft_len * (decoding > 0))
        counters.bucket_seconds[bucket] += seconds * busy
        counters.bucket_steps[bucket] += busy
        counters.bucket_tokens[bucket] += tokens
        state.context[rows] += emitted
        self._finish(ids, end, finished)
        self._turn_passages(rows, ids)
        state.draft_len[rows] = next_len
        state.last_seconds[rows] = seconds
        state.clock[rows] = end

    def _arrive(self, rows: Rows, ids: Ints) -> None:
        """Queue the requests that came during the last step."""
        state, rng = self.state, self.rng
        clients = state.clients[rows]
        absent = clients - state.running[rows] - state.waiting[rows] - state.held[rows]
        mean = state.rate[rows] * state.last_seconds[rows] / state.burst[rows]
        groups = rng.poisson(mean)
        size = state.burst[rows]
        extra = rng.poisson(groups * (size - 1)) if (size > 1).any() else 0
        coming = np.where(clients > 0, np.maximum(absent, 0), groups + extra)
        if not coming.any():
            return
        free = QUEUE - state.waiting[rows]
        state.counters.turned_away[rows] += np.maximum(coming - free, 0)
        coming = np.minimum(coming, free)
        engine = ids.repeat(coming)
        order = np.arange(len(engine)) - (coming.cumsum() - coming).repeat(coming)
        place = (state.queue_head[engine] + state.waiting[engine] + order) % QUEUE
        when = state.clock[engine]
        when -= state.last_seconds[engine] * rng.random(len(engine)) * (state.clients[engine] == 0)
        state.queue_time[engine, place] = when
        limits = state.fixed.route_limits[engine]
        state.queue_route[engine, place] = (rng.random(len(engine))[:, None] >= limits[:, :-1]).sum(axis=1)
        state.waiting[rows] += coming

    def _admit(self, rows: Rows, ids: Ints) -> None:
        """Move waiting requests into free slots while there are slots and KV cache."""
        state, fixed, rng = self.state, self.state.fixed, self.rng
        if state.any_held:
            self._readmit()
        waiting = state.waiting[rows]
        if not waiting.any():
            return
        free = fixed.max_batch[rows] - state.running[rows] - state.held[rows]
        admit = np.minimum(waiting, free)
        full = state.context[rows] > KV_WATERMARK * fixed.kv_tokens[rows]
        admit[full & (state.running[rows] > 0)] = 0
        some = admit.nonzero()[0]
        if not some.size:
            return
        engines, counts = ids[some], admit[some]
        open_slots = ~state.occupied[engines]
        picked = open_slots & (open_slots.cumsum(axis=1) <= counts[:, None])
        row, slot = picked.nonzero()
        engine = engines[row]
        order = np.arange(len(engine)) - (counts.cumsum() - counts).repeat(counts)
        place = (state.queue_head[engine] + order) % QUEUE
        state.queue_head[engines] = (state.queue_head[engines] + counts) % QUEUE
        state.waiting[engines] -= counts
        state.running[engines] += counts
        route = state.queue_route[engine, place]
        flat = fixed.first_route[engine] + route
        at = (engine, slot)
        state.route[at] = route
        state.arrived[at] = state.queue_time[engine, place]
        draws = rng.standard_normal((3, len(engine)))
        prompt = np.exp(fixed.prompt_log[flat] + fixed.prompt_sd[flat] * draws[0]).astype(np.int32) + 1
        total = np.exp(fixed.output_log[flat] + fixed.output_sd[flat] * draws[1]).astype(np.int32) + 2
        state.prompt[at] = prompt
        state.prompt_left[at] = prompt
        state.total[at] = total
        state.left[at] = total
        state.quality[at] = fixed.request_sd[flat] * draws[2]
        state.occupied[at] = True
        state.context[rows] += np.bincount(engine, prompt, fixed.engines)[rows]

    def _prefill(
        self, rows: Rows, ids: Ints, decoding: Ints, verified: Ints
    ) -> tuple[Ints, Ints, tuple[Ints, Ints]]:
        """Share the rest of the token budget among prompts.

        Returns:
            Prompt tokens computed (n,), requests scheduled (n,), engine and slot of prompts that are done.
        """
        state = self.state
        chunks = np.zeros(len(ids), dtype=np.int64)
        scheduled = decoding.copy()
        some = (state.running[rows] > decoding).nonzero()[0]
        if not some.size:
            none = np.zeros(0, dtype=np.int64)
            return chunks, scheduled, (none, none)
        engines = ids[some]
        left = state.prompt_left[engines]
        budget = np.maximum(state.fixed.max_tokens[engines] - verified[some], 0)
        given = np.minimum(np.maximum(budget[:, None] - (left.cumsum(axis=1) - left), 0), left)
        left = left - given
        state.prompt_left[engines] = left
        chunks[some] = given.sum(axis=1)
        scheduled[some] += (given > 0).sum(axis=1)
        row, slot = ((given > 0) & (left == 0)).nonzero()
        return chunks, scheduled, (engines[row], slot)

    def _verify(self, rows: Rows, ids: Ints, draft_len: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Accept or reject drafts of all decoding requests.

        Returns:
            Tokens emitted (n,) and the requests that ended, (n, slots).
        """
        state, fixed = self.state, self.state.fixed
        longest = int(draft_len.max(initial=0))
        decodes = state.is_decoding[rows]
        accepted = np.zeros(decodes.shape, dtype=np.int32)
        if longest:
            uniform = self.rng.random(decodes.shape, dtype=np.float32)
            for position in range(longest):
                accepted += uniform < state.thresholds[position][rows]
            np.minimum(accepted, draft_len[:, None].astype(np.int32), out=accepted)
        ways = fixed.longest + 1
        place = state.code[rows] + accepted
        place += (draft_len * ways)[:, None]
        counts = np.bincount(place.ravel(), minlength=state.no_code + ways * ways)
        state.counters.joint += counts[: state.no_code].reshape(state.counters.joint.shape)
        accepted += 1
        accepted *= decodes
        left = state.left[rows]
        left -= accepted
        if not isinstance(rows, slice):
            state.left[rows] = left
        emitted = accepted.sum(axis=1, dtype=np.int64)
        finished = (left <= 0) & decodes
        row, slot = finished.nonzero()
        if row.size:
            over = -left[row, slot]
            trimmed = np.bincount(row, over, len(ids)).astype(np.int64)
            emitted -= trimmed
            state.counters.trimmed[rows] += trimmed
        return emitted, finished

    def _first_tokens(self, ids: Ints, end: Floats, done: tuple[Ints, Ints], emitted: Ints) -> Ints:
        """Let prompts that are done emit a first token, added to ``emitted``; return their tokens (n,)."""
        state, fixed, counters = self.state, self.state.fixed, self.state.counters
        engine, slot = done
        if not engine.size:
            return np.zeros(len(ids), dtype=np.int64)
        row = ids.searchsorted(engine)
        new = np.isnan(state.preempted_at[done])
        n = fixed.engines
        waited = end[row] - state.arrived[done]
        counters.first_tokens += np.bincount(engine, new, n)
        counters.first_seconds += np.bincount(engine, waited * new, n)
        np.add.at(counters.first_hist, (engine, _TTFT.searchsorted(waited)), new)
        prompts = np.bincount(row, state.prompt[done] * new, len(ids)).astype(np.int64)
        counters.prompt_tokens[ids] += prompts
        if not new.all():
            self._resume(engine[~new], slot[~new], end[row[~new]])
        ways = fixed.longest + 1
        state.is_decoding[done] = True
        state.decoding += np.bincount(engine, minlength=n)
        state.code[done] = (engine * fixed.routes + state.route[done]) * ways * ways
        left = state.left[done] - 1
        state.left[done] = left
        state.passage_end[done] = left  # the first passage begins at once, with those of others
        emitted += np.bincount(row, minlength=len(ids))
        return prompts

    def _resume(self, engine: Ints, slot: Ints, end: Floats) -> None:
        """Count the gap of requests that come back from preemption as one interval without a draft."""
        counters, state = self.state.counters, self.state
        gap = end - state.preempted_at[engine, slot]
        np.add.at(counters.itl_seconds, engine, gap)
        np.add.at(counters.itl_hist, (engine, _ITL.searchsorted(gap)), 1)
        none = np.zeros(len(engine), dtype=np.int64)
        np.add.at(counters.joint, (engine, state.route[engine, slot], none, none), 1)
        state.preempted_at[engine, slot] = np.nan

    def _finish(self, ids: Ints, end: Floats, finished: NDArray[np.bool_]) -> None:
        """Free the slots of requests that ended."""
        state, fixed, counters = self.state, self.state.fixed, self.state.counters
        row, slot = finished.nonzero()
        if not row.size:
            return
        engine = ids[row]
        at, n = (engine, slot), fixed.engines
        lasted = end[row] - state.arrived[at]
        counters.e2e_seconds += np.bincount(engine, lasted, n)
        np.add.at(counters.e2e_hist, (engine, _E2E.searchsorted(lasted)), 1)
        stop = self.rng.random(len(row)) < fixed.stop_share[fixed.first_route[engine] + state.route[at]]
        counters.stopped += np.bincount(engine, stop, n)
        counters.cut_by_length += np.bincount(engine, ~stop, n)
        ended = np.bincount(engine, minlength=n)
        state.running -= ended
        state.decoding -= ended
        state.context -= np.bincount(engine, state.prompt[at] + state.total[at], n)
        state.occupied[at] = False
        state.is_decoding[at] = False
        state.code[at] = state.no_code
        state.passage_end[at] = NEVER

    def _turn_passages(self, rows: Rows, ids: Ints) -> None:
        """Draw acceptance anew where a request came to its next passage."""
        state = self.state
        row, slot = (state.left[rows] <= state.passage_end[rows]).nonzero()
        if row.size:
            self._draw_passages(ids[row], slot)

    def _draw_passages(self, engine: Ints, slot: Ints) -> None:
        """Begin a passage in each of these slots: its length and the survival of its drafts."""
        state, fixed, rng = self.state, self.state.fixed, self.rng
        at = (engine, slot)
        flat = fixed.first_route[engine] + state.route[at]
        length = rng.exponential(fixed.passage[flat]).astype(np.int32) + 1
        state.passage_end[at] = np.where(fixed.passage_sd[flat] > 0, state.left[at] - length, NEVER)
        z = state.quality[at] + fixed.passage_sd[flat] * rng.standard_normal(len(engine))
        hazards = logistic(fixed.base[flat] + z[:, None]) * state.hazard_factor[engine][:, None]
        state.thresholds[:, engine, slot] = hazards.cumprod(axis=1).T

    def redraw(self, engine: int) -> None:
        """Begin new passages in all decoding requests of one engine: its acceptance changed."""
        slot = np.flatnonzero(self.state.is_decoding[engine])
        self._draw_passages(np.full(len(slot), engine), slot)

    def _preempt(self, ids: Ints, draft_len: Ints) -> None:
        """Take the latest request out of engines whose KV cache is full: it computes its context again."""
        state, fixed = self.state, self.state.fixed
        excess = state.decoding[ids] * (draft_len + 1) + state.context[ids] - fixed.kv_tokens[ids]
        for engine in ids[(excess > 0) & (state.decoding[ids] > 1)].tolist():
            slots = np.flatnonzero(state.is_decoding[engine])
            slot = int(slots[np.argmax(state.arrived[engine, slots])])
            state.counters.preemptions[engine] += 1
            state.preempted_at[engine, slot] = state.clock[engine]
            state.context[engine] -= self._computed(engine, slot)
            state.is_decoding[engine, slot] = False
            state.code[engine, slot] = state.no_code
            state.passage_end[engine, slot] = NEVER
            state.decoding[engine] -= 1
            state.running[engine] -= 1
            state.held[engine] += 1
            state.any_held = True

    def _computed(self, engine: int, slot: int) -> int:
        """Return the context tokens of a request."""
        state = self.state
        return int(state.prompt[engine, slot] + state.total[engine, slot] - state.left[engine, slot])

    def _readmit(self) -> None:
        """Let preempted requests compute their context again where the KV cache has room for it."""
        state = self.state
        for engine in np.flatnonzero(state.held).tolist():
            slots = np.flatnonzero(~np.isnan(state.preempted_at[engine]) & ~state.is_decoding[engine])
            for slot in slots[state.prompt_left[engine, slots] == 0].tolist():
                context = self._computed(engine, slot)
                room = KV_WATERMARK * state.fixed.kv_tokens[engine] - state.context[engine] - context
                if room < 0 and state.running[engine] > 0:
                    break
                state.prompt_left[engine, slot] = context
                state.context[engine] += context
                state.held[engine] -= 1
                state.running[engine] += 1
        state.any_held = bool(state.held.any())
