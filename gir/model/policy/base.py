"""Common shape of every policy section: frozen, keyword-only, unknown keys refused."""

from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
LimitCount = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000)]
"""Of units in one window: what a store can count exactly in floating point, with room for sums."""
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections of a configuration file."""
