"""Logging to stderr, as text for people or JSON for machines; the standard library's loggers go the same way.

Call `setup()` once, before the first log line. A request's id is bound with `structlog.contextvars.bound_contextvars(
request_id=...)` and then stands on every line written inside. Nothing here may ever print a credential: see `_mask`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from enum import StrEnum
from typing import TextIO

import structlog

MASKED = "***"

_SECRET_KEYS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "password", "secret"}
)
_SECRET_TEXT = re.compile(
    r"(?P<lead>\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}"  # an Authorization value quoted in a message
    r"|\bsk-[\w-]{8,}"  # an API key as OpenAI and Anthropic write it
    r"|(?P<url>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)",  # the password in a URL
    re.IGNORECASE,
)

Event = MutableMapping[str, object]


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def setup(log_format: LogFormat = LogFormat.TEXT, *, level: str = "info", stream: TextIO | None = None) -> None:
    """`level`: debug, info, warning or error. `stream`: stderr by default. A second call replaces the first."""
    out = sys.stderr if stream is None else stream
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format, out)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)  # its debug line on every start tells nothing


def _renderers(log_format: LogFormat, out: TextIO) -> list[structlog.typing.Processor]:
    """Tracebacks become text before masking, so that a secret in an exception's message is masked too."""
    if log_format is LogFormat.JSON:
        return [structlog.processors.format_exc_info, _mask, structlog.processors.JSONRenderer()]
    console = structlog.dev.ConsoleRenderer(colors=out.isatty())
    return [structlog.processors.format_exc_info, _mask, console]


def _mask(_logger: object, _method: str, event: Event) -> Event:
    return {key: _masked(key, value) for key, value in event.items()}


def _masked(key: str, value: object) -> object:
    """Values of telling keys go whole, whatever their type; in other text only what looks like a credential."""
    if key.lower().replace("_", "-") in _SECRET_KEYS:
        return MASKED
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {name: _masked(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", inner) for inner in value]
    return value


def mask_text(text: str) -> str:
    """`text` with bearer tokens, API keys and URL passwords replaced by stars."""

    def stars(match: re.Match[str]) -> str:
        return f"{match['lead'] or match['url'] or ''}{MASKED}"

    return _SECRET_TEXT.sub(stars, text)
