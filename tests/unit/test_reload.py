"""When the policy file is read: tables of what it looked like, one entry a look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from extproc.reload import MOST_RESTLESS_LOOKS, Mark, Settling, mark

A, B, GONE = (1,), (2,), None


@pytest.mark.parametrize(
    ("looks", "reads"),
    [
        ([A, A, A, A], [False, True, False, False]),
        ([A, A, B, B, B], [False, True, False, True, False]),
        ([A, A, B, A, A], [False, True, False, False, False]),
        ([A, A, GONE, A], [False, True, False, False]),
        ([A, A, GONE, GONE, GONE, A, A], [False, True, False, True, False, False, True]),
        ([GONE, GONE, A, A], [True, False, False, True]),
    ],
    ids=["once", "a change", "there and back", "a moment without", "deleted and made again", "not there at first"],
)
def test_a_file_is_read_once_it_has_kept_still(looks: list[Mark], reads: list[bool]) -> None:
    settling = Settling()
    assert [settling.due(look) for look in looks] == reads


def test_a_file_that_never_keeps_still_is_read_in_the_end_and_from_then_on() -> None:
    settling = Settling()
    reads = [settling.due((look,)) for look in range(MOST_RESTLESS_LOOKS + 3)]
    assert reads == [False] * (MOST_RESTLESS_LOOKS - 1) + [True] * 4
    last = (MOST_RESTLESS_LOOKS + 2,)
    assert [settling.due(last), settling.due(last)] == [True, False], "what was read in motion is read again at rest"


def test_whoever_asks_gets_a_reading_at_once() -> None:
    settling = Settling()
    assert [settling.due(A), settling.due(A)] == [False, True]
    assert settling.due(A, forced=True)
    assert settling.due(B, forced=True)
    assert [settling.due(B), settling.due(B)] == [True, False]


def test_a_swap_of_a_symlink_above_the_file_shows(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "policy.yaml").write_text("{}")
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    file = str(tmp_path / "policy.yaml")
    before = mark(file)
    assert before == mark(file) != None  # noqa: E711
    (tmp_path / "..data_tmp").symlink_to("2")
    os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
    assert mark(file) not in {before, None}


def test_rewritten_with_the_same_size_and_mtime_shows(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("body: {maxBytes: 1}")
    before, times = mark(str(file)), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    while mark(str(file)) == before:  # the clock of the file system is coarse
        file.write_text("body: {maxBytes: 2}")
        os.utime(file, ns=times)
    assert file.stat().st_mtime_ns == times[1]


def test_a_link_to_nowhere_and_a_missing_file_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert mark(str(tmp_path / "link")) is mark(str(tmp_path / "none")) is None
