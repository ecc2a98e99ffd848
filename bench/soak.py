"""`python -m bench.soak`: 100,000 requests through Envoy, one in ten of whose clients leaves early. Nothing may remain of them:
no hold, no place in a queue, no ghost load, no memory, no error in a log. Exit code 1 where a bar is missed.

Eight times as many clients as the limit lets in, so that most of them wait in the queue at any moment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
import msgspec

from bench.child import child_process
from bench.client import Leaving, call
from bench.probe import envoy_counter, holds, rss_bytes, service_state
from bench.requests import chat_body, http_request
from extproc.clock import monotonic
from extproc.sim.processes import raise_file_limit
from extproc.sim.stack import Stack, StackError, StackOptions, free_port

CLIENTS = 64
LIMIT = 8
STREAM_S = 0.01
BODY_BYTES = 1024
ABORT_SHARE = 0.1
LEAST_PER_KIND = 0.01
"""Of the requests, for each way to leave: else the run has not tried it."""
SETTLE_SHARE = 0.2
"""Of the requests come before memory is first looked at: what caches and allocators take once is no leak."""
MOST_GROWTH = 0.05
RSS_READINGS = 5
LONGEST_S = 345.0
QUIET_WITHIN_S = 20.0
"""After the last request: ghost load decays, and grpc takes its time to drop calls."""
POLICY = f"""
queues:
  - {{priority: P0, name: zero, maxQueueSize: 500, timeout: 30s}}
  - {{priority: P1, name: one, maxQueueSize: 500, timeout: 30s, dropPolicy: tail}}
  - {{priority: P2, name: two, maxQueueSize: 500, timeout: 30s, dropPolicy: tail}}
pools:
  - {{name: main, engines: {{static: []}}, controllers: [fixed], fixed: {{limit: {{requests: {LIMIT}}}}}}}
trust: {{headers: [x-tenant-id]}}
"""
_LEAVE = [leaving for leaving in Leaving if leaving is not Leaving.NEVER]
_ERROR_LINE = re.compile(r"\[(error|critical)|^Traceback|\"level\": ?\"(error|critical)\"", re.IGNORECASE)


@dataclass(slots=True)
class Soak:
    """What was seen. `growth`: resident memory of the service at the end over that after the settling, less 1."""

    requests: int = 0
    seconds: float = 0.0
    fates: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    rss_settled: int = 0
    rss_end: int = 0
    rss_by_tenth: list[int] = field(default_factory=list)
    remaining: dict[str, float] = field(default_factory=dict)
    decided: Counter[str] = field(default_factory=Counter)
    slipped_by: int = 0
    error_lines: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        return self.rss_end / self.rss_settled - 1

    def bars(self) -> dict[str, bool]:
        """Sentence -> whether it holds."""
        stayed = self.requests - sum(self.left.values())
        return {
            f"every client that stayed got its whole answer ({self.fates['200']} of {stayed})": self.fates["200"]
            == stayed,
            f"clients left in each way ({', '.join(f'{count} {way}' for way, count in sorted(self.left.items()))})": all(
                self.left[way] >= LEAST_PER_KIND * self.requests for way in _LEAVE
            ),
            f"the service saw {self.decided['client-gone']} leave before its verdict": self.decided["client-gone"]
            >= LEAST_PER_KIND * self.requests,
            f"memory grew by {self.growth:.1%} (below {MOST_GROWTH:.0%})": self.growth < MOST_GROWTH,
            f"nothing remains ({self.remaining})": not any(self.remaining.values()),
            f"Envoy let {self.slipped_by} requests pass without asking (0)": self.slipped_by == 0,
            f"{len(self.error_lines)} error lines in the logs (0)": not self.error_lines,
        }

    def document(self) -> dict[str, object]:
        """What is written as JSON."""
        seen: dict[str, object] = msgspec.to_builtins(self)
        return {**seen, "growth": self.growth, "bars": self.bars()}


async def soak(requests: int, seed: int) -> Soak:
    seen = Soak(requests=requests)
    engine = f"127.0.0.1:{free_port()}"
    host, port = engine.split(":")
    options = StackOptions(policy=POLICY, engine_addresses=(engine,), serve_args=("--log-format", "json"))
    async with (
        child_process("engine", sys.executable, "-m", "bench.engine", host, port, str(STREAM_S)),
        Stack(options) as stack,
        aiohttp.ClientSession() as http,
    ):
        start = monotonic()
        await stack.while_alive(_send_all(stack, seen, Random(seed)))
        seen.seconds = monotonic() - start
        await _until_quiet(http, stack, seen)
        seen.rss_end = await _rss(stack)
        seen.slipped_by = await envoy_counter(http, stack, "failure_mode_allowed")
        seen.error_lines = [line for name in ("extproc", "envoy") for line in _errors(stack.children[name].log)]
    return seen


async def _send_all(stack: Stack, seen: Soak, random: Random) -> None:
    host, _, port = stack.gateway_address.partition(":")
    request = http_request(chat_body(BODY_BYTES), close=True)
    numbers = iter(range(seen.requests))

    async def client() -> None:
        for number in numbers:
            if number == round(SETTLE_SHARE * seen.requests):
                seen.rss_settled = await _rss(stack)
            if number % (seen.requests // 10) == 0:
                seen.rss_by_tenth.append(rss_bytes(stack.children["extproc"].pid))
            leaving = random.choice(_LEAVE) if random.random() < ABORT_SHARE else Leaving.NEVER
            seen.fates[await call(host, int(port), request, leaving)] += 1
            if leaving is not Leaving.NEVER:
                seen.left[leaving] += 1

    async with asyncio.timeout(LONGEST_S), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())


async def _rss(stack: Stack) -> int:
    """The median of a few looks: a garbage collection must not decide."""
    readings = []
    for _ in range(RSS_READINGS):
        readings.append(rss_bytes(stack.children["extproc"].pid))
        await asyncio.sleep(0.1)
    return round(statistics.median(readings))


async def _until_quiet(http: aiohttp.ClientSession, stack: Stack, seen: Soak) -> None:
    deadline = monotonic() + QUIET_WITHIN_S
    while monotonic() < deadline:
        state = await service_state(http, stack.admin_url)
        seen.remaining = holds(state)
        if not any(seen.remaining.values()):
            break
        await asyncio.sleep(0.1)
    for one in state["pools"][0]["priorities"].values():
        seen.decided.update(one["requests"])


def _errors(log: Path) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"{log.stem}: {line}" for line in lines if _ERROR_LINE.search(line)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1, help="of who leaves and how")
    options = parser.parse_args()
    raise_file_limit()
    try:
        seen = asyncio.run(soak(options.requests, options.seed))
    except (StackError, TimeoutError) as error:
        print(error or f"not done within {LONGEST_S:.0f} s", file=sys.stderr)  # noqa: T201
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(seen.document(), indent=1) + "\n", encoding="utf-8")
    print(f"{seen.requests} requests in {seen.seconds:.0f} s: {dict(seen.fates)}; decided: {dict(seen.decided)}")  # noqa: T201
    print("RSS by tenth, MB:", *(f"{rss / 1e6:.1f}" for rss in [*seen.rss_by_tenth, seen.rss_end]))  # noqa: T201
    for line in seen.error_lines[:10]:
        print(" ", line)  # noqa: T201
    for text, met in seen.bars().items():
        print("ok    " if met else "MISSED", text)  # noqa: T201
    return 0 if all(seen.bars().values()) else 1


if __name__ == "__main__":
    sys.exit(main())
