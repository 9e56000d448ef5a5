"""Wall and CPU time of named stages of a program, taken by wrapping the functions that are the stages."""

from __future__ import annotations

import functools
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class Spent:
    """What one stage took since the last reset; what it calls is in it."""

    wall: float = 0.0
    cpu: float = 0.0
    """Seconds of all threads of the process."""
    calls: int = 0


@dataclass
class Stopwatch:
    """Counts stages by name."""

    stages: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))

    def watch(self, owner: Any, name: str, stage: str) -> None:  # noqa: ANN401 - a class or a module
        """Count every call of ``owner.name`` as ``stage`` from now on."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function takes
            with self.spent(stage):
                return inner(*args, **kwargs)

        setattr(owner, name, timed)

    @contextmanager
    def spent(self, stage: str) -> Iterator[None]:
        """Count what happens inside as ``stage``."""
        wall, cpu = perf_counter(), process_time()
        try:
            yield
        finally:
            one = self.stages[stage]
            one.wall += perf_counter() - wall
            one.cpu += process_time() - cpu
            one.calls += 1

    def take(self) -> dict[str, Spent]:
        """Return what was counted and begin anew."""
        taken, self.stages = dict(self.stages), defaultdict(Spent)
        return taken
