"""The command line. Each command imports what it runs only when it runs; exit codes: 0, 1 (bad input), 2 (usage)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from extproc import __version__
from extproc.errors import ExtprocError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_REDIS_URL = (
    "Redis or Valkey that the replicas share limits by. Schemes: redis, rediss, unix, redis+sentinel, redis+cluster."
)
_WIDE = 160
"""Columns of tables that go into a file."""
_REDIS_PREFIX = "First part of every key: one per group of replicas."

app = typer.Typer(
    name="extproc",
    help="Overload protection for LLM inference behind Envoy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"extproc {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Overload protection for LLM inference behind Envoy."""


@app.command()
def serve(
    policy: Annotated[Path, typer.Option(envvar="EXTPROC_POLICY", help="Policy file (YAML or its ConfigMap).")],
    listen: Annotated[
        str, typer.Option(envvar="EXTPROC_LISTEN", help="Where Envoy calls: host:port or unix:PATH.")
    ] = "127.0.0.1:50051",
    admin_listen: Annotated[
        str, typer.Option(envvar="EXTPROC_ADMIN_LISTEN", help="Health, metrics and state: host:port.")
    ] = "127.0.0.1:8080",
    no_scrape: Annotated[
        bool, typer.Option("--no-scrape", envvar="EXTPROC_NO_SCRAPE", help="Do not read the engines' metrics.")
    ] = False,
    grace: Annotated[
        float,
        typer.Option(envvar="EXTPROC_GRACE", min=0, help="Seconds that running requests are followed on SIGTERM."),
    ] = 25.0,
    redis_url: Annotated[str | None, typer.Option(envvar="REDIS_URL", help=_REDIS_URL)] = None,
    redis_prefix: Annotated[str, typer.Option(envvar="EXTPROC_REDIS_PREFIX", help=_REDIS_PREFIX)] = "extproc",
    log_format: Annotated[str, typer.Option(envvar="EXTPROC_LOG_FORMAT", help="text or json.")] = "text",
    log_level: Annotated[str, typer.Option(envvar="EXTPROC_LOG_LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Answers Envoy: admits, queues or rejects each request."""
    from extproc.app import ServeOptions, serve_until_signalled
    from extproc.log import LogFormat, setup

    setup(_one_of(LogFormat, log_format, "--log-format"), level=_level(log_level))
    options = ServeOptions(
        policy_file=str(policy),
        listen=listen,
        admin_listen=admin_listen,
        scrape=not no_scrape,
        grace_s=grace,
        redis_url=redis_url or None,
        redis_prefix=redis_prefix,
    )
    _run(serve_until_signalled(options))


@app.command()
def scrape(
    policy: Annotated[Path, typer.Option(envvar="EXTPROC_POLICY", help="Policy file (YAML or its ConfigMap).")],
    redis_url: Annotated[str, typer.Option(envvar="REDIS_URL", help=_REDIS_URL)],
    redis_prefix: Annotated[str, typer.Option(envvar="EXTPROC_REDIS_PREFIX", help=_REDIS_PREFIX)] = "extproc",
    admin_listen: Annotated[
        str, typer.Option(envvar="EXTPROC_ADMIN_LISTEN", help="Health, metrics and state: host:port.")
    ] = "127.0.0.1:8080",
    log_format: Annotated[str, typer.Option(envvar="EXTPROC_LOG_FORMAT", help="text or json.")] = "text",
    log_level: Annotated[str, typer.Option(envvar="EXTPROC_LOG_LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Watches the engines and sets the limits for all replicas; answers no requests."""
    from extproc.app import ServeOptions, serve_until_signalled
    from extproc.log import LogFormat, setup

    setup(_one_of(LogFormat, log_format, "--log-format"), level=_level(log_level))
    options = ServeOptions(
        policy_file=str(policy),
        listen=None,
        admin_listen=admin_listen,
        grace_s=0.0,
        redis_url=redis_url,
        redis_prefix=redis_prefix,
    )
    _run(serve_until_signalled(options))


@app.command()
def check(files: Annotated[list[Path], typer.Argument(help="Policy files and Envoy configurations.")]) -> None:
    """Checks policies and Envoy configurations, together where both are given."""
    from extproc.check import check_files, render

    reports = check_files([str(file) for file in files])
    typer.echo(render(reports).encode("utf-8", "backslashreplace").decode(), nl=False)
    if any(report.errors for report in reports):
        raise typer.Exit(1)


@app.command()
def top(
    admin: Annotated[str, typer.Option(help="The service's admin port: URL or host:port.")] = "http://127.0.0.1:8080",
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
) -> None:
    """Shows a running service: limits, queues, refusals and engines, once a second."""
    from rich.console import Console

    from extproc.admin.top import top

    _run(top(admin, once=once, console=Console()))


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="Window in which requests arrive, per run.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of the load; the same for both runs.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the protected stack running.")] = False,
) -> None:
    """Runs the whole stack on this machine at three times its capacity, unprotected and protected."""
    from rich.console import Console

    from extproc.sim.demo import DemoOptions, run_demo

    options = DemoOptions(seconds=seconds, seed=seed, json=json_file, keep=keep)
    raise typer.Exit(_run(run_demo(options, Console())))


@app.command()
def simulate(
    scenario: Annotated[
        str, typer.Argument(help="all, sweep, a scenario's name or number; or fit, oracle, tune, ablate.")
    ],
    controller: Annotated[str, typer.Option(help="Names, separated by commas.")] = "fused",
    seeds: Annotated[str, typer.Option(help="A number or a range: 11-15.")] = "11",
    rho: Annotated[str, typer.Option(help="Offered loads in units of capacity, instead of the scenarios' own.")] = "",
    chunk: Annotated[str, typer.Option(help="The engines' prefill chunks, tokens.")] = "1024,4096",
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    oracle: Annotated[
        bool, typer.Option(help="Measure against what was possible on the same requests, not the table of capacities.")
    ] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw curves over load, or one scenario's seconds, here (PNG).")
    ] = None,
) -> None:
    """Runs the service against simulated engines and clients in virtual time, and compares controllers."""
    from rich.console import Console

    from extproc.sim.world.command import SimulateOptions, simulate

    options = SimulateOptions(
        scenario=scenario,
        controllers=controller.split(","),
        seeds=seeds,
        rhos=_numbers(rho, "--rho"),
        chunks=[round(one) for one in _numbers(chunk, "--chunk")],
        jobs=jobs or os.cpu_count() or 1,
        oracle=oracle,
        json=json_file,
        plot=plot,
    )
    try:
        simulate(options, Console() if sys.stdout.isatty() else Console(width=_WIDE))
    except ExtprocError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


@app.command()
def engine(
    listen: Annotated[str, typer.Option(help="host:port; port 0 takes a free one.")] = "127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Name of the model served.")] = "llama-3-8b",
    kv_tokens: Annotated[int, typer.Option(min=1, help="KV cache, tokens.")] = 400_000,
    block_size: Annotated[int, typer.Option(min=1, help="KV block, tokens.")] = 16,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 256,
    chunk: Annotated[int, typer.Option(min=1, help="Token budget of a step (chunked prefill).")] = 1024,
    speed: Annotated[float, typer.Option(min=0.001, help="2: twice as fast as the default card.")] = 1.0,
    scheduling: Annotated[str, typer.Option(help="fcfs or priority.")] = "fcfs",
    max_num_queued_reqs: Annotated[int | None, typer.Option(help="The engine's own cap: above it 503.")] = None,
    seed: Annotated[int, typer.Option(help="Of the answers' lengths.")] = 0,
    output_median: Annotated[float, typer.Option(min=1, help="Median length of an answer, tokens.")] = 200.0,
    output_sigma: Annotated[float, typer.Option(min=0, help="Sigma of the logarithm of that length.")] = 0.7,
) -> None:
    """A fake engine for demos and tests: OpenAI's API, vLLM's metrics, continuous batching over a paged KV cache."""
    from extproc.log import setup
    from extproc.sim.engine_spec import Scheduling
    from extproc.sim.http_engine import EngineOptions, serve_engine

    setup()
    options = EngineOptions(
        listen=listen,
        model=model,
        kv_tokens=kv_tokens,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        chunk=chunk,
        speed=speed,
        scheduling=_one_of(Scheduling, scheduling, "--scheduling"),
        max_num_queued_reqs=max_num_queued_reqs,
        seed=seed,
        output_median=output_median,
        output_sigma=output_sigma,
    )

    async def until_signalled() -> None:
        stop = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stop.set)
        await serve_engine(options, ready=lambda url: typer.echo(f"listening on {url}", err=True), stop=stop)

    _run(until_signalled())


def _run(main: Coroutine[object, object, T]) -> T:
    """Runs to the end; an error of the operator's becomes one message and exit code 1."""
    try:
        return asyncio.run(main)
    except ExtprocError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",") if one]
    except ValueError:
        raise typer.BadParameter(f"expected numbers separated by commas, got {text!r}", param_hint=option) from None


def _one_of(choices: type[E], text: str, option: str) -> E:
    try:
        return choices(text)
    except ValueError:
        expected = ", ".join(choices)
        raise typer.BadParameter(f"expected one of {expected}, got {text!r}", param_hint=option) from None


def _level(text: str) -> str:
    levels = ("debug", "info", "warning", "error")
    if text.lower() not in levels:
        raise typer.BadParameter(f"expected one of {', '.join(levels)}, got {text!r}", param_hint="--log-level")
    return text.lower()
