"""The drills, by number of the fault catalogue."""

from chaos.catalog import agents, canary, capacity, clients, issuer, limits, paths, routers, streams
from chaos.drill import Drill

_MODULES = (agents, canary, capacity, clients, issuer, limits, paths, routers, streams)
_ALL = [drill for module in _MODULES for drill in module.DRILLS]
DRILLS: dict[str, Drill] = {drill.id: drill for drill in sorted(_ALL, key=lambda drill: drill.id)}
