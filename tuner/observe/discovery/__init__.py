"""Which engines a pool has: addresses from settings, files, an HTTP endpoint, a Prometheus server.

Discovery is trusted as Prometheus trusts it, within bounds: it may name HTTP and HTTPS addresses of hosts
(never link-local ones, where clouds keep credentials), nothing else, and no placeholder of it is run.
"""

from tuner.observe.discovery.directory import Directory
from tuner.observe.discovery.found import find_shared
from tuner.observe.discovery.spec import EnginesSpec, PrometheusTargets, Roster

__all__ = ["Directory", "EnginesSpec", "PrometheusTargets", "Roster", "find_shared"]
