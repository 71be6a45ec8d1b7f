"""Choice between kernels: executions rank candidates, a chooser selects one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, TypeVar

from vkmnn.base.records import dataclass

T = TypeVar("T")


class Chooser(Protocol):
    """Picks one of the kernels that all do the same job on the device at hand."""

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return one of `candidates`.

        Args:
            what: the kind of choice ("matmul", "convolution", "lanes", …).
            problem: everything that the speed of the candidates depends on, except the device.
            candidates: at least one; the one ranked fastest by the rules comes first.
        """
        ...


class Preferences:
    """A chooser that prefers measured candidates to ranked ones.

    Args:
        table: `repr` of a candidate by `choice_key`.

    Attributes:
        met: the part of the table that has been used so far.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table
        self.met: dict[str, str] = {}

    def __call__(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return the preferred candidate; one that no longer exists is ignored."""
        if self.table and len(candidates) > 1:
            key = choice_key(what, problem)
            wanted = self.table.get(key)
            for candidate in candidates if wanted is not None else ():
                if repr(candidate) == wanted:
                    self.met[key] = repr(candidate)
                    return candidate
        return candidates[0]


BY_RULE = Preferences({})
"""The chooser without measurements."""


def choice_key(what: str, problem: Hashable) -> str:
    """Return the key of a choice's outcome."""
    return f"{what}: {problem!r}"


def kernel_name(candidate: object) -> str:
    """Return a short readable name of a candidate: `rotate_32_8`, its family and fields."""
    if isinstance(candidate, bool):
        return "yes" if candidate else "no"
    if isinstance(candidate, tuple):
        return "x".join(map(kernel_name, candidate))
    if not is_dataclass(candidate):
        return str(candidate)
    shown = (field for field in fields(candidate) if field.repr)
    values = ((field, getattr(candidate, field.name)) for field in shown)
    parts = [
        field.name if value is True else kernel_name(value)
        for field, value in values
        if value is not None and value is not False and value != field.default
    ]
    family = getattr(candidate, "family", None)
    return "_".join([family, *parts] if family else parts)


@dataclass(slots=True)  # not frozen, which takes twice as long: plans make hundreds
class Choice:
    """A choice made while the op `op` was encoded.

    `beside` names another op whose dispatches depend on it, "" if there is none.
    """

    op: str
    what: str
    problem: Hashable
    candidates: tuple[Any, ...]
    taken: Any
    beside: str = ""

    @property
    def key(self) -> str:
        """Key of the outcome."""
        return choice_key(self.what, self.problem)
