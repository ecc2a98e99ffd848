"""The `/state` document as tables for a terminal. Pure: takes one document, and the one before it for rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

State: TypeAlias = Mapping[str, Any]
"""The document, or a part of it, as JSON gives it."""

NOTHING = "-"
"""Stands for what is not known."""
_NOT_REFUSED = frozenset({"admitted", "passed", "client-gone"})


def view(state: State, before: State | None = None, *, trouble: str | None = None) -> RenderableType:
    """`before`: an earlier document; of a process that has ended since it says nothing. `trouble`: why `state` is old."""
    if before and before["uptime_s"] >= state["uptime_s"]:
        before = None
    parts: list[RenderableType] = [_head(state)]
    parts += [Text(warning, "yellow") for warning in state["warnings"]]
    if error := state["policy"]["last_error"]:
        parts.append(Text(error, "red"))
    if trouble:
        parts.append(Text(trouble, "bold red"))
    earlier = {pool["name"]: pool for pool in before["pools"]} if before else {}
    span_s = state["uptime_s"] - before["uptime_s"] if before else 0.0
    for pool in state["pools"]:
        parts += [Text(), _pool_line(pool), _queues(pool, earlier.get(pool["name"]), span_s=span_s)]
        if pool["engines"]:
            parts.append(_engines(pool["engines"]))
    return Group(*parts)


def _head(state: State) -> Text:
    wire, policy = state["wire"], state["policy"]
    doing = "draining" if state["draining"] else "serving" if wire["serving"] else "not serving"
    lag_s = state["loop_lag_s"]
    facts = [
        f"extproc {state['version']}",
        f"{doing} {wire['address']}",
        f"up {duration(state['uptime_s'])}",
        f"{wire['streams']} streams",
        f"policy {policy['hash']}",
        f"loop lag {NOTHING if lag_s is None else f'{lag_s * 1000:.0f} ms'}",
    ]
    return Text("  ".join(facts), "bold")


def _pool_line(pool: State) -> Text:
    facts = [
        f"pool {pool['name']}" + (" (leaving)" if pool["leaving"] else ""),
        f"by {pool['reason']}",
        f"saturation {share(pool['saturation'])}",
        f"held {load(pool['held'])} of {load(pool['limit'], unknown='any')}",
        f"ghosts {load(pool['ghosts'])}",
        f"drain {load(pool['drain_per_s'])} per s",
        f"engines {pool['engines_reporting']}" + (f"/{len(pool['engines'])}" if pool["engines"] else ""),
        f"tries {number(_tries(pool))}",
    ]
    return Text("  ".join(facts), "cyan")


def _tries(pool: State) -> float | None:
    """Attempts for each first attempt, in the priority where they are most."""
    known = [one["amplification"] for one in pool["priorities"].values() if one["amplification"] is not None]
    return max(known, default=None)


def _queues(pool: State, before: State | None, *, span_s: float) -> Table:
    span_s = span_s if before else 0.0
    counts = ("adm/s", "ref/s") if before else ("admitted", "refused")
    table = _table("", "queue", "waiting", "oldest", "in use", "limit", "shed", *counts, "retry")
    for priority, one in pool["priorities"].items():
        earlier = before["priorities"][priority]["requests"] if before else {}
        table.add_row(
            priority,
            one["queue"],
            f"{one['waiting']}/{one['queue_size']}",
            seconds(one["oldest_wait_s"]),
            load(one["in_use"]),
            load(one["limit"], unknown="no limit"),
            share(one["rejection"]),
            *(_count(*pair, span_s=span_s) for pair in _counted(one["requests"], earlier)),
            seconds(one["retry_after_s"]),
        )
    return table


def _counted(now: Mapping[str, int], before: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Admitted, then refused: now and before."""
    for admitted in (True, False):
        picked = [name for name in now if (name == "admitted" if admitted else name not in _NOT_REFUSED)]
        yield sum(now[name] for name in picked), sum(before.get(name, 0) for name in picked)


def _count(now: int, before: int, *, span_s: float) -> str:
    """A rate where there is a span, else the count."""
    return f"{(now - before) / span_s:.1f}" if span_s > 0 else str(now)


def _engines(engines: Sequence[State]) -> Table:
    table = _table("engine", "reports", "age", "kv", "running", "waiting", "preempt/s", "tok/s", "last error")
    for one in engines:
        table.add_row(
            one["engine"],
            "yes" if one["reporting"] else "frozen" if one["frozen"] else "no",
            seconds(one["age_s"]),
            share(one["kv_usage"]),
            number(one["running"]),
            number(one["waiting"]),
            number(one["preemptions_per_s"]),
            number(one["generation_tokens_per_s"]),
            Text("" if one["reporting"] else one["last_error"] or "", "red"),
        )
    return table


def _table(*columns: str) -> Table:
    """Where the terminal is narrow the words give way to the numbers."""
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for column in columns:
        words = column in {"queue", "engine", "last error"}
        short = column in {"", "reports"}
        table.add_column(
            column,
            justify="left" if words or short else "right",
            no_wrap=not words,
            overflow="fold",
            min_width=8 if words else None,
        )
    return table


def number(value: float | None) -> str:
    """At most four characters for what is below a billion: 950, 1.2k, 33k, 1.5M."""
    if value is None:
        return NOTHING
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            return f"{value / factor:.{1 if value < 9.95 * factor else 0}f}{unit}"
    return f"{value:.1f}" if 0 < value < 9.95 and value != int(value) else f"{value:.0f}"


def load(value: Mapping[str, float | None] | None, *, unknown: str = NOTHING) -> str:
    """`1.7k tok 4 req`; a part that is not bounded is left out."""
    parts = [(value[key], unit) for key, unit in (("tokens", "tok"), ("slots", "req"))] if value else []
    return " ".join(f"{number(amount)} {unit}" for amount, unit in parts if amount is not None) or unknown


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f} s" if value < 99.95 else duration(value)


def duration(value: float) -> str:
    """The two largest units: `59s`, `2m 5s`, `3h 0m`, `4d 1h`."""
    units = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
    whole = int(value)
    at = next((i for i, (_, size) in enumerate(units) if whole >= size), len(units) - 1)
    parts = []
    for unit, size in units[at : at + 2]:
        parts.append(f"{whole // size}{unit}")
        whole %= size
    return " ".join(parts)
