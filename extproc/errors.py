"""Exceptions by audience. A rejection is never one of them: it is a return value (`model.Rejection`)."""

from __future__ import annotations

from dataclasses import dataclass


class ExtprocError(Exception):
    """Base of all errors raised on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in one file: `path` is the YAML path (`queues[1].timeout`, empty for the whole file).

    `line` counts from 1; 0 where no line is to blame.
    """

    path: str
    message: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(ExtprocError):
    """A file given by the operator is not usable. Carries every problem found, each with its place."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{file}:{p.line}: {p}" if p.line else f"{file}: {p}" for p in problems))


class BadMetrics(ExtprocError):
    """An engine's metrics text lacks a required series or is not metrics at all."""


class CannotListen(ExtprocError):
    """An address given by the operator cannot be listened on; the message names the flag, the address and why."""


class StateUnavailable(ExtprocError):
    """The shared state did not answer, or answered with an error of its own. `kind`: a short label, the same for the same
    cause (`timeout`, `connection`, `loading`, `readonly`, ...)."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)
