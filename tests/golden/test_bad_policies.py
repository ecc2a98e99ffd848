"""The exact messages for bad policies, one case after the other in `bad_policies.txt`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extproc.config import load_policy, parse_policy
from extproc.errors import ConfigError

_BLOCK = re.compile(r"=== (?P<name>.*)\n(?P<policy>(?:.*\n)*?)>>>\n(?P<messages>(?:.*\n?)*)")


def _cases() -> list[tuple[str, str, str]]:
    """Name, policy and expected messages of each block `=== name`, policy, `>>>`, messages."""
    text = Path(__file__).with_name("bad_policies.txt").read_text(encoding="utf-8")
    blocks = [_BLOCK.fullmatch(f"=== {block}") for block in re.split(r"(?m)^=== ", text)[1:]]
    assert all(blocks)
    return [(block["name"], block["policy"], block["messages"].rstrip("\n")) for block in blocks if block]


@pytest.mark.parametrize(("policy", "messages"), [pytest.param(p, m, id=name) for name, p, m in _cases()])
def test_a_bad_policy_gets_exactly_these_messages(policy: str, messages: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_policy(policy)
    assert str(raised.value) == messages


def test_every_problem_keeps_its_parts_for_programs() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_policy("queues:\n  - {priority: 0, name: a, maxQueueSize: -1, timeout: 1s}\n", "p.yaml")
    (problem,) = raised.value.problems
    assert (raised.value.file, problem.path, problem.line) == ("p.yaml", "queues[0].maxQueueSize", 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"queues: [\xff]", "not UTF-8 text: byte 9 is 0xff"),
        (b"\x00", "not valid YAML: unacceptable character #x0000: special characters are not allowed"),
        (b"[" * 2_000, "nested too deeply: not a policy"),
        (b"# " + b"x" * (1 << 20), "larger than 1 MiB: not a policy"),
    ],
    ids=["not UTF-8", "control character", "deep", "huge"],
)
def test_a_file_that_is_no_text_for_us_is_a_config_error(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load_policy(str(file))
    assert str(raised.value).startswith(f"{file}: {message}")


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load_policy(missing)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_policy(str(tmp_path))


def test_aliases_do_not_blow_up_memory() -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    with pytest.raises(ConfigError, match="unknown key"):
        parse_policy("a0: &a0 [x]\n" + "\n".join(levels) + "\npools: *a29\n")
