"""The admin API of the tuner's plugin, as each simulated engine answers it.

``GET`` and ``PUT /tuner/v1/schedule``: a schedule has a version and a fence; with ``ttl_seconds`` it is a
lease that reverts by itself unless it is renewed, or confirmed by a push without one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tuner.simulate.body import PLUGIN_VERSION

if TYPE_CHECKING:
    from tuner.simulate.engines import Engines

Answer = tuple[int, dict[str, Any]]
"""HTTP status and JSON document."""
Rows = list[list[int]]

LARGEST_REQUEST = 64 * 1024
"""Bytes of a request; a table of 1024 rows takes 16 KB."""
LONGEST_LEASE = 7 * 86_400.0
LONGEST_VERSION = 128
LARGEST_FENCE = 2**63 - 1
MOST_VERSIONS = 64
"""Versions whose content is remembered, to refuse the same version with another body."""
ROW = ("first", "last", "draft_len")
FIELDS = {"version", "fence", "ttl_seconds", "schedule"}


@dataclass(frozen=True, slots=True)
class InForce:
    """The schedule that an engine runs."""

    version: str
    schedule: Rows
    source: str
    applied_at: float
    expires_at: float | None = None


@dataclass(slots=True)
class Memory:
    """What the plugin of one engine remembers; a restart empties it."""

    now: InForce
    before: InForce
    """Where a lease falls back to: the last schedule that was not a lease."""
    boot_id: str
    fence: int = 0
    seen: dict[str, Rows] = field(default_factory=dict)


class Plugins:
    """The plugins of all engines."""

    def __init__(self, engines: Engines, seed: int, token: str | None, now: float) -> None:
        """Start with the tables of the start-up; ``None`` for ``token``: none is configured."""
        self.engines = engines
        self.token = token
        self._seed = seed
        self._boots = [0] * engines.fixed.engines
        self.offset = [0.0] * engines.fixed.engines
        """Seconds that each engine's own clock is ahead."""
        self.engine_version = [
            pool.engine_version for pool in engines.pools for _ in range(pool.engines)
        ]  # fmt: skip
        self._memory = [self._fresh(engine, now) for engine in range(engines.fixed.engines)]
        self.next_expiry = math.inf

    def reset(self, engine: int, now: float) -> None:
        """Forget everything, as a restart does."""
        self._boots[engine] += 1
        self._memory[engine] = self._fresh(engine, now)
        self._plan_expiry()

    def lose(self, engine: int, now: float) -> None:
        """Run the table of the start-up again without a restart: a fault that only reading back shows."""
        memory = self._memory[engine]
        memory.now = memory.before = self._startup(engine, now)
        self.engines.reset_table(engine)
        self._plan_expiry()

    def version(self, engine: int) -> tuple[str, str]:
        """Return version and source of the schedule in force."""
        now = self._memory[engine].now
        return now.version, now.source

    def expire(self, now: float) -> None:
        """Let leases that ended revert."""
        if now < self.next_expiry:
            return
        for engine, memory in enumerate(self._memory):
            ends = memory.now.expires_at
            if ends is not None and ends <= now:
                memory.now = replace(memory.before, source="reverted", applied_at=ends)
                memory.before = memory.now
                self.engines.set_table(engine, memory.now.schedule)
        self._plan_expiry()

    def get(self, engine: int) -> Answer:
        """Answer ``GET``."""
        pool = self.engines.pools[self.engines.fixed.pool_of[engine]]
        memory, offset = self._memory[engine], self.offset[engine]
        now = memory.now
        return 200, {
            "version": now.version,
            "schedule": now.schedule,
            "source": now.source,
            "applied_at": now.applied_at + offset,
            "expires_at": None if now.expires_at is None else now.expires_at + offset,
            "fence": memory.fence,
            "allowed_draft_lens": self.allowed(engine),
            "max_draft_len": pool.max_draft_len,
            "max_batch": pool.max_batch,
            "boot_id": memory.boot_id,
            "engine_version": self.engine_version[engine],
            "plugin_version": PLUGIN_VERSION,
            "supported": bool(pool.schedule),
            "reasons": [] if pool.schedule else ["started_without_schedule"],
        }

    def put(self, engine: int, body: bytes, authorization: str | None, now: float) -> Answer:
        """Answer ``PUT``: 200 with what ``GET`` tells, or a refusal with its reasons."""
        refusal = self._refuse_caller(authorization)
        if refusal is None and len(body) > LARGEST_REQUEST:
            refusal = 413, {"error": f"body over {LARGEST_REQUEST} bytes", "reasons": ["too_large"]}
        if refusal is not None:
            return refusal
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return 422, {"error": "body is not JSON", "reasons": ["not_json"]}
        reasons = self._faults(engine, document)
        if reasons:
            return 422, {"error": "schedule refused", "reasons": reasons}
        return self._apply(engine, document, now)

    def allowed(self, engine: int) -> list[int]:
        """Return the draft lengths that graphs were captured for: those of the start-up table."""
        return sorted({row[2] for row in self.engines.startup(engine)})

    def _apply(self, engine: int, document: dict[str, Any], now: float) -> Answer:
        """Put a valid request into force, unless its fence or its version forbid it."""
        memory = self._memory[engine]
        version, fence, rows = document["version"], document["fence"], document["schedule"]
        if fence < memory.fence:
            error = f"fence {fence} is lower than {memory.fence}"
            return 409, {"error": error, "reasons": ["fence"], "fence": memory.fence}
        if memory.seen.get(version, rows) != rows:
            return 409, {"error": f"version {version!r} has another body", "reasons": ["version_conflict"]}
        memory.fence = fence
        memory.seen[version] = rows
        if len(memory.seen) > MOST_VERSIONS:
            del memory.seen[next(iter(memory.seen))]
        ttl = document.get("ttl_seconds")
        same = memory.now.version == version and memory.now.source == "pushed"
        applied_at = memory.now.applied_at if same else now
        if memory.now.expires_at is None and not same:
            memory.before = memory.now
        memory.now = InForce(version, rows, "pushed", applied_at, None if ttl is None else now + ttl)
        if ttl is None:
            memory.before = memory.now
        self.engines.set_table(engine, rows)
        self._plan_expiry()
        return self.get(engine)

    def _refuse_caller(self, authorization: str | None) -> Answer | None:
        """Return the refusal of a caller without the token, ``None`` for one who has it."""
        if self.token is None:
            return 403, {"error": "no token file configured: nothing may be pushed", "reasons": ["no_token"]}
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return 401, {"error": "bearer token missing", "reasons": ["unauthenticated"]}
        if not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return 403, {"error": "token refused", "reasons": ["forbidden"]}
        return None

    def _faults(self, engine: int, document: object) -> list[str]:
        """Return everything that is wrong with a request."""
        pool = self.engines.pools[self.engines.fixed.pool_of[engine]]
        if not pool.schedule:
            return ["started_without_schedule: restart with a table that holds every K to be used"]
        if not isinstance(document, dict):
            return ["body must be an object"]
        reasons = [f"unknown field {name!r}" for name in sorted(set(document) - FIELDS)]
        version = document.get("version")
        if (
            not isinstance(version, str)
            or not 0 < len(version) <= LONGEST_VERSION
            or not version.isprintable()
        ):
            reasons.append("version must be a printable string")
        if not _whole(document.get("fence"), 0, LARGEST_FENCE):
            reasons.append("fence must be a whole number, not negative")
        ttl = document.get("ttl_seconds")
        number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
        if ttl is not None and not (number and 0 < ttl <= LONGEST_LEASE):
            reasons.append(f"ttl_seconds must be null or a number above 0, at most {LONGEST_LEASE:g}")
        return reasons + _schedule_faults(document.get("schedule"), self.allowed(engine), pool.max_draft_len)

    def _startup(self, engine: int, now: float) -> InForce:
        return InForce("startup", self.engines.startup(engine), "startup", now)

    def _fresh(self, engine: int, now: float) -> Memory:
        """Return the memory of a plugin that just started."""
        name = f"{self._seed} {engine} {self._boots[engine]}"
        boot_id = hashlib.sha256(name.encode()).hexdigest()[:32]
        startup = self._startup(engine, now)
        return Memory(startup, startup, boot_id)

    def _plan_expiry(self) -> None:
        """Look when the next lease ends."""
        ends = [memory.now.expires_at for memory in self._memory if memory.now.expires_at is not None]
        self.next_expiry = min(ends, default=math.inf)


def _whole(value: object, low: int, high: int) -> bool:
    """Tell whether a value is a whole number within bounds; a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _schedule_faults(rows: object, allowed: list[int], max_draft_len: int) -> list[str]:
    """Return what is wrong with a table: it starts at 1, has no gap, and uses allowed draft lengths."""
    if not isinstance(rows, list) or not rows:
        return ["schedule must be a list of [first, last, draft_len]"]
    reasons = []
    expected = 1
    for row in rows:
        if (
            not isinstance(row, list)
            or len(row) != len(ROW)
            or not all(_whole(cell, 0, 10**6) for cell in row)
        ):
            reasons.append(f"row {str(row)[:60]} is not [first, last, draft_len]")
            break
        first, last, draft_len = row
        if first != expected or last < first:
            reasons.append(f"row {row} must start at {expected} and not end before it starts")
            break
        expected = last + 1
        if draft_len > max_draft_len:
            reasons.append(f"draft length {draft_len} is over the maximum {max_draft_len}")
        elif draft_len not in allowed:
            reasons.append(f"draft length {draft_len} is not allowed: {allowed} were captured at start-up")
    return reasons
