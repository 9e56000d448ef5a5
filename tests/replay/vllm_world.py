"""A small world that behaves like one vLLM engine and writes what it would expose.

Closed-loop clients, continuous batching, one verify step at a time; acceptance, step time and schedule are
known, so a test can hold what the tuner says against the truth. It imports nothing of the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

StepSeconds = Callable[[float, int], float]
"""(tokens in the step, draft length) -> seconds."""

COUNTERS = (
    *("drafts", "draft", "accepted", "emitted", "prompt", "steps", "iter_tokens"),
    *("first", "itl", "itl_sum", "done", "e2e_sum", "preempted"),
)

IDLE_SECONDS = 0.01
"""How long an engine without requests sleeps before it looks again."""


@dataclass
class Request:
    """One request in flight: tokens still to emit, its age and its own acceptance profile."""

    left: int
    born: float
    last: float
    profile: np.ndarray
    prompt: int
    started: bool = False


@dataclass
class VllmWorld:
    """One engine; ``clients`` and ``schedule`` may be changed between calls of :meth:`run`."""

    profile: tuple[float, ...]
    """Conditional acceptance by position."""
    step_seconds: StepSeconds
    schedule: Callable[[int], int]
    """Requests in the step -> draft length."""
    clients: int
    seed: int
    output: tuple[int, int] = (30, 90)
    prompt: tuple[int, int] = (20, 40)
    max_draft_len: int = 4
    noise: float = 0.03
    model: str = "m"
    engine: str = "0"
    arrivals: float = 0.0
    """Requests per second of an open load, ``clients`` the most at once; 0 for a closed loop of clients."""
    spread: float = 0.0
    """Standard deviation, across requests, of the acceptance on the log-odds scale."""
    started_at: float = 1.7e9
    now: float = 0.0
    requests: list[Request] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        """Start the clock and all counters."""
        self.rng = np.random.default_rng(self.seed)
        self.now = self.started_at
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a restart does; requests in flight are lost."""
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        self.positions = np.zeros(self.max_draft_len)
        self.requests = []
        self.born = self.stepped = self.now

    def _admit(self, seconds: float) -> None:
        free = self.clients - len(self.requests)
        arrived = int(self.rng.poisson(self.arrivals * seconds)) if self.arrivals else free
        for _ in range(min(free, arrived)):
            odds = np.log(np.array(self.profile) / (1 - np.array(self.profile)))
            odds = odds + self.rng.normal(0, self.spread) if self.spread else odds
            self.requests.append(
                Request(
                    int(self.rng.integers(*self.output, endpoint=True)),
                    self.now,
                    self.now,
                    1 / (1 + np.exp(-odds)),
                    int(self.rng.integers(*self.prompt, endpoint=True)),
                )
            )

    def step(self) -> None:
        """Run one engine step."""
        self._admit(self.now - self.stepped)
        self.stepped = self.now
        if not self.requests:
            self.now += IDLE_SECONDS
            return
        draft_len = self.schedule(len(self.requests))
        decoding = [r for r in self.requests if r.started]
        prompt_tokens = sum(r.prompt for r in self.requests if not r.started)
        tokens = len(decoding) * (draft_len + 1) + prompt_tokens
        self.now += self.step_seconds(tokens, draft_len) * float(np.exp(self.rng.normal(0, self.noise)))
        count = self.counters
        emitted = 0
        for request in list(self.requests):
            if not request.started:
                request.started = True
                count["first"] += 1
                gain = 1
            else:
                gain = 1 + self._accept(request, draft_len)
                count["itl"] += 1
                count["itl_sum"] += self.now - request.last
            gain = min(gain, request.left)
            request.left -= gain
            request.last = self.now
            emitted += gain
            if request.left == 0:
                self.requests.remove(request)
                count["done"] += 1
                count["e2e_sum"] += self.now - request.born
        count["emitted"] += emitted
        count["prompt"] += prompt_tokens
        count["steps"] += 1
        count["iter_tokens"] += emitted + prompt_tokens

    def _accept(self, request: Request, draft_len: int) -> int:
        if draft_len == 0:
            return 0
        draws = self.rng.random(draft_len) < request.profile[:draft_len]
        accepted = int(np.argmin(draws)) if not draws.all() else draft_len
        self.counters["drafts"] += 1
        self.counters["draft"] += draft_len
        self.counters["accepted"] += accepted
        self.positions[:accepted] += 1
        return accepted

    def run(self, seconds: float) -> None:
        """Run until ``seconds`` have passed."""
        end = self.now + seconds
        while self.now < end:
            self.step()

    def body(self) -> str:
        """Return the exposition text of this moment."""
        labels = f'engine="{self.engine}",model_name="{self.model}"'
        count = self.counters
        values = {
            "spec_decode_num_drafts_total": count["drafts"],
            "spec_decode_num_draft_tokens_total": count["draft"],
            "spec_decode_num_accepted_tokens_total": count["accepted"],
            "generation_tokens_total": count["emitted"],
            "prompt_tokens_total": count["prompt"],
            "num_preemptions_total": count["preempted"],
        }
        gauges = {
            "num_requests_running": float(len(self.requests)),
            "num_requests_waiting": 0.0,
            "kv_cache_usage_perc": 0.01,
        }
        histograms = {
            "iteration_tokens_total": (count["iter_tokens"], count["steps"]),
            "time_to_first_token_seconds": (0.1 * count["first"], count["first"]),
            "inter_token_latency_seconds": (count["itl_sum"], count["itl"]),
            "e2e_request_latency_seconds": (count["e2e_sum"], count["done"]),
        }
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self.born!r}"]
        for name, value in values.items():
            lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}{{{labels}}} {value!r}"]
            created = name.removesuffix("_total") + "_created"
            lines += [f"# TYPE vllm:{created} gauge", f"vllm:{created}{{{labels}}} {self.born!r}"]
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        lines.append(f"# TYPE vllm:{name} counter")
        lines += [
            f'vllm:{name}{{{labels},position="{i}"}} {v!r}' for i, v in enumerate(self.positions.tolist())
        ]
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {value!r}"]
        for name, (total, number) in histograms.items():
            lines.append(f"# TYPE vllm:{name} histogram")
            lines.append(f'vllm:{name}_bucket{{{labels},le="+Inf"}} {number!r}')
            lines += [f"vllm:{name}_sum{{{labels}}} {total!r}", f"vllm:{name}_count{{{labels}}} {number!r}"]
        return "\n".join(lines) + "\n"

    def record(self, folder: Path, *, scrapes: int, interval: float) -> None:
        """Run for ``scrapes`` intervals, writing one body each."""
        folder.mkdir(parents=True, exist_ok=True)
        for _ in range(scrapes):
            self.run(interval)
            (folder / f"{round(self.now * 1000)}.prom").write_text(self.body())

    def sweep(self, folder: Path, clients: tuple[int, ...], lens: tuple[int, ...]) -> None:
        """Record each load at each draft length, in random order, for eight windows of four seconds."""
        cells = [(count, draft_len) for count in clients for draft_len in lens]
        for index in self.rng.permutation(len(cells)):
            self.clients, draft_len = cells[index]
            self.schedule = constant(draft_len)
            self.record(folder, scrapes=8, interval=4.0)


def linear(fixed: float, per_token: float) -> StepSeconds:
    """Return a step time that grows by ``per_token`` seconds from ``fixed``."""
    return lambda tokens, _draft_len: fixed + per_token * tokens


def constant(draft_len: int) -> Callable[[int], int]:
    """Return a schedule of one draft length."""
    return lambda _batch: draft_len
