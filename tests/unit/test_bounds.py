"""What the data port accepts is the policy's to say, and follows it."""

from gir.bounds import server_limits
from gir.model.policy import FlowPolicy, ForwardPolicy, PolicySnapshot
from gir.net.limits import ServerLimits


def test_the_bounds_are_those_of_the_policy() -> None:
    policy = PolicySnapshot(
        forward=ForwardPolicy(body_bytes_max=1_000), flow=FlowPolicy(bodies_bytes_max=5_000, in_flight_max=7)
    )
    bounds = server_limits(policy)
    assert (bounds.body_bytes_max, bounds.bodies_bytes_max, bounds.in_flight_max) == (1_000, 5_000, 7)
    assert bounds.header_bytes_max == ServerLimits().header_bytes_max
