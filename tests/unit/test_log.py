"""Log lines: both formats, everything through one door, no credential gets out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from extproc.log import LogFormat, mask_text, setup


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, asyncio_level = root.handlers[:], root.level, logging.getLogger("asyncio").level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(asyncio_level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_has_one_object_a_line_with_level_time_and_logger() -> None:
    out = io.StringIO()
    setup(LogFormat.JSON, stream=out)
    structlog.get_logger("extproc.app").info("listening", address="127.0.0.1:50051")
    (line,) = lines(out)
    assert (line["event"], line["level"], line["logger"]) == ("listening", "info", "extproc.app")
    assert line["address"] == "127.0.0.1:50051"
    assert str(line["timestamp"]).endswith("Z")


def test_the_standard_library_goes_the_same_way() -> None:
    out = io.StringIO()
    setup(LogFormat.JSON, stream=out)
    logging.getLogger("aiohttp.server").error("bad %s", "request")
    (line,) = lines(out)
    assert (line["event"], line["level"], line["logger"]) == ("bad request", "error", "aiohttp.server")


def test_a_bound_request_id_stands_on_every_line_inside() -> None:
    out = io.StringIO()
    setup(LogFormat.JSON, stream=out)
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger().warning("inside")
        logging.getLogger("grpc").warning("inside too")
    structlog.get_logger().warning("outside")
    assert [line.get("request_id") for line in lines(out)] == ["r-1", "r-1", None]


def test_text_is_for_people() -> None:
    out = io.StringIO()
    setup(LogFormat.TEXT, stream=out)
    structlog.get_logger("extproc.app").info("listening", address="127.0.0.1:50051")
    assert "listening" in out.getvalue()
    assert "address=127.0.0.1:50051" in out.getvalue()
    assert "\x1b" not in out.getvalue(), "no colours into a file"


def test_lines_below_the_level_are_left_out() -> None:
    out = io.StringIO()
    setup(LogFormat.JSON, level="warning", stream=out)
    structlog.get_logger("a").info("quiet")
    logging.getLogger("b").info("quiet")
    structlog.get_logger("a").warning("loud")
    assert [line["event"] for line in lines(out)] == ["loud"]


def test_a_second_setup_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup(LogFormat.JSON, stream=first)
    setup(LogFormat.JSON, stream=second)
    structlog.get_logger().info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_credentials_never_get_out(log_format: LogFormat) -> None:
    out = io.StringIO()
    setup(log_format, stream=out)
    log = structlog.get_logger()
    log.info("headers", headers={"Authorization": "Bearer abcdefgh12345678", "x-api-key": "hush-hush", "accept": "yes"})
    log.info("asked", password="hush-hush", url="redis://user:hush-hush@redis:6379/0", api_key=["hush-hush"])
    log.info("quoted 'Authorization: Bearer hush-hush-hush'", values=("sk-proj-hush-hush",))
    try:
        raise ValueError("cannot reach redis://:hush-hush@redis:6379")
    except ValueError:
        log.exception("failed")
    assert "hush" not in out.getvalue()
    assert "abcdefgh12345678" not in out.getvalue()
    assert "yes" in out.getvalue()
    assert "redis:6379" in out.getvalue()


def test_words_that_only_look_like_secrets_stay() -> None:
    text = "pool llama: 4096 tokens, basic mode, bearer of news, http://engine-1:8000/metrics, risk-assessment-task"
    assert mask_text(text) == text
