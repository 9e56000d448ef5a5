"""Checks across settings, on the data as given, so that they are reported beside faults inside a section."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from tuner._exceptions import InputError
from tuner.addresses import same_address
from tuner.config.kinds import split_listen
from tuner.quantities import parse_duration, parse_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
Problem = tuple[tuple[str | int, ...], str]
"""Where, and ``problem: remedy``."""

CYCLES_PER_LEASE = 2
"""A push is renewed once a cycle, so a lease of less than two cycles ends by one that is late."""


def combine(title: str, problems: list[Problem], validate: Callable[[], T]) -> T:
    """Return what ``validate`` returns, or raise its faults and ``problems`` as one error."""
    details: list[InitErrorDetails] = []
    result: T | None = None
    try:
        result = validate()
    except ValidationError as error:
        details += [
            InitErrorDetails(
                type=fault["type"], loc=fault["loc"], input=fault["input"], ctx=fault.get("ctx", {})
            )
            for fault in error.errors(include_url=False)
        ]
    details += [
        InitErrorDetails(type=PydanticCustomError("across", "{text}", {"text": text}), loc=where, input=None)
        for where, text in problems
    ]
    if details or result is None:
        raise ValidationError.from_exception_data(title, details)
    return result


def cross_checks(data: object) -> list[Problem]:
    """Return every problem that shows only across settings.

    Args:
        data: the settings as mappings and lists (or sections), not yet validated; what has the wrong
            shape is passed over, since validation reports it.
    """
    root = _mapping(data)
    pools = list(_items(root, "pools"))
    return [
        *_timing(root),
        *_repeated_names(pools, "pools", "pool"),
        *_repeated_names(
            list(_items(_mapping(root.get("sources")), "prometheus")), "sources.prometheus", "source"
        ),
        *_shared_engines(pools),
        *_pool_checks(root, pools),
        *_source_checks(root, pools),
        *_delivery(_mapping(root.get("alerting"))),
        *_listener(_mapping(root.get("web"))),
    ]


def _timing(root: Mapping[str, Any]) -> Iterator[Problem]:
    """Check intervals against each other."""
    scrape, retention = _mapping(root.get("scrape")), _mapping(root.get("retention"))
    interval = _seconds(scrape.get("interval", "15s"))
    timeout = _seconds(scrape.get("timeout", "5s"))
    cycle = _seconds(_mapping(root.get("cycle")).get("interval", "60s"))
    if interval is not None and timeout is not None and timeout >= interval:
        yield (
            ("scrape", "timeout"),
            "is not shorter than scrape.interval: lower it, so that scrapes do not pile up",
        )
    if interval is not None and cycle is not None and cycle < interval:
        yield (
            ("cycle", "interval"),
            "is shorter than scrape.interval: a cycle would see no new scrape, raise it",
        )
    half_life = _seconds(_mapping(root.get("cycle")).get("half_life", "6h"))
    if cycle is not None and half_life is not None and half_life < cycle:
        yield (
            ("cycle", "half_life"),
            "is shorter than cycle.interval: a cycle would forget what the one before saw, raise it",
        )
    for index, source in _items(_mapping(root.get("sources")), "prometheus"):
        wait = _seconds(source.get("timeout", "5s"))
        if interval is not None and wait is not None and wait >= interval:
            yield (
                ("sources", "prometheus", index, "timeout"),
                "is not shorter than scrape.interval: lower it, so that queries do not pile up",
            )
    kept = [(name, _seconds(retention.get(name, text))) for name, text in _RETENTION]
    for (finer, short), (coarser, long) in pairwise(kept):
        if short is not None and long is not None and long < short:
            yield ("retention", coarser), f"is shorter than retention.{finer}: keep sums at least as long"
    for index, pool in _items(root, "pools"):
        lease = _seconds(_mapping(pool.get("guard")).get("lease", "5m"))
        if cycle is not None and lease is not None and lease < CYCLES_PER_LEASE * cycle:
            yield (
                ("pools", index, "guard", "lease"),
                "is shorter than two cycles: engines would revert between renewals, raise it",
            )


_RETENTION = (("raw", "6h"), ("minute", "48h"), ("hour", "400d"))
"""Keys from fine to coarse with their defaults."""


def _repeated_names(items: list[tuple[int, Mapping[str, Any]]], where: str, what: str) -> Iterator[Problem]:
    """Check that no two items of a list carry the same name."""
    seen: dict[str, int] = {}
    for index, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            yield (
                (*where.split("."), index, "name"),
                f"is also the name of {where}[{seen[name]}]: give each {what} its own",
            )
        seen.setdefault(name, index)


def _shared_engines(pools: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Problem]:
    """Check that no engine belongs to two pools, which would push two schedules to it."""
    seen: dict[tuple[str, str, int | None, str, str], int] = {}
    for index, pool in pools:
        for position, url in enumerate(_list(_mapping(pool.get("engines")).get("static"))):
            key = same_address(url) if isinstance(url, str) else None
            if key is None:
                continue
            if seen.setdefault(key, index) != index:
                yield (
                    ("pools", index, "engines", "static", position),
                    f"is an engine of pools[{seen[key]}] too: remove it from one of them",
                )


def _pool_checks(root: Mapping[str, Any], pools: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Problem]:
    """Check each pool's references and the sizes of its model."""
    if root.get("pools") in ([], ()):
        yield ("pools",), "is empty: give at least one pool"
    for index, pool in pools:
        if pool.get("mode") == "auto" and pool.get("admin") is None:
            yield (
                ("pools", index, "mode"),
                "is auto without a way to push: add admin, or use observe or advise",
            )
        model = _mapping(pool.get("model"))
        params, active = _number(model.get("params")), _number(model.get("active_params"))
        if params is not None and active is not None and active > params:
            yield (
                ("pools", index, "model", "active_params"),
                "exceeds params: give the total of all experts as params",
            )


