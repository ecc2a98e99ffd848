"""What the demo reads from the engines' own metrics, and that nothing read is an error and not a zero."""

from __future__ import annotations

import pytest

from extproc.sim.processes import StackError
from extproc.sim.watch import Reading, parse_reading, saturated_tokens_per_s, summarise_readings

TEXT = """# HELP vllm:kv_cache_usage_perc KV-cache usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} %s
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
"""


def reading(at: float, *, saturated: bool = True, per_s: float = 100.0) -> Reading:
    return Reading(at=at, kv_usage=(0.1 * at, 0.2), preemptions=at, generated_tokens=per_s * at, saturated=saturated)


READINGS = [reading(float(at)) for at in range(6)]


def test_one_text_per_engine_becomes_one_reading() -> None:
    reading = parse_reading(7.0, [TEXT % "0.25", TEXT % "0.75"])
    assert reading == Reading(at=7.0, kv_usage=(0.25, 0.75), preemptions=6.0, generated_tokens=3000.0, saturated=True)
    idle = TEXT.replace("} 2.0", "} 0.0") % "0.5"
    assert not parse_reading(7.0, [TEXT % "0.25", idle]).saturated


def test_a_missing_series_is_no_zero() -> None:
    with pytest.raises(KeyError):
        parse_reading(0.0, [(TEXT % "0.5").replace("num_preemptions", "num_other")])


def test_the_mean_is_of_the_window_and_the_preemptions_of_the_whole_run() -> None:
    engines = summarise_readings(READINGS, 1.0, 3.0)
    assert engines.kv_usage_mean == pytest.approx(0.2)
    assert engines.kv_usage_max == pytest.approx(0.5)
    assert engines.preemptions == 5


def test_capacity_is_what_saturated_engines_make() -> None:
    assert saturated_tokens_per_s(READINGS, 0.9, 4.2) == pytest.approx(100.0)
    mixed = [*READINGS[:5], reading(6.0, saturated=False, per_s=900.0), reading(7.0, saturated=False)]
    assert saturated_tokens_per_s(mixed, 0.0, 9.0) == pytest.approx(100.0)


def test_a_short_saturation_is_no_measure() -> None:
    assert saturated_tokens_per_s(READINGS, 0.9, 3.1) is None
    assert saturated_tokens_per_s([], 0.0, 9.0) is None


def test_engines_that_never_answered_are_told() -> None:
    with pytest.raises(StackError, match="could not be read"):
        summarise_readings([], 0.0, 1.0)
