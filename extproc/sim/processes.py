"""Child processes that never outlive us: started, logged to a file, ended with SIGTERM and then SIGKILL.

They run in their own session, so that a Ctrl-C at the terminal reaches only us, and we end them in order; where the
kernel can (Linux), it kills them when we are killed.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from extproc.errors import ExtprocError

TAIL_LINES = 15
TERM_GRACE_S = 2.0
"""From SIGTERM to SIGKILL."""
_MOST_FILES = 65_536

# Runs in the child before the program: a hook in our own process (preexec_fn) is unsafe beside threads.
_LAUNCH = """
import ctypes, os, signal, sys
try:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
except (AttributeError, OSError):
    pass
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class StackError(ExtprocError):
    """The stack cannot start, or lost a part. The message is for people and carries the last lines of a log."""


def raise_file_limit() -> None:
    """Lets this process and its children to come open as many files as the system allows: an open-loop overload holds a
    thousand connections, in Envoy twice that, and many systems begin at 1024 in all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Child:
    """One process of the stack. `name` also names its log file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, *, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def send_signal(self, which: signal.Signals) -> None:
        """For tests: SIGSTOP, SIGKILL and friends. No error where the process is gone already."""
        if self.running:
            self.process.send_signal(which)

    def last_words(self) -> str:
        """The last lines of its log, indented."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"

    def obituary(self) -> str:
        """Who died, how, and its last words."""
        code = self.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exited with {code}"
        return f"{self.name} {how}; its last words:\n{self.last_words()}"


async def start_child(name: str, argv: Sequence[str], *, folder: Path, env: Mapping[str, str] | None = None) -> Child:
    """Starts `argv` (its first item an absolute path) with its output in `folder`/`name`.log."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    return Child(name, process, log=log)


async def stop_children(children: Iterable[Child]) -> None:
    """Ends all at once: SIGTERM, then SIGKILL for those that stay; a stopped process (SIGSTOP) is woken to hear it."""
    alive = [child for child in children if child.running]
    try:
        for child in alive:
            child.send_signal(signal.SIGTERM)
            child.send_signal(signal.SIGCONT)
        async with asyncio.timeout(TERM_GRACE_S):
            for child in alive:
                await child.process.wait()
    except TimeoutError:
        pass
    finally:
        for child in alive:
            child.send_signal(signal.SIGKILL)
    for child in alive:
        await child.process.wait()


async def first_death(children: Iterable[Child]) -> Child:
    """Returns when any of them has ended."""
    waits = {asyncio.ensure_future(child.process.wait()): child for child in children}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return waits[done.pop()]
