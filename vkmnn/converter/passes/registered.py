"""Passes that plug-ins add to vkmnn's own, and where these run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.converter.passes.base import Pass
from vkmnn.errors import PluginError

BEGIN = "BEGIN"
"""Before vkmnn's own passes: models are as in their files."""

END = "END"
"""After all of vkmnn's own."""


@dataclass(frozen=True, slots=True)
class RegisteredPass:
    """A pass class and its position: `BEGIN`, `END`, or after a pass by name."""

    make: Callable[[], Pass]
    after: str


PASSES: Registry[str, RegisteredPass] = Registry("pass")

P = TypeVar("P", bound=type[Any])


def graph_pass(*, after: str) -> Callable[[P], P]:
    """Register a class of passes; networks that are loaded from now on are rewritten by it.

    The class has a `name`, and `run(graph)`, as PatternPass and IndexedPass do; it is created
    without arguments. Passes at BEGIN run until none of them matches, and so do those at END; one
    after a pass of vkmnn's alternates with it and its neighbours. If several have one position,
    they run in the order of registration.

    Args:
        after: `BEGIN`, `END`, or the name of a pass after which it runs: one of vkmnn's own, or of
            another plug-in that is loaded before.

    Raises:
        PluginError: it has no name or no `run`, or the name is in use. That `after` names no pass
            is found when the plug-in has been imported.
    """

    def add(kind: P) -> P:
        name = getattr(kind, "name", None)
        if not isinstance(name, str) or not callable(getattr(kind, "run", None)):
            raise PluginError(
                f"{kind!r} is not a class of passes",
                hint='derive it from PatternPass, and give it a name: name = "fuse_gates"',
            )
        PASSES.register(name)(RegisteredPass(kind, after))
        return kind

    return add


def with_registered(tables: Sequence[Sequence[Pass]]) -> tuple[tuple[Pass, ...], ...]:
    """Return the tables of passes with those that plug-ins registered; a table runs as a whole."""
    if not len(PASSES):
        return tuple(map(tuple, tables))
    by_place: dict[str, list[Pass]] = {}
    for registered in PASSES.values():
        by_place.setdefault(registered.after, []).append(registered.make())

    def spread(passes: Iterable[Pass]) -> Iterable[Pass]:
        for one in passes:
            yield one
            yield from spread(by_place.get(one.name, ()))

    everything = (by_place.get(BEGIN, []), *tables, by_place.get(END, []))
    return tuple(tuple(spread(table)) for table in everything if table)


def is_registered(one: Pass) -> bool:
    """True when a plug-in brought the pass."""
    return one.name in PASSES
