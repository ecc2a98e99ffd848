"""The benchmark's parts against each other, briefly: that they run, and that a short soak leaves nothing behind."""

from __future__ import annotations

from bench.gateway import gateways, load
from bench.report import NAMES
from bench.soak import soak


async def test_all_three_gateways_answer_the_load_generator() -> None:
    async with gateways() as stacks:
        for name in NAMES:
            result = await load(stacks[name], connections=4, seconds=0.2, body_bytes=131_072)
            assert result["failures"] == 0
            assert result["rps"] > 0
            assert 0 < result["p50_ms"] <= result["p99_ms"]


async def test_a_short_soak_leaves_nothing_behind() -> None:
    seen = await soak(400, seed=1)
    assert seen.fates["200"] == 400 - sum(seen.left.values())
    assert not any(seen.remaining.values()), seen.remaining
    assert seen.slipped_by == 0
    assert seen.error_lines == []
    assert seen.rss_end > 0
