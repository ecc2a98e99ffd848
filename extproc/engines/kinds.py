"""Which adapter reads which kind of engine."""

from __future__ import annotations

from collections.abc import Callable

from extproc.config import EngineKind
from extproc.engines.sampler import Adapter
from extproc.engines.vllm import Vllm

ADAPTERS: dict[EngineKind, Callable[[], Adapter]] = {EngineKind.VLLM: Vllm}
