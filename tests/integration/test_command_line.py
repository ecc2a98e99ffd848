"""The commands as an operator types them: what they print, and with which exit code they end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from extproc import __version__
from extproc.files import shipped
from tests.support.valkey import until

ENVOY_YAML = str(shipped("envoy/envoy.yaml"))


def extproc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "extproc", *arguments], capture_output=True, text=True, timeout=20, check=False
    )


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text("pools: [{name: main}]\n", encoding="utf-8")
    return file


def test_version() -> None:
    assert extproc("--version").stdout == f"extproc {__version__}\n"


def test_check_says_ok(policy: Path) -> None:
    done = extproc("check", str(policy), ENVOY_YAML)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{policy}: policy ok\n" in done.stdout
    assert f"{ENVOY_YAML}: envoy ok\n" in done.stdout


def test_check_names_file_line_and_expectation_and_ends_with_1(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "queues:\n  - {priority: 0, name: a, maxQueueSize: 1, timeout: fast}\nqueus: []\n", encoding="utf-8"
    )
    done = extproc("check", str(file))
    assert done.returncode == 1
    assert f"{file}:2: error: queues[0].timeout: " in done.stdout
    assert "did you mean" in done.stdout


def test_check_of_a_file_that_is_not_there_ends_with_1(tmp_path: Path) -> None:
    done = extproc("check", str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert "none.yaml" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_serve_with_a_bad_policy_says_why_and_ends_with_1(policy: Path) -> None:
    policy.write_text("pools: [{nam: main}]\n", encoding="utf-8")
    done = extproc("serve", "--policy", str(policy))
    assert done.returncode == 1
    assert f"{policy}:1: pools[0].nam: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--listen", "--admin-listen"])
def test_serve_on_a_port_that_is_taken_says_so_and_ends_with_1(policy: Path, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = "--admin-listen" if flag == "--listen" else "--listen"
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = extproc("serve", "--policy", str(policy), flag, address, other, "127.0.0.1:0")
    assert done.returncode == 1
    assert address in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "--policy", "x", "--log-format", "xml"],
        ["serve", "--policy", "x", "--log-level", "loud"],
        ["engine", "--scheduling", "random"],
        ["engine", "--kv-tokens", "none"],
        ["demo", "--seconds", "0"],
        ["check"],
        ["nonsense"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    done = extproc(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_simulate_names_what_there_is() -> None:
    for arguments, named in (
        (("everything",), "sweep"),
        (("all", "--controller", "magic"), "fixed"),
        (("all", "--seeds", "x"), "11-15"),
    ):
        done = extproc("simulate", *arguments)
        assert done.returncode == 1
        assert named in done.stderr


def test_simulations_that_are_killed_leave_no_workers_behind() -> None:
    command = [sys.executable, "-m", "extproc", "simulate", "sweep", "--seeds", "1-5", "--jobs", "2"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    try:
        until(lambda: sum(worked_s(pid) > 1.5 for pid in children.read_text().split()) == 2, within_s=30)
        workers = [Path(f"/proc/{pid}") for pid in children.read_text().split()]
    finally:
        running.kill()
        running.wait()
    until(lambda: not any(worker.exists() for worker in workers))


def worked_s(pid: str) -> float:
    """Processor time so far. A worker that imports what it needs has used less than a second and a half."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
