"""Operators' orders in this process: they end with it, and no other router hears of them."""

from gir.control.orders import Kept


class MemoryOrders:
    """Implements `gir.control.orders.OrderStore` without leaving the process."""

    kind = "memory"
    place = "this process"

    def __init__(self) -> None:
        self._kept = Kept()

    async def read(self) -> Kept:
        return self._kept

    async def replace(self, over: int, kept: Kept) -> bool:
        if self._kept.version != over:
            return False
        self._kept = kept
        return True

    async def close(self) -> None:
        """Nothing is held."""
