"""The Lua scripts and what goes through them: packing a report, reading an answer. No I/O but reading the shipped files.

Both ways are msgpack in plain strings, so that RESP2 and RESP3, redis and valkey look the same from here. Lua's msgpack
knows no binary type: what is not text travels beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from extproc.account import Report
from extproc.errors import StateUnavailable
from extproc.files import shipped
from extproc.model import Load, Pace, PoolState
from extproc.quota import Due

SCHEMA = 4
"""Version of the keys' content; part of their names, so that two versions never read each other's."""


class Script:
    """One Lua file. `sha`: what EVALSHA wants."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = shipped(f"redis/{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Keys:
    """A pool's keys, all of one hash slot, and the channel of its wakes."""

    replicas: str
    facts: str
    demand: str
    channel: str


def keys_of(prefix: str, pool: str) -> Keys:
    tag = f"{{{prefix}:{pool}}}:{SCHEMA}"
    return Keys(f"{tag}:replicas", f"{tag}:pool", f"{tag}:demand", f"{tag}:wake")


def quota_keys(prefix: str, tenant: str, replica: str) -> tuple[str, str]:
    """A tenant's quota, and the number of a replica's last call about it; of one hash slot, which is not the pools'."""
    tag = f"{{{prefix}:q:{tenant}}}:{SCHEMA}"
    return f"{tag}:whole", f"{tag}:told:{replica}"


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What ask.lua returns; see its header."""

    accepted: int
    admitted: int
    total_tokens: float
    total_slots: float
    again_s: float
    replicas: int
    lead_s: float
    now: float
    fingerprint: str
    differing: int

    @property
    def total(self) -> Load:
        return Load(self.total_tokens, self.total_slots)


@dataclass(frozen=True, slots=True)
class Reign:
    """What publish.lua returns. `counters`: each replica's, with their age in seconds. `found`: the state that was in force
    when the lead was taken; empty otherwise."""

    led: bool
    token: int
    lead_s: float
    counters: Mapping[str, tuple[float, str]]
    found: bytes


_encode = msgspec.msgpack.Encoder().encode
_answer = msgspec.msgpack.Decoder(Answer, strict=False).decode
_owed = msgspec.msgpack.Decoder(tuple[int, float, float], strict=False).decode
_any = msgspec.msgpack.Decoder().decode


def pack_report(report: Report) -> bytes:
    loads = (report.ghosts, *report.in_use)
    manner = 2 if report.alone else int(report.returning)
    flat: list[float] = [report.seq, report.acked, manner, report.hold.mean_s, report.hold.least_s]
    flat += chain.from_iterable((load.tokens, load.slots) for load in loads)
    for want in report.wants:
        flat += (int(want.priority), want.load.tokens, want.load.slots, want.waited_s)
    return _encode(flat)


def read_answer(raw: bytes) -> Answer:
    """Raises `msgspec.DecodeError` on what is not one of ours."""
    return _answer(raw)


def read_owed(raw: bytes) -> Due:
    """What quota.lua returns. Raises `msgspec.DecodeError` on what is not one of ours."""
    _accepted, tokens_s, requests_s = _owed(raw)
    return Due(tokens_s, requests_s)


def read_reign(raw: tuple[bytes, bytes]) -> Reign:
    led, token, lead_s, now, *counters = _any(raw[0])
    told = {
        replica: (max(0.0, now - at), text)
        for replica, at, text in zip(counters[::3], counters[1::3], counters[2::3], strict=True)
    }
    return Reign(led == 1, int(token), float(lead_s), told, raw[1])


_STATE_LENGTHS = (22, 27)
"""Without a pace and with one."""


def pack_state(state: PoolState) -> tuple[bytes, str]:
    """The state without its time, and its fingerprint."""
    loads = (*state.limits, *state.reserved)
    flat: list[object] = list(chain.from_iterable((load.tokens, load.slots) for load in loads))
    flat += state.rejection
    flat += (state.saturation, state.pressure_at, state.reason, state.engines_reporting)
    flat += (state.engine_max_tokens, state.expected_output_tokens, state.expected_ttft_s)
    flat += () if state.pace is None else (state.pace.tokens_per_s, *state.pace.depths, state.pace.lean)
    packed = _encode(flat)
    return packed, hashlib.sha1(packed, usedforsecurity=False).hexdigest()[:16]


def read_state(packed: bytes, at: float) -> PoolState:
    """Raises `msgspec.DecodeError`, ValueError or TypeError on what is not one of ours."""
    flat = _any(packed)
    if len(flat) not in _STATE_LENGTHS:
        raise ValueError(f"{len(flat)} parts of a state where one of {_STATE_LENGTHS} was expected")
    loads = [Load(float(flat[i]), float(flat[i + 1])) for i in range(0, 12, 2)]
    rejection, rest = flat[12:15], flat[15:]
    saturation, pressure_at, reason, reporting, most, output, ttft, *pace = rest
    return PoolState(
        limits=(loads[0], loads[1], loads[2]),
        reserved=(loads[3], loads[4], loads[5]),
        rejection=(float(rejection[0]), float(rejection[1]), float(rejection[2])),
        saturation=float(saturation),
        pressure_at=float(pressure_at),
        reason=str(reason),
        at=at,
        engines_reporting=int(reporting),
        engine_max_tokens=None if most is None else int(most),
        expected_output_tokens=None if output is None else float(output),
        expected_ttft_s=None if ttft is None else float(ttft),
        pace=Pace(float(pace[0]), (float(pace[1]), float(pace[2]), float(pace[3])), float(pace[4])) if pace else None,
    )


def read_asked(raw: Any, at: float) -> tuple[Answer, PoolState | None] | StateUnavailable:
    """What ask.lua returns: its answer, and the state where that has changed. StateUnavailable: it is not one of ours."""
    try:
        packed, state = raw
        return read_answer(packed), read_state(state, at) if state else None
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        return StateUnavailable("unreadable", str(error))
