"""From what was measured to the JSON document, the tables and the bars. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.queued import QueuedBytes

BODY_SIZES = (0, 2048, 131_072)
"""0: headers only."""
NAMES = ("envoy", "bare", "extproc")
LEAST_SHARE_OF_BARE = 0.75
MOST_CODEC_US = 10.0
MOST_DECISION_US = 60.0
MOST_QUEUED_BYTES = 20_000


@dataclass(slots=True)
class Cell:
    """One path and body size: a value per round. Latencies at one connection, requests/s at many."""

    name: str
    body_bytes: int
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    rps: list[float] = field(default_factory=list)
    failures: int = 0
    """Answers other than 200."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`codec_us`: per kind of message, to read it and to have the reply; `decision_us`: p50 per body size; `stream_us`: all of a
    request in Python but gRPC, of the bare server and of ours."""

    cells: Sequence[Cell]
    codec_us: Mapping[str, float]
    decision_us: Mapping[int, float]
    stream_us: Mapping[str, float]
    queued: QueuedBytes


@dataclass(frozen=True, slots=True)
class Bar:
    """One requirement; `text` says it with the value."""

    text: str
    met: bool


def shares_of_bare(cells: Sequence[Cell]) -> dict[int, list[float]]:
    """Requests/s of extproc over those of the bare server, per body size and round."""
    rps = {(cell.name, cell.body_bytes): cell.rps for cell in cells}
    return {
        size: [ours / bare for ours, bare in zip(rps["extproc", size], rps["bare", size], strict=True)]
        for size in BODY_SIZES
    }


def bars(measured: Measured) -> list[Bar]:
    """All that must hold; the median over the rounds is what counts."""
    found = [
        Bar(
            f"requests/s, {_size(size)}: {statistics.median(shares):.0%} of bare (at least {LEAST_SHARE_OF_BARE:.0%})",
            statistics.median(shares) >= LEAST_SHARE_OF_BARE,
        )
        for size, shares in shares_of_bare(measured.cells).items()
    ]
    codec, decision = _codec(measured), _decision(measured)
    queued = measured.queued.python
    failures = sum(cell.failures for cell in measured.cells)
    return [
        *found,
        Bar(f"codec: {codec:.1f} us per message (at most {MOST_CODEC_US:.0f})", codec <= MOST_CODEC_US),
        Bar(f"decision: {decision:.0f} us p50 (at most {MOST_DECISION_US:.0f})", decision <= MOST_DECISION_US),
        Bar(
            f"memory: {queued / 1000:.1f} KB of Python objects per queued request (at most 20)",
            queued <= MOST_QUEUED_BYTES,
        ),
        Bar(f"answers other than 200: {failures} (none)", failures == 0),
    ]


def document(measured: Measured) -> dict[str, object]:
    """Medians over the rounds; `rps_spread` is the lowest and the highest round."""
    return {
        "paths": [
            {
                "name": cell.name,
                "mode": "body" if cell.body_bytes else "headers",
                "body_bytes": cell.body_bytes,
                "p50_ms": statistics.median(cell.p50_ms),
                "p99_ms": statistics.median(cell.p99_ms),
                "rps": statistics.median(cell.rps),
                "rps_spread": [min(cell.rps), max(cell.rps)],
            }
            for cell in measured.cells
        ],
        "codec_us": _codec(measured),
        "decision_us_p50": _decision(measured),
        "queued_request_bytes": measured.queued.python,
        "detail": {
            "share_of_bare": {str(size): shares for size, shares in shares_of_bare(measured.cells).items()},
            "codec_us": dict(measured.codec_us),
            "stream_us": dict(measured.stream_us),
            "queued_request_rss_bytes": measured.queued.resident,
            "decision_us_p50": {str(size): value for size, value in measured.decision_us.items()},
        },
        "bars": [{"text": bar.text, "met": bar.met} for bar in bars(measured)],
    }


def tables(measured: Measured) -> str:
    """Markdown, ready for the README."""
    lines = ["| | path | p50, 1 connection | p99 | requests/s, 32 connections | of bare |", "|---|---|---|---|---|---|"]
    shares = shares_of_bare(measured.cells)
    for cell in measured.cells:
        share = ""
        if cell.name == "extproc":
            of_bare = shares[cell.body_bytes]
            share = f"**{statistics.median(of_bare):.0%}** ({min(of_bare):.0%} to {max(of_bare):.0%})"
        lines.append(
            f"| {_size(cell.body_bytes)} | {cell.name} | {statistics.median(cell.p50_ms):.2f} ms "
            f"| {statistics.median(cell.p99_ms):.2f} ms | {statistics.median(cell.rps):.0f} "
            f"({min(cell.rps):.0f} to {max(cell.rps):.0f}) | {share} |"
        )
    lines.append("")
    lines += [f"codec, {kind}: {value:.1f} us" for kind, value in measured.codec_us.items()]
    lines += [f"decision, {_size(size)}: {value:.0f} us p50" for size, value in measured.decision_us.items()]
    lines += [f"a request's stream without gRPC, {name}: {value:.0f} us" for name, value in measured.stream_us.items()]
    lines.append(f"queued request: {measured.queued.resident / 1000:.1f} KB resident, gRPC's C core included")
    lines += ["", *(f"{'ok    ' if bar.met else 'MISSED'} {bar.text}" for bar in bars(measured))]
    return "\n".join(lines)


def _codec(measured: Measured) -> float:
    """The mean over the messages of a request."""
    return statistics.mean(measured.codec_us.values())


def _decision(measured: Measured) -> float:
    """With a 2 KB body, which is the usual request."""
    return measured.decision_us[2048]


def _size(body_bytes: int) -> str:
    return f"{body_bytes // 1024} KB body" if body_bytes else "headers only"
