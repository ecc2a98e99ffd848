"""extproc's command line under tracemalloc: each SIGUSR1 prints how many bytes Python holds.

python -m bench.traced serve --policy FILE ...
"""

from __future__ import annotations

import signal
import tracemalloc

MARK = "traced-bytes"


def _tell(*_: object) -> None:
    print(MARK, tracemalloc.get_traced_memory()[0], flush=True)  # noqa: T201 - read by who started us


if __name__ == "__main__":
    tracemalloc.start()
    signal.signal(signal.SIGUSR1, _tell)
    from extproc.cli import app

    app()
