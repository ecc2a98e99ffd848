"""What a request keeps in memory while it waits."""

from __future__ import annotations

import tracemalloc

from extproc.sim.virtual_time import run_virtual
from tests.flow.test_wire_stream import Driver

BODY_BYTES = 1 << 20


def test_a_body_is_forgotten_while_its_request_waits() -> None:
    """Two copies of it stayed in the frames below the wait, outside `maxQueueBytes`."""

    async def main() -> int:
        driver = Driver(limit=1)
        await driver.occupy()
        queued = driver.open()
        await queued.headers(length=BODY_BYTES)
        tracemalloc.start()
        await queued.body(b'{"model": "' + b"x" * BODY_BYTES + b'"}')
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most > BODY_BYTES, "the body has been here"
        assert driver.spine.waiting == 1
        return held

    assert run_virtual(main()) < BODY_BYTES / 4
