"""Recorded workloads through whole fleets in virtual time: the pure cores of both tiers over simulated engines."""
