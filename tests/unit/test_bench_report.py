"""The benchmark's and the soak's verdicts: each bar can be missed, and is then said to be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.client import Leaving
from bench.queued import QueuedBytes
from bench.report import BODY_SIZES, NAMES, Cell, Measured, bars, document, tables
from bench.requests import chat_body, http_request
from bench.soak import Soak


def measured(*, rps: float = 900.0, failures: int = 0) -> Measured:
    """`rps`: of extproc, in each of three rounds of which one is slow for everybody; the bare server has 1000."""
    speeds = {"envoy": 5000.0, "bare": 1000.0, "extproc": rps}
    cells = [
        Cell(name, size, p50_ms=[1.0, 2.0, 3.0], p99_ms=[4.0], rps=[speeds[name], speeds[name] / 4, speeds[name]])
        for size in BODY_SIZES
        for name in NAMES
    ]
    cells[-1].failures = failures
    return Measured(
        cells=cells,
        codec_us={"request headers": 10.0, "2 KB body": 2.0, "response headers": 6.0},
        decision_us={0: 30.0, 2048: 40.0, 131_072: 80.0},
        stream_us={"bare": 20.0, "extproc": 110.0},
        queued=QueuedBytes(python=11_000, resident=29_000),
    )


def missed(result: Measured) -> list[str]:
    return [bar.text.split(":")[0].split(",")[0] for bar in bars(result) if not bar.met]


def test_a_good_run_meets_all_bars() -> None:
    assert missed(measured()) == []


@pytest.mark.parametrize(
    ("result", "bar"),
    [
        (measured(rps=740.0), ["requests/s"] * 3),
        (measured(failures=1), ["answers other than 200"]),
        (replace(measured(), codec_us={"request headers": 10.1}), ["codec"]),
        (replace(measured(), decision_us={2048: 61.0}), ["decision"]),
        (replace(measured(), queued=QueuedBytes(python=20_001, resident=20_001)), ["memory"]),
    ],
)
def test_each_bar_can_be_missed(result: Measured, bar: list[str]) -> None:
    assert missed(result) == bar


def test_the_document_has_the_keys_that_scripts_read() -> None:
    read = json.loads(json.dumps(document(measured())))
    assert [(path["name"], path["mode"], path["body_bytes"]) for path in read["paths"][-3:]] == [
        (name, "body", 131_072) for name in NAMES
    ]
    assert {"name", "mode", "body_bytes", "p50_ms", "p99_ms", "rps"} <= read["paths"][0].keys()
    assert read["paths"][0]["mode"] == "headers"
    assert (read["paths"][2]["rps"], read["paths"][2]["p50_ms"]) == (900.0, 2.0)
    assert (read["codec_us"], read["decision_us_p50"], read["queued_request_bytes"]) == (6.0, 40.0, 11_000)


def test_the_table_tells_the_share_of_bare_per_round() -> None:
    assert "**90%** (90% to 90%)" in tables(measured())


def soaked() -> Soak:
    kinds: Counter[str] = Counter({leaving: 25 for leaving in Leaving if leaving is not Leaving.NEVER})
    return Soak(
        requests=1000,
        fates=Counter({"200": 900, "left": 100}),
        left=kinds,
        rss_settled=100,
        rss_end=104,
        remaining={"in_use": 0, "waiting": 0, "ghosts": 0.0, "streams": 0},
        decided=Counter({"admitted": 950, "client-gone": 40}),
    )


def _lose_one(soak: Soak) -> None:
    soak.fates = Counter({"200": 899, "late": 1, "left": 100})


def _grow(soak: Soak) -> None:
    soak.rss_end = 105


def _keep_a_ghost(soak: Soak) -> None:
    soak.remaining["ghosts"] = 0.5


def _let_pass(soak: Soak) -> None:
    soak.slipped_by = 1


def _log_an_error(soak: Soak) -> None:
    soak.error_lines = ["extproc: Traceback"]


def _nobody_leaves_the_queue(soak: Soak) -> None:
    soak.decided = Counter({"admitted": 1000})


def test_a_clean_soak_meets_all_bars() -> None:
    assert all(soaked().bars().values())


@pytest.mark.parametrize("spoil", [_lose_one, _grow, _keep_a_ghost, _let_pass, _log_an_error, _nobody_leaves_the_queue])
def test_each_bar_of_the_soak_can_be_missed(spoil: Callable[[Soak], None]) -> None:
    soak = soaked()
    spoil(soak)
    assert list(soak.bars().values()).count(False) == 1


@pytest.mark.parametrize("size", [0, 2048, 131_072])
def test_bodies_have_the_size_they_are_named_for(size: int) -> None:
    body = chat_body(size)
    assert len(body) == size
    assert http_request(body).endswith(body)
    assert size == 0 or json.loads(body)["messages"][0]["role"] == "user"


def test_a_body_too_small_for_a_request_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least"):
        chat_body(10)
