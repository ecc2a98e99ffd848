"""A helper process with a folder for its log, ended with the block."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from extproc.sim.processes import Child, start_child, stop_children

ROOT = Path(__file__).parents[1]


@asynccontextmanager
async def child_process(name: str, *argv: str) -> AsyncIterator[Child]:
    """`argv[0]` is an absolute path. `bench` and `extproc` of this tree can be imported."""
    with tempfile.TemporaryDirectory(prefix=f"extproc-{name}-") as folder:
        child = await start_child(name, argv, folder=Path(folder), env={"PYTHONPATH": str(ROOT)})
        try:
            yield child
        finally:
            await stop_children([child])
