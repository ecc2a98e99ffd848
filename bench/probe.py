"""What the parts under measurement say of themselves: memory, Envoy's counters, the service's state."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import aiohttp

from extproc.sim.stack import Stack, StackError


def rss_bytes(pid: int) -> int:
    """Memory that a process holds now (Linux)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def envoy_counter(http: aiohttp.ClientSession, stack: Stack, name: str) -> int:
    """The sum of all counters whose name ends in `name`. Raises `StackError` where there is none: its silence proves nothing."""
    async with http.get(f"{stack.envoy_admin_url}/stats", params={"filter": f"{name}$"}) as response:
        values = re.findall(r": (\d+)$", await response.text(), re.MULTILINE)
    if not values:
        raise StackError(f"this Envoy has no counter {name}")
    return sum(int(value) for value in values)


async def service_state(http: aiohttp.ClientSession, admin_url: str) -> Any:
    """The `/state` document."""
    async with http.get(f"{admin_url}/state") as response:
        return await response.json()


def holds(state: Any) -> dict[str, float]:
    """Over all pools: `in_use`, `ghosts` in slots, `waiting` in requests; and `streams` open."""
    pools = state["pools"]
    classes = [one for pool in pools for one in pool["priorities"].values()]
    return {
        "in_use": sum(one["in_use"]["slots"] for one in classes),
        "waiting": sum(one["waiting"] for one in classes),
        "ghosts": sum(pool["ghosts"]["slots"] for pool in pools),
        "streams": state["wire"]["streams"],
    }
