"""What must hold in every step of the engine model, whatever is asked of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sim.engine import EngineModel, EngineSpec, Scheduling, SimRequest

requests = st.builds(
    SimRequest,
    prompt_tokens=st.integers(1, 150),
    output_tokens=st.one_of(st.integers(1, 5), st.integers(60, 150)),
    priority=st.integers(0, 2),
)
specs = st.builds(
    EngineSpec,
    kv_tokens=st.sampled_from([320, 640]),
    block_size=st.sampled_from([1, 4, 16]),
    max_num_seqs=st.integers(1, 12),
    chunk=st.sampled_from([12, 40, 256]),
    scheduling=st.sampled_from(Scheduling),
)
events = st.builds(
    lambda burst, rest: [*burst, *rest],
    st.lists(requests, max_size=12),
    st.lists(st.one_of(requests, st.integers(0, 30), st.just("step")), max_size=60),
)


@dataclass
class Life:
    """What the outside saw of a request."""

    request: SimRequest
    tokens: int = 0
    first: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    ends: int = 0
    aborted: bool = False


@dataclass
class Watched:
    """A model under watch: every step is checked against what was seen before."""

    model: EngineModel
    lives: dict[int, Life] = field(default_factory=dict)
    now: float = 0.0
    trace: list[object] = field(default_factory=list)

    def feed(self, event: SimRequest | int | str) -> None:
        if isinstance(event, SimRequest):
            handle = self.model.add(self.now, event)
            assert isinstance(handle, int)
            self.lives[handle] = Life(event)
        elif isinstance(event, int):
            if self.lives:
                handle = sorted(self.lives)[event % len(self.lives)]
                self.lives[handle].aborted |= self.model.abort(handle)
        else:
            self.step()

    def step(self) -> None:
        model, ran_before = self.model, set(self.model._running)
        result = model.step(self.now)
        self.now += result.duration_s
        self.trace.append((self.now, result.finished, result.preempted, tuple(result.streaming)))
        for handle in (*result.streaming, *result.finished):
            self.lives[handle].tokens += 1
            self.lives[handle].last_at = self.now
        for handle in result.first_tokens:
            self.lives[handle].first += 1
            self.lives[handle].first_at = self.now
        for handle in result.finished:
            self.lives[handle].ends += 1
        held = list(model._running.values())
        assert 0 <= model.free_blocks <= model.spec.usable_blocks
        assert sum(sequence.blocks for sequence in held) + model.free_blocks == model.spec.usable_blocks
        assert len(held) <= model.spec.max_num_seqs
        if result.preempted:
            assert set(model._running) <= ran_before - set(result.preempted), "nothing starts in a step that preempts"
        assert result.prefilled_tokens <= model.spec.chunk
        step = model._step
        for sequence in held:
            decoding = sequence.handle in model._decoding
            kv = sequence.computed + (step - sequence.start_step if decoding else 0)
            assert sequence.blocks == math.ceil(kv / model.spec.block_size)


@given(specs, events)
def test_blocks_and_tokens_are_conserved_and_every_request_ends_once(
    spec: EngineSpec, moves: list[SimRequest | int | str]
) -> None:
    watched = Watched(EngineModel(spec))
    for move in moves:
        watched.feed(move)
    for _ in range(50_000):
        if not watched.model.busy:
            break
        watched.step()
    model = watched.model
    assert (model.free_blocks, model.context_tokens, model.open) == (spec.usable_blocks, 0, 0)
    assert model.gauges().waiting == 0
    for life in watched.lives.values():
        assert life.ends + life.aborted == 1
        assert life.first <= 1
        if not life.aborted:
            assert life.tokens == life.request.output_tokens
            assert life.first == 1
    stats = model.stats
    assert stats.generation_tokens == sum(life.tokens for life in watched.lives.values())
    gaps = sum(life.last_at - life.first_at for life in watched.lives.values())
    assert stats.token_gap_s.total == pytest.approx(gaps), "stalls of preempted sequences are in it"
    assert stats.first_token_s.count + stats.token_gap_s.count == stats.generation_tokens
    assert sum(stats.finished.values()) == sum(life.ends for life in watched.lives.values())
    assert all(histogram.total >= 0 for histogram in (stats.token_gap_s, stats.queue_s, stats.decode_s))


@given(specs, events)
def test_the_same_events_give_the_same_run(spec: EngineSpec, moves: list[SimRequest | int | str]) -> None:
    runs = []
    for _ in range(2):
        watched = Watched(EngineModel(spec))
        for move in [*moves, *["step"] * 50]:
            watched.feed(move)
        runs.append(watched.trace)
    assert runs[0] == runs[1]
