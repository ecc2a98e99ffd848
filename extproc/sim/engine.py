"""The engine model: continuous batching over a paged KV cache, in explicit time. No loop, no clock, no randomness.

It follows vLLM's scheduler (version 1): decodes first, then the running prefill, then the waiting queue while the token
budget lasts; blocks are taken as tokens appear; without a free block the newest (priority scheduling: the least
important, then newest) running sequence loses its blocks and is computed again later; a waiting sequence starts only
when all its tokens so far fit the free blocks; one block is never used. There is no prefix cache.

What makes it fast: every decoding sequence gets exactly one token per step, because the budget covers all of them. So
the step number says how far each one is: sequences are filed by the step at which they end and by the step (modulo
block size) at which they need a block, and a step touches only those, not all that run.
"""

from __future__ import annotations

from collections.abc import KeysView

from msgspec import Struct

from extproc.sim.engine_sequence import Sequence, WaitingLine
from extproc.sim.engine_spec import EngineSpec, Refusal, Scheduling, SimRequest
from extproc.sim.engine_stats import EngineStats, Finish, Gauges

__all__ = ["EngineModel", "EngineSpec", "Finish", "Gauges", "Refusal", "Scheduling", "SimRequest", "StepResult"]


class StepResult(Struct, frozen=True):
    """One step's work, ready at `now + duration_s`; a duration of 0 means that there was nothing to do.

    Every handle in `streaming` and in `finished` got exactly one token. `streaming` is a live view, valid until the
    next step. `first_tokens` is a part of the two. `prefilled_tokens` includes what is computed again.
    """

    duration_s: float
    streaming: KeysView[int]
    finished: tuple[int, ...] = ()
    first_tokens: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    prefilled_tokens: int = 0

    @property
    def tokens(self) -> int:
        return len(self.streaming) + len(self.finished)


