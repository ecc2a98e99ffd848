"""The controllers' sections of a pool's policy, one per law, and the limits that they speak of.

How a controller goes by its section is in `extproc.controllers`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import field

from extproc.config.section import Seconds, Section


class ControllerName(StrEnum):
    FIXED = "fixed"
    WATERMARK = "watermark"
    VEGAS = "vegas"
    PID = "pid"
    FUSED = "fused"


class LatencySignal(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"


class ShedOrder(StrEnum):
    LOWEST_FIRST = "lowest-first"
    UNIFORM = "uniform"


class LimitPolicy(Section, frozen=True):
    """A limit for the pool, in requests (sequence slots), in tokens, or both: the tighter binds."""

    requests: int | None = None
    """Requests that may run at once, at least 1. Default: not limited."""
    tokens: int | None = None
    """KV tokens that the estimated costs of running requests may add up to, at least 1. Default: not limited."""


class FixedPolicy(Section, frozen=True):
    """Controller `fixed`: a limit that does not move by itself."""

    limit: LimitPolicy | Literal["auto"] = "auto"
    """Default auto: `theta` x the KV tokens that the reporting engines hold."""
    sequences_per_engine: int = 256
    """With `limit: auto`, requests at a time per reporting engine: its `--max-num-seqs`. Default 256, as vLLM's."""
    theta: float = 0.80
    """Share of the KV tokens that estimated costs may fill with `limit: auto`. 0..1, default 0.80."""


class WatermarkPolicy(Section, frozen=True):
    """Controller `watermark`: rejection from KV usage."""

    high: float = 0.80
    """Mean KV usage above which newcomers are refused. 0..1, default 0.80. Also where drop policies begin to act."""
    panic: float = 0.92
    """Mean KV usage from which all are refused. Above high, to 1, default 0.92."""
    max_waiting_per_engine: int = 20
    """More requests waiting inside the engines than this x engines: all are refused. Default 20."""
    shed: ShedOrder = ShedOrder.LOWEST_FIRST
    """Who bears the rejection rate: `lowest-first` (the same share of all traffic, taken from P2 first) or `uniform`.
    Default lowest-first."""


class VegasPolicy(Section, frozen=True):
    """Controller `vegas`: requests at once, from latency."""

    min_limit: int = 10
    """Requests at once where it starts, and below which it never goes. At least 1, default 10."""
    max_limit: int = 1000
    """Requests at once above which it never goes. At least minLimit, default 1000."""
    alpha: float = 0.1
    """Delay over the least latency seen, as a share of that, up to which the limit grows by 1. Above 0, default 0.1."""
    beta: float = 0.2
    """Above alpha x (1 + beta) the limit shrinks; between the two it stays. At least 0, default 0.2."""
    smoothing: float = 0.8
    """Weight of the past in the moving mean of latencies; the newest has the rest. 0 to 0.99, default 0.8."""
    decrease: float = 0.8
    """What the limit is multiplied by when it shrinks. 0.1 to 0.99, default 0.8."""
    signals: tuple[LatencySignal, ...] = (LatencySignal.TTFT, LatencySignal.TPOT)
    """Latencies to go by, each with a limit of its own, of which the tighter holds: `ttft` (to the first token, which
    grows with the prompt's length too), `tpot` (per token after it). Default [ttft, tpot]."""


class PidPolicy(Section, frozen=True):
    """Controller `pid`: tokens in flight and admission probability, steered to a KV usage."""

    setpoint: float = 0.86
    """Mean KV usage to hold. Between watermark.high and watermark.panic, default 0.86."""
    kp: float = 1.0
    """Change of usage per second wanted for each unit of distance from the setpoint, 1/s. 0 to 100, default 1."""
    ki: float = 0.3
    """By how much that grows for each second at such a distance, 1/s^2. 0 to 100, default 0.3. 0: offsets stay."""
    kd: float = 0.0
    """Weight of the speed of the distance's change, without unit. 0 to 100, default 0: usage is too noisy for it."""
    min_share: float = 0.1
    """Least tokens in flight, as a share of the KV tokens that the engines hold. Above 0, to 10, default 0.1."""
    max_share: float = 2.0
    """Most tokens in flight, as such a share; a request is counted at its full length from the start, so 1 is less than
    it seems. At least minShare, to 10, default 2."""
    shed: ShedOrder = ShedOrder.LOWEST_FIRST
    """Who bears the rejection rate: `lowest-first` or `uniform`. Default lowest-first."""


class FusedPolicy(Section, frozen=True):
    """Controller `fused`: KV tokens, sequences and a pace of prompts, corrected by what the engines show. Where it is in
    charge, a full pool is no pressure, since that is what it aims at: drop policies act while somebody waits all the time."""

    theta: float = 0.94
    """Share of its KV tokens that the fullest engine is filled to. Above 0, to 1, default 0.94."""
    headroom: float = 0.04
    """Share of the limit that P1 and P2 leave to P0. 0 to 0.5, default 0.04."""
    sequences_per_engine: int = 256
    """Requests at a time per reporting engine: its `--max-num-seqs`. Default 256, as vLLM's."""
    tpot_share: float = 0.9
    """Engine steps are held to this share of the least `targets.tpot`, in the mean: some answers meet longer ones. Above 0,
    to 1, default 0.9."""
    backlog_s: Seconds = field(name="backlog", default=Seconds(0.2))
    """Prompts that may wait in the engines, in seconds of their work: the longer, the fuller the engines and the later the
    first tokens. Default 200ms."""
    refuse_late: bool = True
    """A request whose first token would come after the `targets.ttft` stated for its priority does not wait any longer, and is
    refused. False: it is served late. Default true."""
