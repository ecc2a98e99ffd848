"""Awaiting what another process does: it has no event to wait for, so its effect is looked at often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Returns as soon as `condition()` holds; TimeoutError after `within_s` seconds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)
