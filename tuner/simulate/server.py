"""One HTTP server for a whole simulated fleet, and the clock that drives it.

``/engines/<pool>/<n>/metrics`` and ``.../tuner/v1/schedule``, ``/gpu/<pool>/<n>/metrics``, ``/targets`` and
``/targets/<pool>`` (Prometheus' HTTP discovery), and control: ``/sim/now``, ``/sim/advance``, ``/sim/fault``,
``/sim/truth``.
"""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tuner._exceptions import InputError
from tuner.simulate.faults import KINDS
from tuner.simulate.wire import METRICS_TYPE, Listener, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.simulate.faults import Fault
    from tuner.simulate.fleet import Fleet

TICK_SECONDS = 0.05
"""Wall seconds between advances of a running clock: one or two steps, so that counters are fresh."""
SLICE_SECONDS = 5.0
"""Most fleet seconds that are advanced at one go; between slices requests are answered."""
LONGEST_ADVANCE = 7 * 86_400.0
HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body><h1>Sign in</h1></body></html>\n"
WHERE = "an engine is at /engines/<pool>/<n>, its metrics below that at /metrics; /targets lists them all"
ENGINE_PATH_PARTS = 3
"""Parts of a path that name an engine: its kind, pool and number."""


class FleetServer:
    """Serves a fleet; ``speed`` fleet seconds pass in a wall second, by request alone where it is 0."""

    def __init__(self, fleet: Fleet, *, speed: float = 1.0, show_truth: bool = False) -> None:
        """Serve ``fleet``; ``/sim/truth`` answers only with ``show_truth``."""
        self.fleet = fleet
        self.speed = speed
        self.show_truth = show_truth
        self.url = ""
        self._listener = Listener(self._answer)
        self._driver: asyncio.Task[None] | None = None
        self._flaps: dict[tuple[str, int], int] = {}

    async def start(self, host: str, port: int) -> str:
        """Listen and let the clock run; return the address of the server."""
        bound, chosen = await self._listener.start(host, port)
        self.url = f"http://{f'[{bound}]' if ':' in bound else bound}:{chosen}"
        if self.speed > 0:
            self._driver = asyncio.get_running_loop().create_task(self._drive())
        return self.url

    async def stop(self) -> None:
        """Stop the clock and all connections."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
        await self._listener.stop()

    async def advance(self, seconds: float) -> None:
        """Let fleet time pass, answering requests in between."""
        left = seconds
        while left > 0:
            self.fleet.advance(min(left, SLICE_SECONDS))
            left -= SLICE_SECONDS
            await asyncio.sleep(0)

    async def _drive(self) -> None:
        """Keep fleet time at ``speed`` times wall time; where that is too fast, as fast as it goes."""
        last = time.monotonic()
        # What cannot be caught up is dropped: asking for ever more would keep the loop from everything else.
        most = max(SLICE_SECONDS, 2 * TICK_SECONDS * self.speed)
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            await self.advance(min((now - last) * self.speed, most))
            last = now

    async def _answer(self, request: Request) -> Reply:
        """Answer one request."""
        parts = request.path.strip("/").split("/")
        if parts[0] == "sim":
            return await self._control(request, parts[1:])
        try:
            if parts[0] == "targets":
                return _json(200, self.targets("/".join(parts[1:]) or None))
            if parts[0] in ("engines", "gpu") and len(parts) > ENGINE_PATH_PARTS and parts[2].isdecimal():
                return self._of_engine(request, parts)
        except InputError as error:
            return _json(404, {"error": str(error)})
        return _json(404, {"error": f"no page {request.path[:100]!r}: {WHERE}"})

    def _of_engine(self, request: Request, parts: list[str]) -> Reply:
        """Answer for one engine or its GPU."""
        pool, n, rest = parts[1], int(parts[2]), "/".join(parts[3:])
        faults = self.fleet.faults_of(pool, n)
        if self._unreachable(pool, n, faults):
            return Reply(close=True)
        if rest == "tuner/v1/schedule" and parts[0] == "engines":
            return self._schedule(request, pool, n, faults)
        if rest != "metrics":
            return _json(404, {"detail": "Not Found"})
        if request.method not in ("GET", "HEAD"):
            return _json(405, {"detail": "Method Not Allowed"})
        if parts[0] == "gpu":
            return Reply(body=self.fleet.gpu_body(pool, n).encode())
        body = HTML if "html" in faults else b"" if "error" in faults else self.fleet.body(pool, n).encode()
        return _misbehaving(body, faults, self.url)

    def _schedule(self, request: Request, pool: str, n: int, faults: Mapping[str, Fault]) -> Reply:
        """Answer for the plugin; what delays a page delays it too."""
        if request.method == "GET":
            status, document = self.fleet.get_schedule(pool, n)
        elif request.method == "PUT":
            sent = request.headers.get("authorization")
            status, document = self.fleet.put_schedule(pool, n, request.body, sent)
        else:
            return _json(405, {"error": "use GET or PUT", "reasons": []})
        delay = faults["slow"].number if "slow" in faults else 0.0
        return _json(status, document, delay=delay)

    def _unreachable(self, pool: str, n: int, faults: Mapping[str, Fault]) -> bool:
        """Tell whether a fault closes this connection; count requests for the one that flaps."""
        if "flap" in faults:
            self._flaps[pool, n] = self._flaps.get((pool, n), 0) + 1
        return "down" in faults or "crash" in faults or ("flap" in faults and self._flaps[pool, n] % 2 == 1)

    def targets(self, pool: str | None = None) -> list[dict[str, Any]]:
        """Return all engines, or those of one pool, as Prometheus' HTTP discovery has them.

        Raises:
            InputError: there is no such pool.
        """
        if pool is not None:
            self.fleet.index(pool, 0)
        address = self.url.partition("//")[2]
        return [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/engines/{name}/{n}/metrics",
                    "instance": f"{name}-{n}",
                    "pod": f"{name}-{n}",
                    "pool": name,
                    "path": f"/engines/{name}/{n}",
                },
            }
            for name, spec in self.fleet.pools.items()
            if pool in (None, name)
            for n in range(spec.engines)
        ]

    async def _control(self, request: Request, parts: list[str]) -> Reply:
        """Answer what tests steer the fleet by."""
        what = "/".join(parts)
        if request.method == "POST" and what in ("advance", "fault"):
            try:
                document = json.loads(request.body or b"{}")
            except (ValueError, RecursionError):
                document = None
            if not isinstance(document, dict):
                return _json(400, {"error": "body must be an object in JSON"})
            return await self._advanced(document) if what == "advance" else self._broken(document)
        if request.method == "GET" and what in ("now", "truth", "fault"):
            return self._told(what)
        return _json(404, {"error": f"no control {request.method} {what[:100]!r}"})

    def _told(self, what: str) -> Reply:
        """Tell the time, the truth, or the faults there are."""
        if what == "now":
            return _json(200, {"now": self.fleet.now, "speed": self.speed})
        if what == "fault":
            return _json(200, {kind: {"what": text, "parameters": p} for kind, (text, p) in KINDS.items()})
        if not self.show_truth:
            return _json(403, {"error": "the truth is not shown: start with --truth"})
        return _json(200, {"now": self.fleet.now, "pools": self.fleet.truths()})

    async def _advanced(self, document: dict[str, Any]) -> Reply:
        """Advance time by request."""
        if self.speed > 0:
            return _json(409, {"error": "the clock runs by itself: start with --speed 0"})
        seconds = document.get("seconds")
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not number or not 0 <= float(seconds or 0) <= LONGEST_ADVANCE:
            return _json(400, {"error": f"seconds must be a number from 0 to {LONGEST_ADVANCE:g}"})
        await self.advance(float(seconds or 0))
        return _json(200, {"now": self.fleet.now})

    def _broken(self, document: dict[str, Any]) -> Reply:
        """Begin or end faults by request."""
        given = dict(document)
        kind, pool = given.pop("kind", ""), given.pop("pool", None)
        engine, seconds = given.pop("engine", None), given.pop("seconds", None)
        try:
            _check_fault(kind, pool, engine, seconds)
            count = self.fleet.fault(str(kind), pool, engine, seconds=seconds, **given)
        except (InputError, TypeError) as error:
            return _json(400, {"error": str(error)})
        return _json(200, {"engines": count, "now": self.fleet.now})


def _check_fault(kind: object, pool: object, engine: object, seconds: object) -> None:
    """Check the types of a request for a fault.

    Raises:
        InputError: one is wrong.
    """
    if not isinstance(kind, str) or not isinstance(pool, str | None):
        raise InputError("kind and pool must be text")
    if engine is not None and (not isinstance(engine, int) or isinstance(engine, bool)):
        raise InputError("engine must be the number of an engine in its pool, or null")
    if seconds is not None and (not isinstance(seconds, int | float) or isinstance(seconds, bool)):
        raise InputError("seconds must be a number, or null")


def _misbehaving(body: bytes, faults: Mapping[str, Fault], url: str) -> Reply:
    """Return a metrics page with the faults of the way to it."""
    status, headers = 200, {}
    if "error" in faults:
        status = int(faults["error"].number)
    elif "redirect" in faults:
        status, body, headers = 302, b"", {"Location": f"{url}/elsewhere"}
    return Reply(
        status=status,
        body=body,
        kind="text/html; charset=utf-8" if "html" in faults else METRICS_TYPE,
        headers=headers,
        delay=faults["slow"].number if "slow" in faults else 0.0,
        drip=1.0 if "drip" in faults else 0.0,
        fill=int(faults["huge"].number) if "huge" in faults else 0,
    )


def _json(status: int, document: object, delay: float = 0.0) -> Reply:
    """Return an answer in JSON."""
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    return Reply(status, json.dumps(document).encode(), "application/json", headers, delay)
