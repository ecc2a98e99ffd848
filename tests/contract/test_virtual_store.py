"""The simulator's store and the Lua scripts on a real server, called alike with a clock of ours: they say the same."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from redis import Redis

from extproc.account import Report
from extproc.model import NOTHING, Hold, Load, Priority
from extproc.ports import Want
from extproc.sim.virtual_time import VirtualTimeLoop
from extproc.sim.world.store import VirtualStore
from extproc.state.scripts import Script, keys_of, pack_report, pack_state
from tests.support import valkey
from tests.support.pools import limited

ASK, PUBLISH = Script("ask"), Script("publish")
KEYS = keys_of("test", "pool")
ONE = Load(100.0, 1.0)
Said = tuple[list[object], bytes]


class Both:
    """A server and its double."""

    def __init__(self, client: Redis, store: VirtualStore) -> None:
        self._client = client
        self._store = store
        client.flushall()

    def ask(self, now: float, report: Report, *, known: str = "", counters: str = "") -> list[object]:
        arguments = (repr(now), report.replica, pack_report(report), KEYS.channel, counters, known, report.policy)
        return self._alike(ASK, (KEYS.replicas, KEYS.facts, KEYS.demand), arguments)

    def publish(self, now: float, owner: str, token: int, slots: int | None = None) -> list[object]:
        packed, fingerprint = (b"", "") if slots is None else pack_state(limited(slots))
        arguments = (repr(now), owner, token, 0.7, packed, fingerprint, KEYS.channel, 1)
        return self._alike(PUBLISH, (KEYS.facts, KEYS.demand), arguments)

    def flush(self) -> None:
        self._client.flushall()
        self._store.flush()

    def _alike(
        self, script: Script, keys: tuple[str, ...], arguments: tuple[str | bytes | int | float, ...]
    ) -> list[object]:
        real, real_state = _read(self._client.eval(script.text, len(keys), *keys, *arguments))
        double, double_state = _read(self._store.run(script, keys, arguments))
        assert double == pytest.approx(real)
        assert double_state == real_state
        return double


def _read(answer: object) -> Said:
    packed, state = msgspec.convert(answer, tuple[bytes, bytes], strict=False)
    return [part if isinstance(part, str) else float(part) for part in msgspec.msgpack.decode(packed)], state


@pytest.fixture
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    loop = VirtualTimeLoop()
    with valkey.running(tmp_path_factory.mktemp("v")) as running, running.client() as client:
        yield Both(client, VirtualStore(loop))
    loop.close()


def report(replica: str, seq: int, held: int = 0, wants: int = 0) -> Report:
    waiting = [Want(Priority.P1, ONE, 0.25 * index) for index in range(wants)]
    return Report(replica, seq, (NOTHING, ONE.scaled(held), NOTHING), acked=seq - 1, hold=Hold(5.0), wants=waiting)


def test_asks_are_answered_as_the_script_answers_them(both: Both) -> None:
    both.ask(100.0, report("a", 1, wants=2))
    _, token, *_ = both.publish(100.1, "a", 0, slots=3)
    both.ask(101.2, report("a", 2, wants=2), counters="of a")
    both.ask(101.3, report("b", 1, wants=3), counters="of b")
    both.ask(101.4, report("b", 1, wants=3))
    both.publish(101.5, "a", int(str(token).split(".")[0]), slots=2)
    answer = both.ask(101.6, report("a", 3, held=1))
    both.ask(101.7, report("b", 2, held=1, wants=1), known=str(answer[-2]))
    both.ask(105.0, report("b", 3, held=1, wants=1))


def test_the_lead_goes_as_the_script_says(both: Both) -> None:
    first = both.publish(100.0, "a", 0, slots=3)
    both.publish(100.3, "b", 0, slots=9)
    both.ask(100.4, report("a", 1))
    both.publish(100.5, "a", int(str(first[1]).split(".")[0]))
    both.publish(102.0, "b", 0)
    both.flush()
    both.ask(102.1, report("b", 7, held=2))
    both.publish(102.2, "b", 5, slots=4)
