"""What an agent tells a router, after decoding and semantic validation (`gir.wire.beats`)."""

import enum
from collections.abc import Mapping

import msgspec

from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, RegionId, TierName


class Condition(enum.Enum):
    """What the agent says of its own willingness."""

    SERVING = "serving"
    DRAINING = "draining"
    WARMING = "warming"


class AgentHello(msgspec.Struct, frozen=True, kw_only=True):
    """Who opened the stream."""

    cluster: ClusterId
    region: RegionId
    zone: str = ""
    url: str
    tier: TierName
    price_per_slot_hour: float = 0.0
    epoch: int
    version: str = ""
    labels: Mapping[str, str] = {}


class BeatReport(msgspec.Struct, frozen=True, kw_only=True):
    """One beat: the whole state of a cluster at the agent's moment `seq` of its boot `epoch`."""

    cluster: ClusterId
    epoch: int
    seq: int
    pools: tuple[PoolState, ...] = ()
    condition: Condition = Condition.SERVING
    warnings: tuple[str, ...] = ()
