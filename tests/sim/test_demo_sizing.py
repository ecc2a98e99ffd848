"""The demo's load is three times what its engines can do: by the engine model, in virtual time, with the demo's requests."""

from __future__ import annotations

import pytest

from extproc.sim import sizing
from extproc.sim.engine import EngineModel
from extproc.sim.engine_spec import EngineSpec, SimRequest
from extproc.sim.workload import WorkloadSpec, intended_requests

SPEC = EngineSpec(kv_tokens=sizing.KV_TOKENS, speed=sizing.SPEED, chunk=sizing.CHUNK, max_num_seqs=sizing.MAX_NUM_SEQS)
WINDOW_S, WARM_UP_S, END_S = 40.0, 5.0, 45.0


def requests() -> list[SimRequest]:
    spec = WorkloadSpec(rate_per_s=sizing.RATE_PER_S, seconds=WINDOW_S, seed=1)
    return [SimRequest(r.prompt_tokens, sizing.output_tokens(r), r.max_tokens) for r in intended_requests(spec)]


def tokens_per_s(limit_tokens: float) -> float:
    """Output tokens per second of one engine under saturation, never holding more than `limit_tokens` (true lengths)."""
    engine, queue = EngineModel(SPEC), requests()
    held: dict[int, int] = {}
    now, made = 0.0, 0
    while now < END_S:
        while queue and sum(held.values()) + (size := queue[0].prompt_tokens + queue[0].output_tokens) <= limit_tokens:
            handle = engine.add(now, queue.pop(0))
            assert isinstance(handle, int)
            held[handle] = size
        step = engine.step(now)
        now += step.duration_s
        made += step.tokens if now > WARM_UP_S else 0
        for handle in step.finished:
            del held[handle]
    assert queue, "it must stay saturated to the end"
    return made / (END_S - WARM_UP_S)


def test_offered_is_three_times_what_the_engines_can_do_at_best() -> None:
    """The best constant limit is the measure; flooding comes within 2 % of it, which is what the demo can measure."""
    flooded, *limited = (tokens_per_s(share * SPEC.kv_tokens) for share in (2.0, 0.9, 1.0, 1.1, 1.2))
    offered = sum(r.output_tokens for r in requests()) / WINDOW_S
    assert sizing.ENGINES * max(limited) == pytest.approx(sizing.CAPACITY_TOKENS_PER_S, rel=0.02)
    assert sizing.ENGINES * flooded == pytest.approx(sizing.CAPACITY_TOKENS_PER_S, rel=0.03)
    assert offered / sizing.CAPACITY_TOKENS_PER_S == pytest.approx(3.0, rel=0.05)


def test_a_step_stays_within_the_tpot_target() -> None:
    full = SPEC.step_base_s + SPEC.chunk * SPEC.prefill_token_s + SPEC.kv_tokens * SPEC.context_token_s
    assert (full + SPEC.max_num_seqs * SPEC.sequence_s) / SPEC.speed < 0.050
