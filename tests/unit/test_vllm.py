"""What vLLM's series mean, over its versions and deployments."""

from __future__ import annotations

import pytest

from extproc.engines.sampler import Reading
from extproc.engines.vllm import Vllm
from extproc.errors import BadMetrics

VLLM = Vllm()


def _read(text: str, content_type: str = "text/plain; version=0.0.4") -> Reading:
    return VLLM.read("\n".join(line.strip() for line in text.strip().splitlines()), content_type)


MINIMAL = """
    vllm:num_requests_running{engine="0",model_name="m"} 3
    vllm:num_requests_waiting{engine="0",model_name="m"} 2
    vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


def test_the_least_there_must_be() -> None:
    assert _read(MINIMAL) == Reading(kv_usage=0.25, running=3, waiting=2)


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("num_requests_running", "vllm:num_requests_running"),
        ("num_requests_waiting", "vllm:num_requests_waiting"),
        ("kv_cache_usage_perc", "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc"),
    ],
)
def test_a_missing_required_series_is_named(gone: str, named: str) -> None:
    with pytest.raises(BadMetrics, match=f"series missing: {named}$"):
        _read(MINIMAL.replace(gone, "renamed"))


@pytest.mark.parametrize("nonsense", ["", "<html>busy</html>", '{"error": "busy"}', "\x00\xff" * 100])
def test_nonsense_is_bad_metrics(nonsense: str) -> None:
    with pytest.raises(BadMetrics, match=r"running.*waiting.*usage"):
        _read(nonsense)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-0.1", "1.01", "many"])
def test_a_usage_out_of_range_is_missing(value: str) -> None:
    assert _read(MINIMAL.replace("0.25", value)).kv_usage is None


def test_the_old_name_of_the_usage_and_both() -> None:
    assert _read(MINIMAL.replace("kv_cache", "gpu_cache")).kv_usage == 0.25
    assert _read(MINIMAL + "vllm:gpu_cache_usage_perc 0.9").kv_usage == 0.25
    assert _read(MINIMAL.replace("0.25", "NaN") + "vllm:gpu_cache_usage_perc 0.9").kv_usage == 0.9


def test_waiting_for_other_reasons_than_capacity_is_no_overload() -> None:
    by_reason = """
        vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1
        vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 9
    """
    assert _read(MINIMAL + by_reason).waiting == 1


def test_data_parallel_engines_add_up_and_usage_is_weighted_by_capacity() -> None:
    reading = _read("""
        vllm:num_requests_running{engine="0"} 3
        vllm:num_requests_running{engine="1"} 4
        vllm:num_requests_waiting{engine="0"} 2
        vllm:num_requests_waiting{engine="1"} 5
        vllm:kv_cache_usage_perc{engine="0"} 0.2
        vllm:kv_cache_usage_perc{engine="1"} 0.8
        vllm:cache_config_info{engine="0",kv_cache_size_tokens="3000"} 1
        vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="62",kv_cache_size_tokens="1000"} 1
        vllm:generation_tokens_total{engine="0"} 10
        vllm:generation_tokens_total{engine="1"} 20
    """)
    assert (reading.running, reading.waiting, reading.kv_capacity_tokens) == (7, 7, 4000)
    assert reading.kv_usage == pytest.approx(0.2 * 0.75 + 0.8 * 0.25)
    assert reading.generation_tokens == 30


def test_usage_is_a_plain_mean_where_a_capacity_is_not_known() -> None:
    reading = _read("""
        vllm:num_requests_running 1
        vllm:num_requests_waiting 0
        vllm:kv_cache_usage_perc{engine="0"} 0.2
        vllm:kv_cache_usage_perc{engine="1"} 0.8
        vllm:cache_config_info{engine="0",kv_cache_size_tokens="3000"} 1
    """)
    assert reading.kv_usage == pytest.approx(0.5)


def test_capacity_of_older_versions_is_blocks_times_size() -> None:
    info = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",x="None"} 1.0'
    assert _read(MINIMAL + info).kv_capacity_tokens == 1600
    assert _read(MINIMAL + info.replace('"100"', '"None"')).kv_capacity_tokens is None


def test_a_sum_with_a_missing_part_is_missing() -> None:
    text = MINIMAL + 'vllm:num_preemptions_total{engine="0"} 5\nvllm:num_preemptions_total{engine="1"} NaN'
    assert _read(text).preemptions is None


@pytest.mark.parametrize("suffix", ["", "_total"])
def test_counters_with_and_without_total(suffix: str) -> None:
    text = MINIMAL + f"vllm:prompt_tokens{suffix} 11\nvllm:generation_tokens{suffix} 22\nvllm:num_preemptions{suffix} 3"
    reading = _read(text)
    assert (reading.prompt_tokens, reading.generation_tokens, reading.preemptions) == (11, 22, 3)


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_time_per_token_under_both_names(name: str) -> None:
    reading = _read(
        MINIMAL
        + f"""
        vllm:{name}_bucket{{le="0.1"}} 4
        vllm:{name}_bucket{{le="+Inf"}} 5
        vllm:{name}_sum 0.5
        vllm:{name}_count 5
    """
    )
    assert reading.tpot is not None
    assert reading.tpot.mean == pytest.approx(0.1)
    assert reading.tpot.bounds == (0.1, float("inf"))
    assert reading.tpot.up_to == (4.0, 5.0)


def test_openmetrics_of_the_rust_front_end() -> None:
    text = "# TYPE vllm:prompt_tokens counter\n" + MINIMAL + 'vllm:prompt_tokens_total 7 # {id="x"} 1\n# EOF'
    assert _read(text, "application/openmetrics-text; version=1.0.0").prompt_tokens == 7


@pytest.mark.parametrize("name", ["num_requests_running", "num_requests_waiting", "generation_tokens_total"])
def test_values_that_no_engine_can_have_are_missing_and_do_not_add_up_to_infinity(name: str) -> None:
    """Two of 1.7e308 are infinite together, which ended the service."""
    reading = _read(
        f"""
        vllm:num_requests_running{{engine="0"}} 3
        vllm:num_requests_waiting{{engine="0"}} 2
        vllm:kv_cache_usage_perc{{engine="0"}} 0.25
        vllm:generation_tokens_total{{engine="0"}} 7
        vllm:{name}{{engine="1"}} 1.7e308
        vllm:{name}{{engine="2"}} 1.7e308
    """
    )
    values = {
        "num_requests_running": reading.running,
        "num_requests_waiting": reading.waiting,
        "generation_tokens_total": reading.generation_tokens,
    }
    assert values[name] is None
