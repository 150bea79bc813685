"""Names that must not be mixed up. Each is a plain string on the wire."""

from typing import NewType

RegionId = NewType("RegionId", str)
ClusterId = NewType("ClusterId", str)
PodId = NewType("PodId", str)
ModelId = NewType("ModelId", str)
"""A base model or an adapter (LoRA): whatever a client may put into `model`."""
TenantId = NewType("TenantId", str)
TierName = NewType("TierName", str)
RequestId = NewType("RequestId", str)
