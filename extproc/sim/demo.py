"""`extproc demo`: the same overload twice on this machine, without and with protection, and what its users saw.

Two engines, Envoy, and in the second run the service: real processes (`stack.py`), open-loop load (`load.py`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from extproc.sim.load import Observation, Target, offer
from extproc.sim.processes import raise_file_limit
from extproc.sim.progress import RunProgress
from extproc.sim.report import PROTECTED, RUNS, UNPROTECTED, late_message, table, to_json, verdict
from extproc.sim.results import DemoResult, RunResult, percentile, summarise
from extproc.sim.sizing import CAPACITY_TOKENS_PER_S, ENGINE_ARGS, ENGINES, RATE_PER_S, offered_tokens_per_s
from extproc.sim.stack import Stack, StackError, StackOptions
from extproc.sim.watch import EngineWatch, saturated_tokens_per_s, summarise_readings
from extproc.sim.workload import Intended, WorkloadSpec, intended_requests

DEMO_POLICY_FILE = Path(__file__).with_name("demo_policy.yaml")
"""The policy of the protected run, for its readers too."""
SETTLE_S = 2.0
"""The first seconds, in which caches fill and nothing is steady, say nothing of capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`seconds`: the window in which requests arrive, per run; `json`: where the numbers go; `keep`: leave it running."""

    seconds: float = 20.0
    seed: int = 1
    json: Path | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    observations: Sequence[Observation]
    result: RunResult
    capacity_tokens_per_s: float | None
    """Output tokens of all engines per second while they were saturated; None where they hardly were."""


async def run_demo(options: DemoOptions, console: Console) -> int:
    """Runs it all; 0 when the numbers stand, 1 when the generator ran late or the stack failed."""
    if options.json is not None and (trouble := _cannot_write(options.json)):
        console.print(trouble, style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    raise_file_limit()
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)  # so that every child is ended in order
    try:
        return await _both_runs(options, console)
    except StackError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _cannot_write(file: Path) -> str:
    """Asked before the minute of measuring, not after it."""
    try:
        file.open("ab").close()
    except OSError as error:
        return f"the numbers cannot be written: {error}"
    return ""


async def _both_runs(options: DemoOptions, console: Console) -> int:
    spec = WorkloadSpec(rate_per_s=RATE_PER_S, seconds=options.seconds, seed=options.seed)
    requests = intended_requests(spec)
    console.print(
        f"{ENGINES} engines behind Envoy; {len(requests)} requests in {spec.seconds:g} s, the same in both runs: first "
        "without extproc and without the low circuit breaker that stands in for it, then with both as shipped.\n"
        f"Policy: {DEMO_POLICY_FILE}",
        markup=False,
        highlight=False,
    )
    async with Stack(_stack_options(protected=False)) as stack:
        before = await _run(UNPROTECTED, stack, requests, spec=spec, console=console)
    async with Stack(_stack_options(protected=True)) as stack:
        after = await _run(PROTECTED, stack, requests, spec=spec, console=console)
        result = _demo_result((before, after), requests, spec.seconds)
        code = _report(result, options, console)
        if options.keep:
            await _keep(stack, console)
    return code


def _stack_options(*, protected: bool) -> StackOptions:
    policy = DEMO_POLICY_FILE.read_text(encoding="utf-8")
    return StackOptions(policy=policy, protected=protected, engines=ENGINES, engine_args=ENGINE_ARGS)


async def _run(name: str, stack: Stack, requests: Sequence[Intended], *, spec: WorkloadSpec, console: Console) -> _Run:
    host, _, port = stack.gateway_address.partition(":")
    target = Target(host, int(port))
    loop = asyncio.get_running_loop()
    with RunProgress(name, requests, console) as progress:
        async with EngineWatch(stack.engine_urls) as watch:
            start = loop.time()
            observations = await stack.while_alive(offer(requests, target, ended=progress.ended))
    readings = summarise_readings(watch.readings, start, start + spec.seconds)
    return _Run(
        observations,
        summarise(observations, readings, seconds=spec.seconds),
        # Until the first clients leave: then work is cut off halfway, and less of it is output.
        saturated_tokens_per_s(watch.readings, start + SETTLE_S, start + target.patience_s),
    )


def _demo_result(runs: tuple[_Run, _Run], requests: Sequence[Intended], seconds: float) -> DemoResult:
    """The offered ratio: output tokens asked for per second / output tokens per second that the saturated engines made,
    in the run in which they made more; by the engine model where a short window left none saturated for long."""
    lateness = [seen.late_s for run in runs for seen in run.observations]
    measured = [run.capacity_tokens_per_s for run in runs if run.capacity_tokens_per_s is not None]
    capacity = max(measured, default=CAPACITY_TOKENS_PER_S)
    return DemoResult(
        offered_ratio=round(offered_tokens_per_s(requests, seconds) / capacity, 3),
        seconds=seconds,
        sent_late_p99_s=round(percentile(lateness, 0.99) or 0.0, 4),
        runs=dict(zip(RUNS, (run.result for run in runs), strict=True)),
    )


def _report(result: DemoResult, options: DemoOptions, console: Console) -> int:
    if options.json is not None:
        options.json.write_bytes(to_json(result))
    console.print()
    console.print(table(result))
    late = late_message(result)
    console.print(late or verdict(result), style="red" if late else "bold", highlight=False, soft_wrap=True)
    return 1 if late else 0


async def _keep(stack: Stack, console: Console) -> None:
    """Leaves the protected stack up until Ctrl-C, or until a part of it dies."""
    lines = (
        f"\nThe protected stack keeps running until Ctrl-C. Policy: {stack.policy_file}",
        f"  gateway  {stack.gateway_url}/v1/chat/completions",
        f"  service  {stack.admin_url}/  (/state, /metrics)",
        f"  Envoy    {stack.envoy_admin_url}/",
        *(f"  engine   {url}/metrics" for url in stack.engine_urls),
        f"\n  curl -N {stack.gateway_url}/v1/chat/completions -H 'content-type: application/json' -H 'x-priority: P0' \\",
        """    -d '{"model": "llama-3-8b", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'""",
    )
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        await stack.while_alive(stop.wait())
    finally:
        loop.remove_signal_handler(signal.SIGINT)
