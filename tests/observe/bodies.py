"""A server whose counters are known: it runs a load and writes what vLLM would expose."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING

from tuner.engines import get_engine
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.windows import WindowSet, build_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tuner.fleet import Fingerprint, Schedule

HAZARDS = (0.80, 0.72, 0.66, 0.60)
VOCABULARY = get_engine("vllm").vocabulary
COUNTERS = (
    "iteration_tokens_total_count",
    "iteration_tokens_total_sum",
    "inter_token_latency_seconds_count",
    "inter_token_latency_seconds_sum",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "generation_tokens_total",
    "prompt_tokens_total",
    "time_to_first_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "e2e_request_latency_seconds_sum",
    "num_preemptions_total",
)
PER_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"


class Server:
    """One rank of vLLM that serves a steady batch and can be asked for its metrics at any time."""

    def __init__(
        self, *, max_draft_len: int = 4, rank: str = "0", model: str = "m", started: float | None = 1000.0
    ) -> None:
        self.time = 2_000_000_000.0
        self.labels = f'engine="{rank}",model_name="{model}"'
        self.started = started
        self.totals: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self.positions = [0.0] * max_draft_len
        self.running = 0.0
        self.waiting = 0.0

    def run(self, seconds: float, batch: float, draft_len: int, *, step_seconds: float = 0.05) -> None:
        """Serve ``batch`` requests of about 50 tokens with one draft length for a while."""
        steps = round(seconds / step_seconds)
        request_steps = round(steps * batch)
        survival = list(accumulate(HAZARDS[:draft_len], mul))
        accepted = [round(request_steps * s) for s in survival]
        first = round(request_steps * (1 + sum(survival)) / 50)
        emitted = request_steps + sum(accepted) + first
        for position, count in enumerate(accepted):
            self.positions[position] += count
        self.add(
            {
                "iteration_tokens_total_count": steps,
                "iteration_tokens_total_sum": emitted + 30 * first,
                "inter_token_latency_seconds_count": request_steps,
                "inter_token_latency_seconds_sum": request_steps * step_seconds,
                "spec_decode_num_drafts_total": request_steps if draft_len else 0,
                "spec_decode_num_draft_tokens_total": request_steps * draft_len,
                "spec_decode_num_accepted_tokens_total": sum(accepted),
                "generation_tokens_total": emitted,
                "prompt_tokens_total": 30 * first,
                "time_to_first_token_seconds_count": first,
                "e2e_request_latency_seconds_count": first,
                "e2e_request_latency_seconds_sum": first * 2.5,
            }
        )
        self.time += seconds
        self.running = round(batch)

    def add(self, amounts: Mapping[str, float]) -> None:
        """Move counters by hand."""
        for name, amount in amounts.items():
            self.totals[name] += amount

    def restart(self) -> None:
        """Begin again from zero."""
        self.totals = dict.fromkeys(self.totals, 0.0)
        self.positions = [0.0] * len(self.positions)
        if self.started is not None:
            self.started = self.time

    def lines(self, *, without: Iterable[str] = ()) -> list[str]:
        """Return the samples, leaving out names (without the engine's prefix)."""
        gone = set(without)
        lines = [f"vllm:{n}{{{self.labels}}} {v}" for n, v in self.totals.items() if n not in gone]
        if PER_POSITION not in gone:
            lines += [
                f'vllm:{PER_POSITION}{{{self.labels},position="{i}"}} {v}'
                for i, v in enumerate(self.positions)
            ]
        gauges = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": 0.25,
        }
        lines += [f"vllm:{n}{{{self.labels}}} {v}" for n, v in gauges.items() if n not in gone]
        if self.started is not None and "process_start_time_seconds" not in gone:
            lines.append(f"process_start_time_seconds {self.started}")
        return lines

    def scrape(self, *, without: Iterable[str] = ()) -> TimedScrape:
        """Return what a scrape at this moment gives."""
        return scrape(self.time, self.lines(without=without))


def body(lines: Iterable[str]) -> str:
    """Join samples into a whole body."""
    return "".join(f"{line}\n" for line in lines)


def scrape(time: float, lines: Iterable[str]) -> TimedScrape:
    """Parse samples as a scrape at a time."""
    return TimedScrape(time, parse(body(lines), wanted=VOCABULARY.sample_names))


def windows_of(
    scrapes: Sequence[TimedScrape],
    *,
    schedule: Schedule | None = None,
    fingerprint: Fingerprint | None = None,
) -> WindowSet:
    """Build windows with vLLM's vocabulary."""
    return build_windows(scrapes, VOCABULARY, schedule=schedule, fingerprint=fingerprint)


def codes(result: WindowSet) -> set[str]:
    """Return the codes of the findings."""
    return {finding.code for finding in result.findings}


def busy(
    server: Server, windows: int = 5, *, draft_len: int = 2, without: Iterable[str] = ()
) -> list[TimedScrape]:
    """Scrape a steady load of 8 requests every 15 s."""
    server.running = 8
    scrapes = [server.scrape(without=without)]
    for _ in range(windows):
        server.run(15, 8, draft_len)
        scrapes.append(server.scrape(without=without))
    return scrapes
