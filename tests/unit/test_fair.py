"""The fair order between tenants against its definition."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from extproc.model import NOTHING, Load, Tenant
from extproc.queues.fair import FairOrder
from extproc.queues.ordered import Handle
from extproc.queues.shares import Shares


@dataclass(eq=False)
class Item:
    tenant: Tenant
    load: Load
    arrived: float
    handle: Handle[Item] | None = None


class Queue:
    """The order with items made on the fly."""

    def __init__(self) -> None:
        self.order: FairOrder[Item] = FairOrder()
        self.now = 0.0

    def push(self, name: str, count: int = 1, *, tokens: float = 10, weight: float = 1.0) -> list[Item]:
        items = []
        for _ in range(count):
            self.now += 1
            one = Item(Tenant(name, weight), Load(tokens, 1), self.now)
            one.handle = self.order.push(one)
            items.append(one)
        return items

    def serve(self, count: int) -> str:
        names = ""
        for _ in range(count):
            first = self.order.first()
            assert first is not None
            assert first.handle is not None
            assert self.order.remove(first.handle, served=True)
            names += first.tenant.name
        return names


def test_one_tenant_is_first_come_first_served() -> None:
    queue = Queue()
    items = queue.push("a", 3)
    assert list(queue.order) == items


def test_tenants_take_turns_whatever_they_have_waiting() -> None:
    queue = Queue()
    queue.push("a", 10)
    queue.push("b", 3)
    assert queue.serve(6) == "ababab"


def test_turns_are_counted_in_tokens() -> None:
    queue = Queue()
    queue.push("a", 2, tokens=40)
    queue.push("b", 8, tokens=10)
    assert queue.serve(10) == "abbbbabbbb"


def test_weights_count() -> None:
    queue = Queue()
    queue.push("a", 2)
    queue.push("b", 4, weight=2)
    assert sorted(queue.serve(3)) == ["a", "b", "b"]


def test_who_comes_back_from_idling_has_saved_nothing_up() -> None:
    queue = Queue()
    queue.push("a", 20)
    queue.serve(10)
    queue.push("b", 10)
    assert queue.serve(6).count("a") == 3


def test_who_asks_one_by_one_for_a_lot_is_still_charged() -> None:
    """A line that empties after each request must not forget what the tenant has had."""
    queue = Queue()
    queue.push("a", 60, tokens=10)
    got = ""
    for _ in range(50):
        if not queue.order.count_of("b"):
            queue.push("b", tokens=100)
        got += queue.serve(1)
    assert 3 <= got.count("b") <= 6


def test_who_leaves_unserved_is_not_charged() -> None:
    queue = Queue()
    queue.push("a", 4)
    gone = queue.push("b", 2)[0]
    assert gone.handle is not None
    assert queue.order.remove(gone.handle, served=False)
    assert not queue.order.remove(gone.handle, served=False)
    assert queue.serve(3) == "aba"


def test_what_is_remembered_of_absent_tenants_is_bounded() -> None:
    queue = Queue()
    for i in range(5000):
        queue.push(f"t{i}", tokens=1000)
        queue.serve(1)
    assert len(queue.order._past) <= 1024
    assert queue.order.weights == 0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=30),
    st.lists(st.booleans(), max_size=30),
)
def test_the_forecast_is_what_then_happens(pushes: list[tuple[str, int]], serves: list[bool]) -> None:
    queue = Queue()
    waiting = 0
    for (name, tokens), serve in zip(pushes, serves + [False] * len(pushes), strict=False):
        queue.push(name, tokens=tokens)
        waiting += 1
        if serve:
            queue.serve(1)
            waiting -= 1
    forecast = "".join(one.tenant.name for one in queue.order)
    assert len(forecast) == waiting
    assert queue.serve(waiting) == forecast
    assert queue.order.first() is None


def test_a_weight_that_a_new_policy_changed_counts_from_the_next_request_on() -> None:
    queue = Queue()
    waiting = queue.push("a", 2) + queue.push("b", 2)
    assert queue.order.weights == 2
    waiting += queue.push("a", weight=3)
    assert queue.order.weights == 4
    waiting += queue.push("a", weight=2)
    assert queue.order.weights == 3
    for item in waiting:
        assert item.handle is not None
        queue.order.remove(item.handle, served=False)
    assert queue.order.weights == 0


def test_a_changed_weight_changes_what_a_tenant_holds_for_it() -> None:
    shares, mean = Shares(), Load(10, 1)
    shares.began(Tenant("a"), Load(100, 10), 0.0)
    shares.began(Tenant("b"), Load(60, 6), 0.0)
    assert shares.must_leave_room(Tenant("a"), NOTHING, mean)
    assert not shares.must_leave_room(Tenant("b"), NOTHING, mean)
    shares.seen(Tenant("a", 4), 0.0)
    assert shares.must_leave_room(Tenant("b"), NOTHING, mean)
    assert not shares.must_leave_room(Tenant("a", 4), NOTHING, mean)
    assert [holding.normal for holding in shares.largest(2)] == [25, 60]


requests = st.tuples(st.sampled_from("abcd"), st.integers(0, 50), st.sampled_from([0.5, 1.0, 4.0]))


@given(before=st.lists(requests, max_size=12), after=st.lists(requests, min_size=1, max_size=12))
def test_who_stood_in_no_line_is_charged_as_if_it_had(
    before: list[tuple[str, int, float]], after: list[tuple[str, int, float]]
) -> None:
    passed, stood = Queue(), Queue()
    for name, tokens, weight in before:
        passed.order.charge(Tenant(name, weight), Load(tokens, 1))
        stood.push(name, tokens=tokens, weight=weight)
        stood.serve(1)
    for queue in (passed, stood):
        for name, tokens, weight in after:
            queue.push(name, tokens=tokens, weight=weight)
    assert passed.serve(len(after)) == stood.serve(len(after))
