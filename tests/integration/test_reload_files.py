"""The reloader over a real folder: whatever is done to the file, the last good policy stays, and the last one comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from extproc import reload
from extproc.config import Policy, load_policy, parse_policy
from extproc.errors import ConfigError, Problem
from extproc.reload import Reloader
from tests.support.eventually import eventually
from tests.support.mounted import Mounted

LOOK_EVERY_S = 0.005


def text(size: int) -> str:
    """A policy that can be told by its number; not its shortest form, so that half of it is no policy."""
    return f"queues:\n  - {{priority: P0, name: first,\n     maxQueueSize: {size}, timeout: 8s}}\n"


class Reloading:
    """A running reloader, what it published, and what can be done to its file."""

    def __init__(self, file: Path, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self.file = file
        self.published: list[Policy] = []
        first = load_policy(str(file))
        self.reloader = Reloader(str(file), first, publish=self.published.append, look_every_s=look_every_s)

    @property
    def sizes(self) -> list[int]:
        return [policy.queues[0].max_queue_size for policy in self.published]

    @property
    def error(self) -> str | None:
        return self.reloader.snapshot.last_error

    def replace(self, content: str | bytes) -> None:
        """As editors do it."""
        new = self.file.with_name(".policy.yaml.swp")
        new.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.rename(new, self.file)

    async def looks(self, number: int = 5) -> None:
        """Long enough for so many looks: nothing is to happen, so there is nothing to wait for."""
        await asyncio.sleep(number * 2 * LOOK_EVERY_S)


@pytest_asyncio.fixture
async def reloading(tmp_path: Path) -> AsyncIterator[Reloading]:
    file = tmp_path / "policy.yaml"
    file.write_text(text(0))
    made = Reloading(file)
    task = asyncio.create_task(made.reloader.run())
    yield made
    assert not task.done()
    task.cancel()


async def test_each_of_a_hundred_configmap_swaps_is_seen(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path, text(0))
    reloading = Reloading(mounted.file)
    task = asyncio.create_task(reloading.reloader.run())
    for version in range(1, 101):
        mounted.swap(text(version))
        await eventually(lambda version=version: reloading.sizes[-1:] == [version])  # type: ignore[misc]
    assert reloading.sizes == list(range(1, 101)), "each once"
    assert reloading.error is None
    task.cancel()


async def test_a_burst_of_writes_is_one_reload(reloading: Reloading) -> None:
    await reloading.looks()
    for version in range(1, 51):
        reloading.file.write_text(text(version))
    await eventually(lambda: reloading.sizes)
    await reloading.looks()
    assert reloading.sizes == [50]


async def test_a_file_written_piece_by_piece_is_read_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Much of it is a valid policy without the rest: that it parses is no proof that it is whole."""
    monkeypatch.setattr(reload, "MOST_RESTLESS_LOOKS", 1000)  # however slow this machine writes
    file = tmp_path / "policy.yaml"
    file.write_text(text(0))
    reloading = Reloading(file, look_every_s=0.1)
    task = asyncio.create_task(reloading.reloader.run())
    whole = text(7) + "# " + 60 * "-" + "\nbody: {maxBytes: 4MiB}\n"
    with capture_logs() as logs:
        with file.open("w") as out:
            for letter in whole:
                out.write(letter)
                out.flush()
                await asyncio.sleep(0.001)
        await eventually(lambda: reloading.published)
    assert reloading.published == [parse_policy(whole)]
    assert [line["event"] for line in logs] == ["policy in force"], "nothing was refused meanwhile"
    task.cancel()


async def test_the_same_policy_in_other_words_is_no_reload(reloading: Reloading) -> None:
    before = reloading.reloader.snapshot
    for words in (text(0), "# a comment\n" + text(0), text(0).replace("8s", "8000ms")):
        reloading.replace(words)
        await reloading.looks()
    assert reloading.published == []
    assert reloading.reloader.snapshot == before


def empty(reloading: Reloading) -> None:
    reloading.file.write_text("")


