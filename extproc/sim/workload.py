"""Seeded traffic: who asks when, for how much. Pure: the same spec gives the same requests, to the byte.

Output lengths are not drawn here: only the engine knows them, as in life. `max_tokens` is the one thing a client says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import msgspec

from extproc.model import PRIORITIES, Priority

BYTES_PER_TOKEN = 4
"""How the fake engine counts: prompt tokens = ceil(bytes of text / 4)."""

_TEXT = (
    "the engine keeps every token of every running request in memory and when memory is full the newest must wait "
    "so a gateway that knows what it sent and what has ended can hold the next request for a moment instead of "
    "losing the work of all the others while users who wait in front of a screen come first and batch jobs later "
)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """`rate_per_s`: requests per second over all priorities, arriving as a Poisson process for `seconds`.

    `mix`: share of each priority. Prompts are lognormal: median and sigma (of the logarithm) in tokens, cut at
    `prompt_max_tokens`, because an engine refuses what it can never hold.
    """

    rate_per_s: float
    seconds: float
    seed: int = 1
    mix: tuple[float, float, float] = (0.15, 0.35, 0.50)
    prompt_median_tokens: float = 500.0
    prompt_sigma: float = 0.7
    prompt_max_tokens: int = 4000
    max_tokens: int = 512
    model: str = "llama-3-8b"


@dataclass(frozen=True, slots=True)
class Intended:
    """One request as the client means to send it: `at_s` seconds after the start, whatever has happened by then."""

    index: int
    at_s: float
    priority: Priority
    prompt_tokens: int
    max_tokens: int
    body: bytes
    """The JSON of a streaming chat completion."""


def intended_requests(spec: WorkloadSpec) -> tuple[Intended, ...]:
    """All requests of the window, in the order of their times."""
    # One generator per question: a longer window or another mix leaves the other answers as they were.
    arrivals, classes, sizes, words = (Random(f"{spec.seed}/{part}") for part in ("arrivals", "class", "size", "text"))
    return tuple(
        _request(
            spec,
            index,
            at_s=at_s,
            priority=classes.choices(PRIORITIES, spec.mix)[0],
            prompt_tokens=_prompt_tokens(spec, sizes),
            words=words,
        )
        for index, at_s in enumerate(_poisson(spec.rate_per_s, spec.seconds, rng=arrivals))
    )


def _poisson(rate_per_s: float, seconds: float, *, rng: Random) -> Iterator[float]:
    at_s = rng.expovariate(rate_per_s)
    while at_s < seconds:
        yield at_s
        at_s += rng.expovariate(rate_per_s)


def _prompt_tokens(spec: WorkloadSpec, rng: Random) -> int:
    drawn = rng.lognormvariate(math.log(spec.prompt_median_tokens), spec.prompt_sigma)
    return max(1, min(spec.prompt_max_tokens, round(drawn)))


def _request(
    spec: WorkloadSpec, index: int, *, at_s: float, priority: Priority, prompt_tokens: int, words: Random
) -> Intended:
    body = {
        "model": spec.model,
        "messages": [{"role": "user", "content": prompt_text(prompt_tokens, label=f"{index} ", rng=words)}],
        "max_tokens": spec.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Intended(
        index=index,
        at_s=at_s,
        priority=priority,
        prompt_tokens=prompt_tokens,
        max_tokens=spec.max_tokens,
        body=msgspec.json.encode(body),
    )


def prompt_text(tokens: int, *, label: str, rng: Random) -> str:
    """ASCII text of exactly `tokens` tokens; `label` makes it unlike any other, so that no prefix cache helps."""
    size = tokens * BYTES_PER_TOKEN
    start = rng.randrange(len(_TEXT))
    around = _TEXT[start:] + _TEXT[:start]
    return (label + around * (size // len(around) + 1))[:size]
