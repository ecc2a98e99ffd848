"""The removable heap against a sorted list."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.queues.heap import Handle, Heap


class HeapAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap: Heap[int] = Heap()
        self.model: list[tuple[float, int, Handle[int]]] = []
        self.count = 0

    @rule(key=st.integers(0, 20), times=st.integers(1, 40))
    def push(self, key: int, times: int) -> None:
        for _ in range(times):
            self.count += 1
            self.model.append((float(key), self.count, self.heap.push(float(key), self.count)))

    @rule(data=st.data(), times=st.integers(1, 40))
    def remove(self, data: st.DataObject, times: int) -> None:
        for _ in range(min(times, len(self.model))):
            _, _, handle = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
            assert self.heap.remove(handle)
            assert not self.heap.remove(handle)

    @rule(most=st.integers(0, 10))
    def smallest(self, most: int) -> None:
        assert self.heap.smallest(most) == [item for _, item, _ in sorted(self.model, key=lambda e: e[:2])[:most]]

    @invariant()
    def agree(self) -> None:
        assert len(self.heap) == len(self.model)
        first = min(self.model, key=lambda e: e[:2], default=None)
        assert self.heap.first() == (first[1] if first else None)
        assert self.heap.first_key() == (first[0] if first else None)
        assert sorted(self.heap) == sorted(item for _, item, _ in self.model)


TestHeap = HeapAgainstList.TestCase


def test_leaving_in_droves_leaves_no_dead_entries_behind() -> None:
    heap: Heap[int] = Heap()
    handles = [heap.push(float(i), i) for i in range(10_000)]
    for handle in handles[1:]:
        heap.remove(handle)
    assert len(heap._entries) < 100
