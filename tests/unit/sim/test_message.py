"""What simulated clients send is what the service reads."""

from __future__ import annotations

from extproc.config import parse_policy
from extproc.cost import read_body
from extproc.model import Priority
from extproc.sim.world.message import body_of, head_of
from extproc.sim.world.traffic import Arrival

COST = parse_policy("{}").cost


def test_a_body_tells_its_length_and_is_like_no_other() -> None:
    one, other = (body_of(Arrival(at_s, Priority.P1, "a", 100, 77, 400)) for at_s in (1.5, 1.6))
    facts = read_body(one, COST)
    assert facts is not None
    assert (facts.prompt_tokens, facts.max_output_tokens, facts.model) == (104, None, "model-0")
    assert len(one) == len(other)
    assert one != other


def test_each_attempt_says_which_it_is() -> None:
    arrival = Arrival(1.5, Priority.P0, "a", 100, 77, 400)
    first, second = head_of(arrival, 9, 0), head_of(arrival, 9, 1)
    assert "x-stainless-retry-count" not in first.headers
    assert second.headers["x-stainless-retry-count"] == "1"
    assert first.request_id != second.request_id
