"""The removable order against a list that is sorted anew."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.queues.ordered import Handle, Ordered


class OrderedAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ordered: Ordered[int] = Ordered()
        self.model: list[tuple[float, int, Handle[int]]] = []
        self.count = 0

    @rule(key=st.integers(0, 20), times=st.integers(1, 40))
    def push(self, key: int, times: int) -> None:
        for _ in range(times):
            self.count += 1
            self.model.append((float(key), self.count, self.ordered.push(float(key), self.count)))

    @rule(data=st.data(), times=st.integers(1, 40))
    def remove(self, data: st.DataObject, times: int) -> None:
        for _ in range(min(times, len(self.model))):
            _, _, handle = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
            assert self.ordered.remove(handle)
            assert not self.ordered.remove(handle)

    @invariant()
    def agree(self) -> None:
        assert len(self.ordered) == len(self.model)
        first = min(self.model, key=lambda e: e[:2], default=None)
        assert self.ordered.first() == (first[1] if first else None)
        assert list(self.ordered) == [item for _, item, _ in sorted(self.model, key=lambda e: e[:2])]


TestOrdered = OrderedAgainstList.TestCase


def test_the_like_of_another_list_is_not_taken_for_an_entry() -> None:
    """A tenant whose line was emptied gets a new one, in which numbers begin anew."""
    one, other = Ordered[object](), Ordered[object]()
    handle = one.push(1.0, object())
    other.push(1.0, object())
    assert not other.remove(handle)
    assert (len(one), len(other)) == (1, 1)
