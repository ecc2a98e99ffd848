"""From YAML text to a `Policy`, or to a `ConfigError` that names every problem."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from extproc.config.schema import Bytes, Policy, Seconds
from extproc.errors import ConfigError, Problem
from extproc.model import Priority


def _convert(kind: type, value: object) -> object:
    if kind is Seconds:
        text = str(value)
        for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
            if text.endswith(unit):
                return Seconds(float(text[: -len(unit)]) * factor)
        return Seconds(float(text))
    if kind is Bytes:
        return Bytes(int(str(value)))
    if kind is Priority:
        return Priority(int(str(value).removeprefix("P")))
    raise NotImplementedError(kind)


def parse_policy(text: str, file: str = "policy.yaml") -> Policy:
    try:
        return msgspec.convert(yaml.safe_load(text) or {}, Policy, dec_hook=_convert)
    except (msgspec.ValidationError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(file, [Problem("", str(error))]) from error


def load_policy(path: str) -> Policy:
    return parse_policy(Path(path).read_text(encoding="utf-8"), path)
