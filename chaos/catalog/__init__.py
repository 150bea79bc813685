"""The drills, by number of the fault catalogue."""

from chaos.catalog import agents, capacity, paths, streams
from chaos.drill import Drill

_ALL = (*agents.DRILLS, *paths.DRILLS, *capacity.DRILLS, *streams.DRILLS)
DRILLS: dict[str, Drill] = {drill.id: drill for drill in sorted(_ALL, key=lambda drill: drill.id)}
