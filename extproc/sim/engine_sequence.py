"""A sequence inside the engine model, and the line of those that wait. Only `engine.py` uses them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from extproc.sim.engine_spec import SimRequest
from extproc.sim.engine_stats import EngineStats


class Sequence:
    """A request inside the engine. While it decodes, `generated` and `computed` lag by the steps since `start_step`.

    Times are seconds on the caller's scale, -1 when it has not come to that yet.
    """

    __slots__ = (
        *("aborted", "arrived", "blocks", "bucket", "computed", "end_step", "first_run", "first_token", "generated"),
        *("handle", "key", "last_token", "preemptions", "request", "start_step", "target"),
    )

    def __init__(self, handle: int, request: SimRequest, *, arrived: float, key: tuple[int, float, int]) -> None:
        self.handle = handle
        self.request = request
        self.arrived = arrived
        self.key = key
        """Order of service: the least first."""
        self.aborted = False
        self.blocks = 0
        self.computed = 0
        """Tokens in the KV cache."""
        self.generated = 0
        self.target = request.prompt_tokens
        """Tokens to prefill: the prompt and, after a preemption, what was generated before it."""
        self.start_step = 0
        self.end_step = -1
        self.bucket = 0
        self.first_run = -1.0
        self.first_token = -1.0
        self.last_token = -1.0
        self.preemptions = 0

    def record(self, stats: EngineStats, end: float) -> None:
        """What vLLM counts when a request has finished at `end`, beside the length of its answer."""
        request = self.request
        stats.finished[request.ending] += 1
        stats.end_to_end_s.observe(end - self.arrived)
        stats.queue_s.observe(self.first_run - self.arrived)
        stats.inference_s.observe(end - self.first_run)
        stats.prefill_s.observe(self.first_token - self.first_run)
        stats.decode_s.observe(end - self.first_token)
        if self.generated > 1:
            stats.time_per_token_s.observe((end - self.first_token) / (self.generated - 1))
        stats.request_prompt_tokens.observe(request.prompt_tokens)
        stats.request_max_tokens.observe(request.bound)
        stats.request_n.observe(request.n)
        stats.request_preemptions.observe(self.preemptions)


class WaitingLine:
    """Sequences in order of their keys. Those that left are skipped later, so that leaving costs nothing."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Sequence]] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.key, sequence))
        self._live += 1

    def peek(self) -> Sequence | None:
        while self._heap and self._heap[0][1].aborted:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Removes what `peek` just returned."""
        heappop(self._heap)
        self._live -= 1

    def forget(self, sequence: Sequence) -> None:
        """`sequence` waits here and was aborted."""
        sequence.aborted = True
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if not entry[1].aborted]
            heapify(self._heap)
