"""One engine the plain way, a request at a time: what the arrays of the simulator must agree with."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.simulate.acceptance import Acceptance
from tuner.simulate.state import reference_draft_len

if TYPE_CHECKING:
    from tuner.simulate import CostSpec, PoolSpec


@dataclass
class Request:
    """One request of a route."""

    route: int
    arrived: float
    prompt: int
    prompt_left: int
    total: int
    left: int
    quality: float
    passage_end: int = -(2**30)
    hazards: list[float] = field(default_factory=list)


class PlainEngine:
    """Continuous batching with chunked prefill and speculative decoding, by lists of requests."""

    def __init__(self, pool: PoolSpec, rate: float, seed: int) -> None:
        self.pool = pool
        self.rate = rate
        self.random = random.Random(seed)
        longest = pool.max_draft_len
        self.models = [Acceptance.of(route, longest, reference_draft_len(pool)) for route in pool.routes]
        self.waiting: list[Request] = []
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self.clock = 0.0
        self.next_arrival = self.random.expovariate(rate)
        self.draft_len = 0
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.joint: Counter[tuple[int, int, int]] = Counter()

    def run(self, seconds: float) -> None:
        """Step until ``seconds``."""
        while self.clock < seconds:
            self.step()

    def step(self) -> None:
        """Do one step."""
        while self.next_arrival <= self.clock:
            self.waiting.append(self._request(self.next_arrival))
            self.next_arrival += self.random.expovariate(self.rate)
        while self.waiting and len(self.prefilling) + len(self.decoding) < self.pool.max_batch:
            self.prefilling.append(self.waiting.pop(0))
        verified = len(self.decoding) * (self.draft_len + 1)
        budget, chunks, scheduled, done = self.pool.max_step_tokens - verified, 0, len(self.decoding), []
        for request in self.prefilling:
            given = min(budget, request.prompt_left)
            request.prompt_left -= given
            budget -= given
            chunks += given
            scheduled += given > 0
            if request.prompt_left == 0:
                done.append(request)
        if not scheduled:
            self.clock = self.next_arrival
            return
        chosen = next(k for first, last, k in reversed(self.pool.schedule) if scheduled >= first)
        context = sum(r.prompt + r.total - r.left for r in self.decoding + self.prefilling)
        seconds = step_seconds(self.pool.cost, verified + chunks, context, chosen)
        seconds *= math.exp(self.random.gauss(0, self.pool.noise.step))
        self.clock += seconds
        self.totals["steps"] += 1
        self.totals["itl_seconds"] += len(self.decoding) * seconds
        self._verify()
        for request in done:
            self.prefilling.remove(request)
            request.left -= 1
            request.passage_end = request.left
            self.decoding.append(request)
            self.totals["first"] += 1
            self.totals["first_seconds"] += self.clock - request.arrived
            self.totals["prompt"] += request.prompt
            self.totals["generated"] += 1
        for request in self.decoding:
            if request.left <= request.passage_end:
                self._begin_passage(request)
        self.draft_len = chosen

    def _verify(self) -> None:
        """Accept drafts of all decoding requests."""
        for request in list(self.decoding):
            accepted = 0
            while accepted < self.draft_len and self.random.random() < request.hazards[accepted]:
                accepted += 1
            self.joint[request.route, self.draft_len, accepted] += 1
            self.totals["generated"] += min(accepted + 1, request.left)
            request.left -= accepted + 1
            if request.left <= 0:
                self.decoding.remove(request)
                self.totals["finished"] += 1
                self.totals["e2e_seconds"] += self.clock - request.arrived

    def _request(self, now: float) -> Request:
        """Draw a request."""
        routes = self.pool.routes
        route = self.random.choices(range(len(routes)), [r.share for r in routes])[0]
        spec = routes[route]
        prompt = int(self._log_normal(spec.prompt, spec.prompt_spread)) + 1
        total = int(self._log_normal(spec.output, spec.output_spread)) + 2
        quality = self.random.gauss(0, spec.request_spread)
        return Request(route, now, prompt, prompt, total, total, quality)

    def _begin_passage(self, request: Request) -> None:
        """Draw the acceptance of a passage, and its length."""
        spec = self.pool.routes[request.route]
        length = int(self.random.expovariate(1 / spec.passage)) + 1
        request.passage_end = request.left - length
        z = request.quality + self.random.gauss(0, spec.passage_spread)
        request.hazards = [1 / (1 + math.exp(-(b + z))) for b in self.models[request.route].base]

    def _log_normal(self, mean: float, spread: float) -> float:
        return math.exp(math.log(mean) - spread**2 / 2 + self.random.gauss(0, spread))


def step_seconds(cost: CostSpec, tokens: int, context: float, draft_len: int) -> float:
    """Return the seconds of a step as docs/simulator.md writes them."""
    memory = cost.floor
    if cost.experts:
        active = 1 - (1 - cost.experts_per_token / cost.experts) ** tokens
        memory *= 1 - cost.expert_share + cost.expert_share * active
    compute = cost.per_token * math.ceil(tokens / cost.tile) * cost.tile
    core = float((memory**cost.sharpness + compute**cost.sharpness) ** (1 / cost.sharpness))
    if draft_len == 0:
        drafter = cost.draft_zero
    else:
        growth = {"linear": draft_len, "concave": math.sqrt(draft_len), "flat": 0}[cost.draft_shape]
        drafter = cost.draft_base + cost.draft_slope * growth
    return cost.overhead + core + cost.per_context_token * context + drafter
