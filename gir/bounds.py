"""What the data port accepts, as the policy says; it follows each new policy."""

import msgspec

from gir.model.policy import PolicySnapshot
from gir.net.limits import ServerLimits


def server_limits(policy: PolicySnapshot) -> ServerLimits:
    """Bounds of the data port under `policy`; what it does not name keeps the server's own defaults."""
    return msgspec.structs.replace(
        ServerLimits(),
        body_bytes_max=policy.forward.body_bytes_max,
        bodies_bytes_max=policy.flow.bodies_bytes_max,
        in_flight_max=policy.flow.in_flight_max,
    )
