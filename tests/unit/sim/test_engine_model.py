"""The engine model: what a scheduler of this kind must never get wrong. Its numbers: tests/sim/test_engine_fit.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.sim.engine import EngineModel, EngineSpec, Finish, Refusal, Scheduling, SimRequest

SMALL = EngineSpec(kv_tokens=320, block_size=16, max_num_seqs=8, chunk=64)
"""19 usable blocks: 304 tokens."""


def run_to_end(model: EngineModel, now: float = 0.0) -> tuple[float, dict[int, int]]:
    """Steps until idle. Returns the time and the tokens each handle got."""
    tokens: dict[int, int] = {}
    for _ in range(100_000):
        if not model.busy:
            return now, tokens
        result = model.step(now)
        now += result.duration_s
        for handle in (*result.streaming, *result.finished):
            tokens[handle] = tokens.get(handle, 0) + 1
    raise AssertionError("the engine does not come to an end")


def admit(model: EngineModel, request: SimRequest, now: float = 0.0) -> int:
    handle = model.add(now, request)
    assert isinstance(handle, int)
    return handle


def test_a_request_alone_takes_its_prefill_and_one_step_per_further_token() -> None:
    model = EngineModel(EngineSpec(context_token_s=0.0))
    handle = admit(model, SimRequest(100, 10, max_tokens=10))
    first = model.step(0.0)
    assert first.first_tokens == (handle,)
    assert first.duration_s == pytest.approx(7.7e-3 + 100 * 32e-6 + 4.4e-6)
    end, tokens = run_to_end(model, first.duration_s)
    assert tokens == {handle: 9}
    assert end == pytest.approx(first.duration_s + 9 * (7.7e-3 + 4.4e-6))
    assert model.stats.finished[Finish.LENGTH] == 1
    assert model.stats.first_token_s.total == pytest.approx(first.duration_s)
    assert model.stats.token_gap_s.count == 9


def test_without_details_steps_and_gauges_are_the_same_and_only_requests_are_not_counted_one_by_one() -> None:
    models = [EngineModel(SMALL, detailed=detailed) for detailed in (True, False)]
    for model in models:
        for n in range(12):
            admit(model, SimRequest(20 + n, 30))
    (end, tokens), other = (run_to_end(model) for model in models)
    assert (end, tokens) == other
    full, lean = (model.stats for model in models)
    assert lean.preemptions == full.preemptions > 0
    assert lean.request_generation_tokens.count == full.request_generation_tokens.count == 12
    assert lean.token_gap_s.counts == full.token_gap_s.counts
    assert full.queue_s.count == 12
    assert lean.queue_s.count == 0


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_decodes() -> None:
    model = EngineModel(EngineSpec(chunk=512))
    short = admit(model, SimRequest(10, 50))
    model.step(0.0)
    long = admit(model, SimRequest(1000, 5))
    chunks = [model.step(0.1), model.step(0.2)]
    assert [chunk.prefilled_tokens for chunk in chunks] == [511, 489]
    assert [chunk.first_tokens for chunk in chunks] == [(), (long,)]
    assert short in chunks[0].streaming


def test_speed_divides_the_step_time() -> None:
    slow, fast = EngineModel(EngineSpec()), EngineModel(EngineSpec(speed=4.0))
    for model in (slow, fast):
        admit(model, SimRequest(500, 3))
    assert slow.step(0.0).duration_s == pytest.approx(4 * fast.step(0.0).duration_s)


def test_no_more_sequences_run_than_max_num_seqs() -> None:
    model = EngineModel(SMALL)
    for _ in range(12):
        admit(model, SimRequest(1, 3))
    model.step(0.0)
    assert (model.gauges().running, model.gauges().waiting) == (8, 4)


def test_first_come_preempts_the_newest_and_resumes_it_before_all_others() -> None:
    model = EngineModel(replace(SMALL, max_num_seqs=2))
    old, new, late = (admit(model, SimRequest(64, tokens)) for tokens in (150, 150, 10))
    order: list[int] = []
    preempted: list[int] = []
    now = 0.0
    stalled = False
    while model.busy:
        result = model.step(now)
        now += result.duration_s
        order += result.finished
        preempted += result.preempted
        stalled = new not in result.streaming and new in preempted and new not in order
        assert not (stalled and late in result.streaming), "nobody passes a preempted sequence"
    assert set(preempted) == {new}
    assert order.index(old) < order.index(new)
    assert model.stats.recomputed_tokens > 0
    assert model.stats.request_preemptions.total == model.stats.preemptions == len(preempted)


def test_priority_runs_the_lowest_number_first_and_preempts_the_highest() -> None:
    model = EngineModel(replace(SMALL, scheduling=Scheduling.PRIORITY, max_num_seqs=2))
    batch = admit(model, SimRequest(64, 150, priority=2))
    urgent = admit(model, SimRequest(64, 150, priority=0), now=0.001)
    now = 0.01
    while model.gauges().running < 2:
        now += model.step(now).duration_s
    waiting = [admit(model, SimRequest(8, 2, priority=p), now=now) for p in (5, 1)]
    order: list[int] = []
    preempted: set[int] = set()
    while model.busy:
        result = model.step(now)
        now += result.duration_s
        order += result.finished
        preempted.update(result.preempted)
        assert not (result.preempted and result.first_tokens), "nothing starts in a step that preempts"
    assert preempted == {batch}
    assert order.index(waiting[1]) < order.index(urgent) < order.index(batch)
    assert order.index(urgent) < order.index(waiting[0]), "nobody passes a preempted sequence that does not fit yet"


def test_an_abort_frees_its_blocks_at_the_next_step() -> None:
    model = EngineModel(SMALL)
    handle = admit(model, SimRequest(100, 50))
    model.step(0.0)
    assert model.gauges().kv_usage == pytest.approx(4 / 19), "one chunk of 64 tokens"
    assert model.abort(handle)
    assert not model.abort(handle)
    assert model.open == 0
    assert model.step(0.1).duration_s == 0.0
    assert model.gauges().kv_usage == 0.0
    assert not model.busy
    assert model.stats.aborts == 1
    assert sum(model.stats.finished.values()) == 0


def test_a_request_larger_than_the_cache_is_refused() -> None:
    model = EngineModel(SMALL)
    assert model.add(0.0, SimRequest(300, 5)) is Refusal.TOO_LARGE
    assert model.add(0.0, SimRequest(200, 5, max_tokens=105)) is Refusal.TOO_LARGE
    assert isinstance(model.add(0.0, SimRequest(300, 4)), int)
    assert EngineModel(replace(SMALL, max_model_len=100)).add(0.0, SimRequest(99, 2)) is Refusal.TOO_LARGE


def test_the_engines_own_cap_counts_what_waits_and_what_runs() -> None:
    model = EngineModel(replace(SMALL, max_num_queued_reqs=2))
    first = admit(model, SimRequest(8, 8))
    model.step(0.0)
    admit(model, SimRequest(8, 8))
    assert model.add(0.0, SimRequest(8, 8)) is Refusal.QUEUE_FULL
    assert model.stats.refused_queue_full == 1
    model.abort(first)
    admit(model, SimRequest(8, 8))


def test_a_spec_that_cannot_work_is_refused() -> None:
    for wrong in ({"kv_tokens": 16}, {"chunk": 100}, {"speed": 0.0}, {"block_size": 0}):
        with pytest.raises(ValueError, match="must"):
            replace(EngineSpec(), **wrong)
    with pytest.raises(ValueError, match="at least one"):
        EngineModel(SMALL).add(0.0, SimRequest(0, 1))


def test_leaving_waiters_do_not_pile_up() -> None:
    model = EngineModel(SMALL)
    for _ in range(8):
        admit(model, SimRequest(20, 100))
    now = model.step(0.0).duration_s
    for _ in range(2000):
        model.abort(admit(model, SimRequest(20, 5), now=now))
        now += model.step(now).duration_s
    assert len(model._waiting._heap) < 200
