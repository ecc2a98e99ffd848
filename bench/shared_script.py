"""What one ask costs in the server: with 64 replicas' entries and 8 wants, beside a PING."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from redis import Redis

from extproc.account import Report
from extproc.model import Hold, Load, PoolState, Priority
from extproc.ports import Want
from extproc.state.scripts import Script, keys_of, pack_report, pack_state
from tests.support import valkey

REPLICAS = 64
WANTS = 8
ROUNDS = 2000


async def script_times() -> dict[str, float]:
    """Microseconds in the server, by its own count."""
    with (
        tempfile.TemporaryDirectory(prefix="extproc-script-") as folder,
        valkey.running(Path(folder)) as server,
        server.client() as client,
    ):
        return _measure(client)


def _measure(client: Redis) -> dict[str, float]:
    ask, keys = Script("ask"), keys_of("bench", "main")
    limit = Load(1e9, 1e9)
    packed, fingerprint = pack_state(PoolState(limits=(limit, limit, limit)))
    client.hset(keys.facts, mapping={"state": packed, "fingerprint": fingerprint, "generation": "1"})
    client.script_load(ask.text)
    wants = [Want(Priority(i % 3), Load(100, 1), 0.1) for i in range(WANTS)]
    in_use = (Load(1000, 10), Load(1000, 10), Load(1000, 10))

    def call(i: int) -> None:
        report = Report(
            f"replica-{i % REPLICAS}", 1 + i // REPLICAS, in_use, hold=Hold(3.0), wants=sorted(wants, key=_rank)
        )
        arguments = ("", report.replica, pack_report(report), keys.channel, "", fingerprint, "")
        client.evalsha(ask.sha, 3, keys.replicas, keys.facts, keys.demand, *arguments)

    for i in range(2 * REPLICAS):
        call(i)
    client.config_resetstat()
    for i in range(2 * REPLICAS, 2 * REPLICAS + ROUNDS):
        call(i)
        client.ping()
    stats: Any = client.info("commandstats")
    ask_us, ping_us = (float(stats[name]["usec_per_call"]) for name in ("cmdstat_evalsha", "cmdstat_ping"))
    return {"ask_us": ask_us, "ping_us": ping_us, "ratio": round(ask_us / max(ping_us, 0.01), 1)}


def _rank(want: Want) -> int:
    return want.priority
