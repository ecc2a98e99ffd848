"""What lies where: in the repository, in the wheel, and in the pages made from the code."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import fields

from extproc.config.checks import RANGES
from extproc.config.describe import render, sections
from extproc.files import shipped

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["envoy", "redis"])
def test_folders_named_like_packages_hold_no_python(folder: str) -> None:
    """With an `__init__.py` they would shadow the packages `envoy` and `redis` for everything run from the root."""
    assert list((ROOT / folder).rglob("*.py")) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_carries_envoy_and_redis_files(wheel: Path) -> None:
    for folder in ("envoy", "redis"):
        ours = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        carried = wheel / "extproc" / "_files"
        assert {path.relative_to(carried) for path in (carried / folder).rglob("*") if path.is_file()} == ours
        assert ours


def test_the_wheel_carries_the_record_of_the_tuning(wheel: Path) -> None:
    tuned = Path("extproc", "sim", "tuned.json")
    assert (wheel / tuned).read_bytes() == (ROOT / tuned).read_bytes()


def test_an_installed_package_finds_its_files(wheel: Path, tmp_path: Path) -> None:
    code = (
        "from extproc.files import envoy_yaml, shipped; print(shipped('redis/redis.conf')); print(envoy_yaml(), end='')"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    place, _, text = done.stdout.partition("\n")
    assert place == str(wheel / "extproc/_files/redis/redis.conf")
    assert text == (ROOT / "envoy/envoy.yaml").read_text()


def test_a_file_that_does_not_ship_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        shipped("envoy/nowhere.yaml")


def test_the_policy_reference_is_current() -> None:
    """Make it so: `python -m extproc.config.describe > docs/policy.md`."""
    assert (ROOT / "docs/policy.md").read_text(encoding="utf-8") == render()


def test_every_knob_says_what_it_does() -> None:
    knobs = [knob for section in sections() for knob in section.knobs]
    assert len(knobs) > 50
    assert all(knob.effect for knob in knobs)


def test_every_range_belongs_to_a_knob() -> None:
    for struct, name in RANGES:
        assert name in {field.name for field in fields(struct)}


async def test_redis_conf_is_accepted_and_in_force(tmp_path: Path) -> None:
    from redis.asyncio import Redis

    from tests.support import valkey

    socket = tmp_path / "r.sock"
    options = ["--port", "0", "--unixsocket", str(socket), "--requirepass", "secret", "--dir", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            valkey.binary(), str(shipped("redis/redis.conf")), *options, stdout=log, stderr=log
        )
    client = Redis(unix_socket_path=str(socket), password="secret", decode_responses=True)
    try:
        async with asyncio.timeout(10):
            while not socket.exists():
                assert process.returncode is None, (tmp_path / "log").read_text()
                await asyncio.sleep(0.01)
            settings = await client.config_get("*")
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["maxmemory"] == str(64 << 20)
        assert (settings["save"], settings["appendonly"], settings["protected-mode"]) == ("", "no", "yes")
    finally:
        await client.aclose()
        process.terminate()
        await process.wait()
