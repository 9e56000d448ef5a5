"""Label sets of targets -> engines with an address, a name and an admin address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from tuner._exceptions import InputError
from tuner.addresses import fill_template, is_link_local, same_address, split_url
from tuner.fleet import Finding, Target
from tuner.observe.discovery.groups import ADDRESS, LONGEST_LABEL, is_plain
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.observe.discovery.spec import EnginesSpec, Roster

_HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._%-]+)(?::[0-9]{1,5})?")
_PARAM = "__param_"
_PARTS = frozenset({ADDRESS, "__scheme__", "__metrics_path__"})
"""Labels that are parts of an address, with those that begin with ``_PARAM``."""
FROM_SERVER = "prometheus:"
"""How the origin of what a Prometheus server names begins; its name follows."""


@dataclass(frozen=True, slots=True)
class Found:
    """One target as a source names it."""

    url: str
    base: str
    """The address without the path of its metrics and without parameters."""
    name: str
    """What names it where no labels do: host and port, and whatever else tells it from its neighbours."""
    origin: str
    labels: Mapping[str, str]
    """All of them, those that begin with ``__`` too."""

    @property
    def from_server(self) -> bool:
        """Whether a Prometheus server named it."""
        return self.origin.startswith(FROM_SERVER)

    @property
    def key(self) -> object:
        """What is equal for two spellings of one address."""
        return same_address(self.url)


def of_static(url: str, spec: EnginesSpec) -> Found:
    """Return an engine that the settings name by its base address.

    Raises:
        InputError: it is no HTTP address.
    """
    parts = split_url(url)
    base = url.rstrip("/")
    name = f"{parts.netloc.lower()}{parts.path.rstrip('/')}"
    labels = {ADDRESS: parts.netloc, "__scheme__": parts.scheme}
    return Found(base + spec.metrics_path, base, name, "static", labels)


def of_labels(labels: Mapping[str, str], spec: EnginesSpec, origin: str) -> Found:
    """Return the target that a label set describes, as Prometheus reads it.

    Raises:
        InputError: there is no address, or none that may be asked.
    """
    labels = _plain_labels(labels, spec)
    address = labels.get(ADDRESS) or labels.get("instance", "")
    if origin.startswith(FROM_SERVER) and all(map(labels.get, spec.identity_labels)) and spec.identity_labels:
        # Relabelled to something else: read through the server alone.
        address = quote(address.rpartition("@")[2], safe=":[]")
    if not _HOST_PORT.fullmatch(address):
        # What stands before an @ is a user name and a password, and findings are told and kept.
        user, at, host = address.rpartition("@")
        shown = f"***@{host[:60]}" if user or at else address[:60]
        raise InputError(f"target {shown!r} is not host:port: write it without scheme and path")
    scheme = labels.get("__scheme__") or "http"
    path = labels.get("__metrics_path__") or spec.metrics_path
    if not path.startswith("/"):
        path = f"/{path}"
    path = quote(path, safe="/%:@!$&'()*+,;=~")
    params = sorted(
        (key.removeprefix(_PARAM), each) for key, each in labels.items() if key.startswith(_PARAM)
    )
    query = f"?{urlencode(params)}" if params else ""
    url = f"{scheme}://{address}{path}{query}"
    try:
        parts = split_url(url)
    except InputError as error:
        raise InputError(f"target {address[:60]!r} {error}") from None
    _refuse_link_local(parts.hostname or "", f"target {address!r}")
    usual = path.endswith(spec.metrics_path)
    prefix = path.removesuffix(spec.metrics_path) if usual else path.rpartition("/")[0]
    name = f"{address.lower()}{prefix if usual else path}{query}"
    return Found(url, f"{scheme}://{address}{prefix}", name, origin, labels)


def _plain_labels(labels: Mapping[str, str], spec: EnginesSpec) -> Mapping[str, str]:
    """Return the labels without those that are too long or hold line breaks, as annotations may.

    Raises:
        InputError: one of them names the engine or is a part of its address.
    """
    odd = [name for name, value in labels.items() if not (is_plain(name) and is_plain(value))]
    for name in odd:
        if name in spec.identity_labels or name in _PARTS or name.startswith(_PARAM):
            shown = labels.get(ADDRESS, "").rpartition("@")[2][:60]
            raise InputError(
                f"target {shown!r} has a label {name[:60]!r} over {LONGEST_LABEL} characters or with control "
                "characters: shorten it in the source, or name engines by another"
            )
    return {name: value for name, value in labels.items() if name not in odd} if odd else labels


def _refuse_link_local(host: str, what: str) -> None:
    """Refuse addresses where clouds serve credentials of the machine, and no engine lives."""
    if is_link_local(host):
        raise InputError(f"{what} is link-local: name the engine by a routed address")


def engine_name(found: Found, identity: tuple[str, ...]) -> str:
    """Return the values of the identity labels joined, or the address where one is missing."""
    values = [found.labels.get(name, "") for name in identity]
    if identity and all(values):
        return "/".join(values)
    return found.name


def target_of(found: Found, engine: str, spec: EnginesSpec) -> Target:
    """Return an engine's target.

    Raises:
        InputError: the template gives no admin address for it, or one that may not be asked.
    """
    template = spec.admin_url_template
    admin_url = fill_template(template, found.base, found.labels) if template is not None else ""
    if admin_url:
        _refuse_link_local(split_url(admin_url).hostname or "", f"admin address {admin_url[:80]!r}")
    return plain_target(found, engine, spec, admin_url)


def plain_target(found: Found, engine: str, spec: EnginesSpec, admin_url: str = "") -> Target:
    """Return an engine's target with this admin address."""
    labels = tuple(sorted(pair for pair in found.labels.items() if not pair[0].startswith("__")))
    return Target(spec.pool, engine, found.url, admin_url, found.origin, labels)


def find_shared(rosters: Mapping[str, Roster]) -> tuple[Finding, ...]:
    """Report engines that two pools claim: their evidence counts twice, and two schedules would be pushed.

    Args:
        rosters: pool -> its engines.
    """
    owners: dict[object, tuple[str, str]] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    for pool, roster in rosters.items():
        for target in roster.targets:
            owner, _ = owners.setdefault(same_address(target.url), (pool, target.engine))
            if owner != pool:
                shared.setdefault((owner, pool), []).append(target.engine)
    return tuple(
        Finding(
            "engine_in_two_pools",
            "warning",
            f"pools {owner} and {pool} share {counted(len(engines), 'engine')} ({engines[0]}): narrow the "
            "discovery of one of them",
            {"pool": pool, "other_pool": owner},
            {"engines": engines[:10], "count": len(engines)},
        )
        for (owner, pool), engines in shared.items()
    )
