"""The demo's words: the table, the verdict, the JSON. Takes results, gives text; measures nothing."""

from __future__ import annotations

import msgspec
from rich.table import Table

from extproc.model import PRIORITIES
from extproc.sim.results import TPOT_TARGET_S, TTFT_TARGET_S, ClassResult, DemoResult, RunResult

UNPROTECTED = "unprotected"
PROTECTED = "protected"
RUNS = (UNPROTECTED, PROTECTED)
LATE_LIMIT_S = 0.050
"""A generator later than this at p99 measured itself; its numbers are not to be believed."""


def to_json(result: DemoResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def table(result: DemoResult) -> Table:
    """Unprotected beside protected: a block per priority, then the whole."""
    grid = Table(
        *("", "", *RUNS),
        title=f"{result.offered_ratio:.1f} x capacity for {result.seconds:g} s, the same requests twice",
        title_justify="left",
        caption=f"In target: a whole answer, its first token in time, at most {TPOT_TARGET_S * 1000:g} ms per token.",
        caption_justify="left",
    )
    for column in grid.columns[2:]:
        column.justify = "right"
    runs = [result.runs[name] for name in RUNS]
    for priority in PRIORITIES:
        classes = [run.classes[str(priority)] for run in runs]
        _add_rows(grid, str(priority), _class_rows(classes, TTFT_TARGET_S[priority]))
    _add_rows(grid, "all", _run_rows(runs))
    return grid


def _add_rows(grid: Table, block: str, rows: list[tuple[str, list[str]]]) -> None:
    for label, cells in rows:
        grid.add_row(block, label, *cells)
        block = ""
    grid.add_section()


def _class_rows(classes: list[ClassResult], ttft_target_s: float) -> list[tuple[str, list[str]]]:
    return [
        ("sent", [str(c.sent) for c in classes]),
        (f"in target (TTFT {ttft_target_s:g} s)", [_percent(c.within_target, c.sent) for c in classes]),
        ("rejected", [_percent(c.rejected, c.sent) for c in classes]),
        ("failed", [_percent(c.failed, c.sent) for c in classes]),
        ("TTFT p50 / p99", [f"{_seconds(c.ttft_p50_s)} / {_seconds(c.ttft_p99_s)}" for c in classes]),
    ]


def _run_rows(runs: list[RunResult]) -> list[tuple[str, list[str]]]:
    return [
        ("goodput (tokens/s)", [f"{run.goodput_tokens_per_s:.0f}" for run in runs]),
        ("preemptions", [str(run.preemptions) for run in runs]),
        ("KV usage mean / max", [f"{run.kv_usage_mean:.0%} / {run.kv_usage_max:.0%}" for run in runs]),
        ("Retry-After", [_waits(run) for run in runs]),
    ]


def _waits(run: RunResult) -> str:
    waits = run.retry_after_s
    if waits.min is None or waits.max is None:
        return "-"
    return f"{waits.min:.1f} to {waits.max:.1f} s"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def verdict(result: DemoResult) -> str:
    """One sentence, true whichever way it went."""
    before, after = (result.runs[name] for name in RUNS)
    p0_before, p0_after = (_percent(r.classes["P0"].within_target, r.classes["P0"].sent) for r in (before, after))
    gain = (
        f"{after.goodput_tokens_per_s / before.goodput_tokens_per_s:.1f} x the goodput"
        if before.goodput_tokens_per_s
        else f"a goodput of {after.goodput_tokens_per_s:.0f} tokens/s where there was none"
    )
    failed = sum(c.failed for c in after.classes.values())
    refused = sum(c.rejected for c in after.classes.values())
    losses = "nothing failed" if failed == 0 else f"{failed} requests FAILED"
    return (
        f"At {result.offered_ratio:.1f} x capacity extproc kept {p0_after} of P0 within target (without it: {p0_before}), "
        f"with {gain}; {losses}, and {refused} requests were refused with a Retry-After."
    )


def late_message(result: DemoResult) -> str:
    """Empty when the generator kept its times."""
    if result.sent_late_p99_s <= LATE_LIMIT_S:
        return ""
    return (
        f"The load generator itself ran late (p99 {result.sent_late_p99_s * 1000:.0f} ms, at most "
        f"{LATE_LIMIT_S * 1000:.0f} ms): this machine is too busy, and these numbers say nothing. Try again on an idle one."
    )