def _source_checks(root: Mapping[str, Any], pools: list[tuple[int, Mapping[str, Any]]]) -> Iterator[Problem]:
    """Check how servers are asked, and that pools name servers that exist."""
    servers = list(_items(_mapping(root.get("sources")), "prometheus"))
    known = {item.get("name") for _, item in servers}
    for index, server in servers:
        where = ("sources", "prometheus", index)
        user, password = server.get("username"), server.get("password_file")
        if password and not user:
            yield (*where, "password_file"), "is never used without username: add username, or remove it"
        if user and not password:
            yield (*where, "username"), "has no password: name the file that holds it by password_file"
        if user and server.get("bearer_token_file"):
            yield (*where, "username"), "stands beside bearer_token_file: keep one of them"
    for index, pool in pools:
        engines, gpu = _mapping(pool.get("engines")), _mapping(pool.get("gpu"))
        for section, name in ((engines, "engines"), (gpu, "gpu")):
            source = _mapping(section.get("prometheus")).get("source")
            if isinstance(source, str) and source not in known:
                yield (
                    ("pools", index, name, "prometheus", "source"),
                    "is not defined: add a source of that name under sources.prometheus",
                )
        selected = _mapping(engines.get("prometheus"))
        if selected.get("read") == "direct" and selected.get("fallback") in (True, "true"):
            yield (
                ("pools", index, "engines", "prometheus", "fallback"),
                "is never used under read direct: remove it, or read from prometheus",
            )
        if gpu and not gpu.get("exporters") and not gpu.get("prometheus"):
            yield ("pools", index, "gpu"), "names no source: add exporters or prometheus, or remove gpu"


def _delivery(alerting: Mapping[str, Any]) -> Iterator[Problem]:
    """Check that alerts are sent one way only, and that there is somewhere to send them."""
    delivery = alerting.get("delivery", "rules")
    urls = _list(alerting.get("alertmanagers"))
    if delivery == "alertmanager" and not urls:
        yield (
            ("alerting", "delivery"),
            "is alertmanager without an address: list every instance in alerting.alertmanagers",
        )
    if delivery == "rules" and urls:
        yield (
            ("alerting", "alertmanagers"),
            "is never used under delivery rules: remove it, or set delivery to alertmanager",
        )


def _listener(web: Mapping[str, Any]) -> Iterator[Problem]:
    """Check that a listener that others can reach asks who they are."""
    if web.get("enable_lifecycle") in (True, "true") and not web.get("token_file"):
        yield (
            ("web", "enable_lifecycle"),
            "is on and no token is set, so every reload would be refused: set web.token_file",
        )
    listen = web.get("listen")
    if not isinstance(listen, str) or web.get("config_file"):
        return
    try:
        host, _ = split_listen(listen)
    except ValueError:
        return
    if host != "localhost" and not host.startswith("127.") and host != "::1":
        yield (
            ("web", "listen"),
            "is open to other hosts without authentication: set web.config_file, or listen on 127.0.0.1",
        )


def _mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping or a section, else an empty one."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_defaults=True)
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    """Return ``value`` if it is a list, else an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def _items(section: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield index and mapping of the items of a list of sections."""
    for index, item in enumerate(_list(section.get(key))):
        yield index, _mapping(item)


def _seconds(value: object) -> float | None:
    """Return a duration in seconds, or ``None`` where validation will refuse it."""
    if isinstance(value, float):  # a default, or a section that was built in code
        return value
    return _read(parse_duration, value)


def _number(value: object) -> float | None:
    """Return a number, or ``None`` where validation will refuse it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return _read(parse_number, value)


def _read(parse: Callable[[str], float], value: object) -> float | None:
    """Return ``value`` as ``parse`` reads it, or ``None``."""
    try:
        return parse(value) if isinstance(value, str) else None
    except InputError:
        return None