class EngineModel:
    """One engine. The caller steps it: `step(now)`, wait the result's `duration_s`, hand out the tokens, step again.

    `detailed`: whether its `stats` hold what only a full metrics page shows, of each step and each request that finished.
    """

    def __init__(self, spec: EngineSpec, *, detailed: bool = True) -> None:
        self.spec = spec
        self._detailed = detailed
        self.speed = spec.speed
        self.stats = EngineStats()
        self.free_blocks = spec.usable_blocks
        self.context_tokens = 0
        """KV tokens held by all running sequences."""
        self._sequences: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._prefilling: dict[int, Sequence] = {}
        """At most one at a time: a prefill that does not end in a step has used up its budget."""
        self._decoding: dict[int, Sequence] = {}
        self._buckets: list[dict[int, Sequence]] = [{} for _ in range(spec.block_size)]
        self._ends: dict[int, list[Sequence]] = {}
        self._waiting = WaitingLine()
        self._aborted: dict[int, Sequence] = {}
        self._step = 0
        self._last_handle = 0
        self._front = 0
        self._last_end = 0.0

    # -- between steps

    @property
    def busy(self) -> bool:
        """Whether a step would do anything, if only to free what was aborted."""
        return bool(self._sequences)

    @property
    def open(self) -> int:
        """Sequences inside, waiting or running, without those that were aborted."""
        return len(self._sequences) - len(self._aborted)

    def gauges(self) -> Gauges:
        usable = self.spec.usable_blocks
        return Gauges(len(self._running), len(self._waiting), (usable - self.free_blocks) / usable)

    def refusal(self, request: SimRequest, sequences: int = 1) -> Refusal | None:
        """Why the engine would not take `sequences` such requests now, if so."""
        if request.prompt_tokens + max(request.bound, request.output_tokens) > self.spec.longest:
            return Refusal.TOO_LARGE
        cap = self.spec.max_num_queued_reqs
        if cap is not None and self.open + sequences > cap:
            return Refusal.QUEUE_FULL
        return None

    def add(self, now: float, request: SimRequest) -> int | Refusal:
        """Queues a request that arrived at `now`; returns its handle. Raises ValueError for lengths below 1."""
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request has at least one prompt token and one output token")
        refusal = self.refusal(request)
        if refusal is not None:
            self.stats.refused_queue_full += refusal is Refusal.QUEUE_FULL
            return refusal
        self._last_handle = handle = self._last_handle + 1
        by_priority = self.spec.scheduling is Scheduling.PRIORITY
        key = (request.priority, now, handle) if by_priority else (0, 0.0, handle)
        sequence = self._sequences[handle] = Sequence(handle, request, arrived=now, key=key)
        self._waiting.push(sequence)
        return handle

    def abort(self, handle: int) -> bool:
        """The client left: what the sequence holds is free at the next step. False when it is not inside (any more)."""
        sequence = self._sequences.get(handle)
        if sequence is None or handle in self._aborted:
            return False
        self._aborted[handle] = sequence
        self.stats.aborts += 1
        return True

    # -- one step

    def step(self, now: float) -> StepResult:
        """Schedules and computes one step that begins at `now`, in O(what changes), not O(what runs)."""
        for sequence in self._aborted.values():
            self._drop(sequence)
        self._aborted.clear()
        preempted: list[int] = []
        self._grow(preempted)
        prefilled, ready = self._prefill(now, preempted)
        decodes = len(self._decoding)
        scheduled = decodes + len(self._prefilling) + len(ready)
        if not scheduled:
            return StepResult(0.0, self._decoding.keys())
        self.context_tokens += decodes
        spec = self.spec
        duration = spec.step_base_s + spec.prefill_token_s * prefilled + spec.sequence_s * scheduled
        duration = (duration + spec.context_token_s * self.context_tokens) / self.speed
        finished, first = self._emit(now + duration, decodes, ready)
        self.stats.steps += 1
        self.stats.busy_s += duration
        return StepResult(duration, self._decoding.keys(), finished, first, tuple(preempted), prefilled)

    def _grow(self, preempted: list[int]) -> None:
        """A block for each decoding sequence whose last one is full."""
        growing = self._buckets[self._step % self.spec.block_size]
        if len(growing) <= self.free_blocks:  # nobody has to give way
            self.free_blocks -= len(growing)
            for sequence in growing.values():
                sequence.blocks += 1
            return
        for sequence in tuple(growing.values()):
            if sequence.handle in self._decoding:
                self._take_blocks(sequence, 1, preempted)

    def _prefill(self, now: float, preempted: list[int]) -> tuple[int, list[Sequence]]:
        """Spends the budget that decodes leave. Returns the tokens computed and the sequences whose prefill is done."""
        budget = self.spec.chunk - len(self._decoding)
        left = budget
        ready: list[Sequence] = []
        for sequence in tuple(self._prefilling.values()):
            left -= self._compute(sequence, left, ready, preempted)
        while not preempted and left > 0 and len(self._running) < self.spec.max_num_seqs:
            candidate = self._waiting.peek()
            if candidate is None or self._blocks_of(candidate.target) > self.free_blocks:
                break
            self._waiting.pop()
            sequence = candidate
            self._running[sequence.handle] = self._prefilling[sequence.handle] = sequence
            if sequence.first_run < 0:
                sequence.first_run = max(now, sequence.arrived)
            left -= self._compute(sequence, left, ready, preempted)
        return budget - left, ready

    def _compute(self, sequence: Sequence, budget: int, ready: list[Sequence], preempted: list[int]) -> int:
        """Prefills up to `budget` tokens of one sequence; 0 when it had to give way itself."""
        tokens = min(sequence.target - sequence.computed, budget)
        if not self._take_blocks(sequence, self._blocks_of(sequence.computed + tokens) - sequence.blocks, preempted):
            return 0
        sequence.computed += tokens
        self.context_tokens += tokens
        if sequence.computed == sequence.target:
            del self._prefilling[sequence.handle]
            ready.append(sequence)
        return tokens

    def _emit(self, end: float, decodes: int, ready: list[Sequence]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """One token for every decoding and just prefilled sequence. Returns who finished and whose first it was."""
        stats, step = self.stats, self._step
        self._step += 1
        stats.generation_tokens += decodes + len(ready)
        if decodes:
            stats.token_gap_s.observe(end - self._last_end, decodes)
        finished = [s for s in self._ends.pop(step, ()) if s.end_step == step]
        first, prompts = list[int](), 0
        for sequence in ready:
            if not sequence.generated:
                first.append(sequence.handle)
                prompts += sequence.request.prompt_tokens
            self._join(sequence, end)
            if sequence.generated == sequence.request.output_tokens:
                finished.append(sequence)
        stats.prompt_tokens += prompts
        if self._detailed:
            stats.iteration_tokens.observe(prompts + decodes + len(ready))
        for sequence in finished:
            self._drop(sequence)
            stats.request_generation_tokens.observe(sequence.generated)
            if self._detailed:
                sequence.record(stats, end)
        self._last_end = end
        return tuple([s.handle for s in finished]), tuple(first)

    # -- a sequence's way through

    def _join(self, sequence: Sequence, end: float) -> None:
        """The token at the end of a prefill; from here on it decodes, one token a step."""
        if sequence.generated:
            self.stats.token_gap_s.observe(end - sequence.last_token)
        else:
            sequence.first_token = end
            self.stats.first_token_s.observe(end - sequence.arrived)
        sequence.generated += 1
        sequence.start_step = self._step
        sequence.bucket = (self._step - sequence.computed) % self.spec.block_size
        sequence.end_step = self._step + sequence.request.output_tokens - sequence.generated - 1
        self._decoding[sequence.handle] = self._buckets[sequence.bucket][sequence.handle] = sequence
        if sequence.end_step >= self._step:
            self._ends.setdefault(sequence.end_step, []).append(sequence)

    def _release(self, sequence: Sequence) -> int:
        """Takes a running sequence out of the batch and the cache. Returns the KV tokens it held."""
        handle = sequence.handle
        del self._running[handle]
        self._prefilling.pop(handle, None)
        if self._decoding.pop(handle, None) is not None:
            del self._buckets[sequence.bucket][handle]
            steps = self._step - sequence.start_step
            sequence.generated += steps
            sequence.computed += steps
            sequence.end_step = -1
        held = sequence.computed
        self.context_tokens -= held
        self.free_blocks += sequence.blocks
        sequence.blocks = sequence.computed = 0
        return held

    def _drop(self, sequence: Sequence) -> None:
        """Finished or aborted: out of the engine."""
        del self._sequences[sequence.handle]
        if sequence.handle in self._running:
            self._release(sequence)
        else:
            self._waiting.forget(sequence)

    def _preempt(self, sequence: Sequence, preempted: list[int]) -> None:
        """Back to the waiting line (under first come to its front); all its tokens are to be computed again."""
        if sequence.handle in self._decoding:
            sequence.last_token = self._last_end
        self.stats.recomputed_tokens += self._release(sequence)
        sequence.target = sequence.request.prompt_tokens + sequence.generated
        sequence.preemptions += 1
        if self.spec.scheduling is Scheduling.FCFS:
            self._front -= 1
            sequence.key = (0, 0.0, self._front)
        self._waiting.push(sequence)
        preempted.append(sequence.handle)
        self.stats.preemptions += 1

    def _take_blocks(self, sequence: Sequence, blocks: int, preempted: list[int]) -> bool:
        """Gives a running sequence blocks, at the cost of others if need be; False when it had to give way itself."""
        while self.free_blocks < blocks:
            if self.spec.scheduling is Scheduling.FCFS:
                victim = next(reversed(self._running.values()))
            else:
                victim = max(self._running.values(), key=lambda running: running.key)
            self._preempt(victim, preempted)
            if victim is sequence:
                return False
        self.free_blocks -= blocks
        sequence.blocks += blocks
        return True

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)
