"""What `extproc top` shows of a state document."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from extproc.admin.state import state_document
from extproc.admin.top_view import duration, load, number, seconds, view
from extproc.snapshots import ServiceSnapshot
from tests.support.snapshots import ENGINES, POOL, SERVICE, service

REQUESTS = {"llama": {"P1": {"admitted": 700, "shed": 20, "queue-full": 5, "client-gone": 3}}}
RETRIES = {"llama": {"P1": 130}}


def document(snapshot: ServiceSnapshot = SERVICE) -> Any:
    """As a client gets it."""
    return json.loads(msgspec.json.encode(state_document(snapshot, wall_s=1.0, requests=REQUESTS, retries=RETRIES)))


def shown(state: Any, before: Any = None, *, width: int = 160, trouble: str | None = None) -> list[str]:
    """The lines, blanks folded."""
    out = io.StringIO()
    Console(file=out, width=width).print(view(state, before, trouble=trouble))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_whole_page() -> None:
    lines = shown(document())
    assert lines[0].endswith("serving 127.0.0.1:50051 up 1m 0s 5 streams policy 3f2a9c1b loop lag 2 ms")
    assert (
        "pool llama by watermark saturation 50% held 1.7k tok 4 req of 3.0k tok ghosts 200 tok 1 req "
        "drain 250 tok 0.5 req per s engines 1/2 tries 1.2"
    ) in lines
    assert "P1 agent-workflow 2/500 1.5 s 500 tok 1 req 2.5k tok 10% 700 25 7.5 s" in lines
    assert "P2 batch-extraction 0/1000 - 0 tok 0 req 2.0k tok 75% 0 0 -" in lines
    assert "engine-1:8000 yes 0.1 s 50% 3 1 0 -" in lines
    assert "engine-2:8000 no - - - - - - connection refused" in lines


def test_rates_come_from_two_documents() -> None:
    before, now = document(), document()
    now["uptime_s"] += 2.0
    now["pools"][0]["priorities"]["P1"]["requests"] |= {"admitted": 705, "early-drop": 1}
    (row,) = (line for line in shown(now, before) if line.startswith("P1"))
    assert row.endswith("10% 2.5 0.5 7.5 s")


def test_counters_of_a_process_that_has_ended_make_no_rate() -> None:
    before, now = document(), document()
    now["uptime_s"] = 1.0
    assert shown(now, before) == shown(now)


def test_a_pool_that_was_not_there_before_shows_its_counts() -> None:
    before, now = document(service(pools=())), document()
    now["uptime_s"] += 1.0
    assert any(line.startswith("P1") and "10% 700 25" in line for line in shown(now, before))


def test_what_is_wrong_stands_above_the_pools() -> None:
    refused = replace(SERVICE.policy, last_error="policy.yaml:3: queues[0].timeout: expected a duration")
    lines = shown(document(service(policy=refused, draining=True)), trouble="http://x/state: Connection refused")
    assert "draining" in lines[0]
    assert lines[1:4] == [
        "policy.yaml was refused, the last good policy is in force",
        "policy.yaml:3: queues[0].timeout: expected a duration",
        "http://x/state: Connection refused",
    ]


def test_pools_that_leave_and_engines_that_hang_are_marked() -> None:
    sample = replace(ENGINES[0].sample, frozen=True) if ENGINES[0].sample else None
    hung = replace(ENGINES[0], reporting=False, sample=sample)
    lines = shown(document(service(pools=(replace(POOL, leaving=True, engines=(hung,)),))))
    assert any(line.startswith("pool llama (leaving)") for line in lines)
    assert any(line.startswith("engine-1:8000 frozen") for line in lines)


def test_text_from_outside_is_no_markup() -> None:
    odd = replace(ENGINES[1], last_error="[red]no[/] [/nonsense]")
    assert any(
        "[red]no[/] [/nonsense]" in line for line in shown(document(service(pools=(replace(POOL, engines=(odd,)),))))
    )


def test_nothing_known_and_nothing_limited() -> None:
    def without(value: Any) -> Any:
        """Every number unknown."""
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [without(inner) for inner in value]
        return None if isinstance(value, float) else value

    state = without(copy.deepcopy(document()))
    state["uptime_s"] = 0.0
    lines = shown(state)
    assert "P0 realtime-interactive 0/200 - - no limit - 0 0 -" in lines


def test_the_numbers_survive_a_narrow_terminal() -> None:
    lines = shown(document(), width=80)
    assert any("2/500 1.5 s 500 tok 1 req 2.5k tok 10% 700 25 7.5 s" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.25, "0.2"),
        (3.0, "3"),
        (9.96, "10"),
        (999, "999"),
        (1000, "1.0k"),
        (9_949, "9.9k"),
        (33_333, "33k"),
        (999_600, "1.0M"),
        (2.5e9, "2.5G"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.0 s"), (99.9, "99.9 s"), (100.0, "1m 40s"), (86_400 * 4 + 3700, "4d 1h")],
)
def test_times(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_durations_below_a_second_are_zero_seconds() -> None:
    assert duration(0.4) == "0s"


def test_loads_leave_out_what_is_not_bounded() -> None:
    assert load({"tokens": 1700, "slots": None}) == "1.7k tok"
    assert load({"tokens": None, "slots": 64}) == "64 req"
    assert load({"tokens": None, "slots": None}, unknown="no limit") == "no limit"
    assert load(None) == "-"