def truncated(reloading: Reloading) -> None:
    reloading.file.write_text(text(0)[:40])


def deleted(reloading: Reloading) -> None:
    reloading.file.unlink()


def folder(reloading: Reloading) -> None:
    reloading.file.unlink()
    reloading.file.mkdir()


def pipe(reloading: Reloading) -> None:
    reloading.file.unlink()
    os.mkfifo(reloading.file)


def dangling(reloading: Reloading) -> None:
    reloading.file.unlink()
    reloading.file.symlink_to("..data/policy.yaml")


def invalid(reloading: Reloading) -> None:
    reloading.replace("queues: [{priority: P9}]")


def binary(reloading: Reloading) -> None:
    reloading.replace(b"\xff\xfe\x00")


DAMAGE: list[tuple[Callable[[Reloading], None], str]] = [
    (empty, "empty file"),
    (truncated, "not valid YAML"),
    (deleted, "cannot be read: No such file or directory"),
    (folder, "not a regular file"),
    (pipe, "not a regular file"),
    (dangling, "cannot be read: No such file or directory"),
    (invalid, "queues[0].priority"),
    (binary, "not UTF-8"),
]


@pytest.mark.parametrize(("damage", "says"), DAMAGE, ids=[damage.__name__ for damage, _ in DAMAGE])
async def test_a_damaged_file_leaves_the_last_good_policy_in_force(
    reloading: Reloading, damage: Callable[[Reloading], None], says: str
) -> None:
    with capture_logs() as logs:
        reloading.replace(text(1))
        await eventually(lambda: reloading.published)
        in_force = reloading.reloader.snapshot
        damage(reloading)
        await eventually(lambda: reloading.error)
        assert says in str(reloading.error)
        await reloading.looks()
        assert reloading.reloader.snapshot.hash == in_force.hash
        if not reloading.file.is_file() and not reloading.file.is_symlink() and reloading.file.exists():
            reloading.file.rmdir() if reloading.file.is_dir() else reloading.file.unlink()
        reloading.replace(text(1))
        await eventually(lambda: reloading.error is None)
        assert reloading.reloader.snapshot == in_force, "it never went out of force"
        reloading.replace(text(2))
        await eventually(lambda: reloading.sizes == [1, 2])
    assert [line["event"] for line in logs] == [
        "policy in force",
        "policy refused, the last good one stays in force",
        "policy file holds the policy in force",
        "policy in force",
    ]
    assert "\n" not in logs[1]["error"]


async def test_a_policy_that_cannot_be_put_in_force_is_refused_like_a_bad_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text(0))
    published: list[Policy] = []

    def publish(policy: Policy) -> None:
        if policy.queues[0].max_queue_size == 1:
            raise ConfigError("environment", [Problem("pools[a].upstreamAuth", "the variable KEY is not set")])
        published.append(policy)

    reloader = Reloader(str(file), load_policy(str(file)), publish=publish, look_every_s=LOOK_EVERY_S)
    task = asyncio.create_task(reloader.run())
    before = reloader.snapshot.hash
    file.write_text(text(1))
    await eventually(lambda: reloader.snapshot.last_error)
    assert reloader.snapshot.last_error == "environment: pools[a].upstreamAuth: the variable KEY is not set"
    assert reloader.snapshot.hash == before
    file.write_text(text(2))
    await eventually(lambda: published)
    assert reloader.snapshot.last_error is None
    task.cancel()


async def test_whoever_asks_is_answered_also_when_nothing_has_changed(reloading: Reloading) -> None:
    await reloading.looks()
    with capture_logs() as logs:
        reloading.reloader.read_now()
        await eventually(lambda: logs)
    assert [line["event"] for line in logs] == ["policy file holds the policy in force"]
    assert reloading.published == []


async def test_a_policy_from_a_pipe_is_not_read_twice(tmp_path: Path) -> None:
    file = tmp_path / "pipe"
    os.mkfifo(file)
    published: list[Policy] = []
    async with asyncio.timeout(5):
        await Reloader(str(file), parse_policy("{}"), publish=published.append).run()
    assert published == []
