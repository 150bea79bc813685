"""The drills, by number of the fault catalogue."""

from chaos.catalog import agents, streams
from chaos.drill import Drill

DRILLS: dict[str, Drill] = {drill.id: drill for drill in (*agents.DRILLS, *streams.DRILLS)}
