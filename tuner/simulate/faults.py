"""Faults on demand: what goes wrong with an engine, its machine or the way to it, and for how long."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.simulate.engines import Engines
    from tuner.simulate.plugin import Plugins

KINDS: Mapping[str, tuple[str, dict[str, float | str]]] = {
    "restart": ("the engine restarts at once: requests lost, counters zero, new start time and boot id", {}),
    "crash": ("the engine is gone, then comes back restarted", {}),
    "schedule_lost": ("the plugin runs the table of the start-up again, without a restart", {}),
    "method": ("the engine restarts as another one: model name and version", {
        "model": "sim/other", "version": "0.33.0"}),
    "acceptance": ("every acceptance is multiplied by factor", {"factor": 0.3}),
    "speed": ("every step takes factor times as long", {"factor": 2.0}),
    "clock_skew": ("the engine's own clock is ahead by offset seconds", {"offset": 3600.0}),
    "down": ("connections are closed without an answer; the engine goes on", {}),
    "flap": ("every other request is closed without an answer", {}),
    "slow": ("answers begin after delay seconds", {"delay": 10.0}),
    "drip": ("answers come one byte a second", {}),
    "error": ("answers have this status and no metrics", {"status": 503.0}),
    "html": ("answers are an HTML page with status 200", {}),
    "huge": ("answers are filled up to this many bytes", {"bytes": 100e6}),
    "truncated": ("answers end in the middle of a line", {}),
    "redirect": ("answers point to another address", {}),
    "stale": ("the same page again and again", {}),
    "nan": ("counters of speculation are NaN", {}),
    "backwards": ("counters show a tenth less than they should", {}),
}  # fmt: skip
"""Kind -> what happens, and parameters with their defaults."""
AT_ONCE = {"restart", "schedule_lost", "method"}
"""Kinds that happen once and do not last."""

_SPECULATION = re.compile(r"^(vllm:spec_decode_num_[a-z_]*_total(?:\{[^}]*\})?) .*$", re.MULTILINE)
_COUNTERS = re.compile(
    r"^(vllm:(?:spec_decode_num_[a-z_]*|generation_tokens|prompt_tokens)_total(?:\{[^}]*\})?) (.*)$",
    re.MULTILINE,
)
LARGEST_PARAMETER = 1e9
LARGEST_FACTOR = 100.0

SHOWN = 0.9
"""Share of each counter that ``backwards`` shows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one engine."""

    kind: str
    until: float
    """Unix second of its end."""
    number: float = 0.0
    """Its parameter, where it has one."""


class Faults:
    """The faults of all engines."""

    def __init__(self, engines: Engines, plugins: Plugins) -> None:
        """Begin without any."""
        self.engines = engines
        self.plugins = plugins
        self.active: dict[int, dict[str, Fault]] = {}
        self.model: dict[int, str] = {}
        """Model names of engines that came back as others."""
        self.next_end = math.inf

    def begin(
        self, kind: str, engine: int, now: float, seconds: float | None, given: Mapping[str, float | str]
    ) -> None:
        """Begin a fault of one engine; ``seconds`` ``None``: until it is cleared.

        Raises:
            InputError: no such kind or parameter.
        """
        parameters = check(kind, given)
        if kind == "schedule_lost":
            self.plugins.lose(engine, now)
            return
        if kind in AT_ONCE:
            if kind == "method":
                self.model[engine] = str(parameters["model"])
                self.plugins.engine_version[engine] = str(parameters["version"])
            self.restart(engine, now)
            return
        number = next((float(value) for value in parameters.values()), 0.0)
        fault = Fault(kind, math.inf if seconds is None else now + seconds, number)
        self.active.setdefault(engine, {})[kind] = fault
        self._switch(fault, engine, now, on=True)
        self._plan()

    def clear(self, engine: int, now: float, kind: str | None = None) -> None:
        """End one fault of an engine, or all of them."""
        faults = self.active.get(engine, {})
        for name in [kind] if kind else list(faults):
            if name in faults:
                self._switch(faults.pop(name), engine, now, on=False)
        self._plan()

    def end(self, now: float) -> None:
        """End the faults whose time is over."""
        if now < self.next_end:
            return
        for engine, faults in self.active.items():
            for kind in [name for name, fault in faults.items() if fault.until <= now]:
                self._switch(faults.pop(kind), engine, now, on=False)
        self._plan()

    def restart(self, engine: int, now: float) -> None:
        """Restart one engine with its plugin."""
        self.engines.restart(engine, now)
        self.plugins.reset(engine, now)

    def of(self, engine: int) -> Mapping[str, Fault]:
        """Return the faults that an engine has now."""
        return self.active.get(engine, {})

    def _switch(self, fault: Fault, engine: int, now: float, *, on: bool) -> None:
        """Make the engine have a fault, or not have it any more."""
        engines, number = self.engines, fault.number
        if fault.kind == "crash":
            engines.state.alive[engine] = not on
            if not on:
                self.restart(engine, now)
        elif fault.kind == "acceptance":
            engines.state.hazard_factor[engine] = number if on else 1.0
            engines.stepper.redraw(engine)
        elif fault.kind == "speed":
            engines.state.speed[engine] *= (number if on else 1.0) / engines.fault_speed[engine]
            engines.fault_speed[engine] = number if on else 1.0
        elif fault.kind == "clock_skew":
            self.plugins.offset[engine] = number if on else 0.0

    def _plan(self) -> None:
        """Look when the next fault ends."""
        ends = [fault.until for faults in self.active.values() for fault in faults.values()]
        self.next_end = min(ends, default=math.inf)


def check(kind: str, given: Mapping[str, float | str]) -> dict[str, float | str]:
    """Return the parameters of a fault, defaults filled in.

    Raises:
        InputError: no such kind or parameter, or a value that makes no sense.
    """
    if kind not in KINDS:
        raise InputError(f"no fault {kind!r}: use one of {', '.join(KINDS)}")
    defaults = KINDS[kind][1]
    for name, value in given.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise InputError(f"fault {kind!r} has no parameter {name!r}: it has {known}")
        text = isinstance(defaults[name], str)
        if text != isinstance(value, str) or isinstance(value, bool):
            raise InputError(f"fault {kind!r}: {name} must be {'text' if text else 'a number'}")
        if not text and not (math.isfinite(float(value)) and abs(float(value)) <= LARGEST_PARAMETER):
            raise InputError(f"fault {kind!r}: {name} is out of range")
    parameters = {**defaults, **given}
    if kind in ("acceptance", "speed") and not 0 < float(parameters["factor"]) <= LARGEST_FACTOR:
        raise InputError(f"fault {kind!r}: factor must be above 0 and at most {LARGEST_FACTOR:g}")
    return parameters


def spoil(page: str, faults: Mapping[str, Fault]) -> str:
    """Return a page with wrong numbers where a fault asks for them."""
    if "nan" in faults:
        page = _SPECULATION.sub(r"\1 NaN", page)
    if "backwards" in faults:
        page = _COUNTERS.sub(lambda match: f"{match[1]} {float(int(SHOWN * float(match[2])))}", page)
    if "truncated" in faults:
        page = page[: len(page) // 2].rstrip("\n")
    return page
