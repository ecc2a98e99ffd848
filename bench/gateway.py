"""`python -m bench.gateway --json FILE`: what extproc costs a request, beside Envoy alone and beside a server that only says
*continue*, in one interleaved run; then the microbenchmarks. Exit code 1 where a bar is missed.

Interleaved, because machines are noisy: every round measures all cells once, and a ratio is only ever taken between cells
of the same round. Everything runs on this machine: with few cores the parts share them, so compare only within a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from bench.child import ROOT, child_process
from bench.micro import measure_codec_us, measure_decision_us
from bench.probe import envoy_counter
from bench.queued import measure_queued_bytes
from bench.report import BODY_SIZES, NAMES, Cell, Measured, bars, document, tables
from bench.streams import measure_stream_us
from bench.upstream import upstream_config
from extproc.sim.stack import Stack, StackError, StackOptions, envoy_binary, free_port

POLICY = Path(__file__).with_name("policy.yaml")
CONNECTIONS = 32
LATENCY_SHARE = 0.4
"""Of a cell's time goes to one connection; the rest to `CONNECTIONS`."""


@asynccontextmanager
async def gateways() -> AsyncIterator[dict[str, Stack]]:
    """The three gateways, all running, before one upstream."""
    upstream, bare = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="extproc-bench-")))
        config = folder / "upstream.json"
        config.write_text(upstream_config(upstream, f"127.0.0.1:{free_port()}", folder), encoding="utf-8")
        flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
        await stack.enter_async_context(child_process("upstream", envoy_binary(), "-c", str(config), *flags))
        await stack.enter_async_context(child_process("bare", sys.executable, "-m", "bench.bare", bare))
        engines = (upstream,)
        policy = POLICY.read_text(encoding="utf-8")
        options = {
            "envoy": StackOptions(protected=False, engine_addresses=engines),
            "bare": StackOptions(service_address=bare, engine_addresses=engines),
            "extproc": StackOptions(policy=policy, engine_addresses=engines),
        }
        yield {name: await stack.enter_async_context(Stack(options[name])) for name in NAMES}


async def load(stack: Stack, *, connections: int, seconds: float, body_bytes: int) -> dict[str, float]:
    host, _, port = stack.gateway_address.partition(":")
    argv = (sys.executable, "-m", "bench.load", host, port, str(connections), str(seconds), str(body_bytes))
    process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise StackError(f"the load generator failed against {stack.gateway_url}")
    result: dict[str, float] = json.loads(output)
    return result


async def measure_paths(rounds: int, seconds: float) -> list[Cell]:
    cells = {(name, size): Cell(name, size) for size in BODY_SIZES for name in NAMES}
    async with gateways() as stacks:
        for _ in range(rounds):
            for (name, size), cell in cells.items():
                alone = await load(stacks[name], connections=1, seconds=LATENCY_SHARE * seconds, body_bytes=size)
                together = await load(
                    stacks[name], connections=CONNECTIONS, seconds=(1 - LATENCY_SHARE) * seconds, body_bytes=size
                )
                cell.p50_ms.append(alone["p50_ms"])
                cell.p99_ms.append(alone["p99_ms"])
                cell.rps.append(together["rps"])
                cell.failures += int(alone["failures"] + together["failures"])
        for name in ("bare", "extproc"):
            await _assert_nothing_slipped_by(stacks[name])
    return list(cells.values())


async def _assert_nothing_slipped_by(stack: Stack) -> None:
    """A request that Envoy let pass without us would be a fast one that measures nothing."""
    async with aiohttp.ClientSession() as http:
        slipped = await envoy_counter(http, stack, "failure_mode_allowed")
    if slipped:
        raise StackError(f"Envoy let {slipped} requests pass without asking: this run measures nothing")


async def run(options: argparse.Namespace) -> int:
    policy = POLICY.read_text(encoding="utf-8")
    measured = Measured(
        cells=await measure_paths(options.rounds, options.seconds),
        codec_us=measure_codec_us(),
        decision_us=await measure_decision_us(policy),
        stream_us=await measure_stream_us(policy),
        queued=await measure_queued_bytes(options.queued),
    )
    if options.json is not None:
        options.json.write_text(json.dumps(document(measured), indent=1) + "\n", encoding="utf-8")
    print(tables(measured))  # noqa: T201 - a command's output
    return 0 if all(bar.met for bar in bars(measured)) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--rounds", type=int, default=10, help="rounds over all cells (10: about three minutes)")
    parser.add_argument("--seconds", type=float, default=1.2, help="per cell and round")
    parser.add_argument("--queued", type=int, default=10_000, help="requests in the queue when memory is measured")
    try:
        return asyncio.run(run(parser.parse_args()))
    except StackError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
