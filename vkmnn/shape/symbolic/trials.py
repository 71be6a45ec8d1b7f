"""Element types of results by trial, if rules and probes give none.

An equation may require an axis of unknown size to be as long as another one: no probe fits. Element
types do not depend on sizes, so the first sizes and ranks that an op's size computer accepts
determine them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product

from vkmnn.ir.graph import Op
from vkmnn.shape.registry import COMPUTERS
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.probing import Call, call_of

_RANKS = (2, 3, 4, 1, 0, 5, 6)
_EQUAL = (12, 1)
_MAX_TRIALS = 64
"""Number of trial sizes for one rank; a trial takes some microseconds."""


def tried_types(op: Op, facts: Facts) -> list[Found]:
    """Return the element types of an op's results, and their ranks if those of inputs are known.

    Empty if the size computer refuses all trials.
    """
    if op.type not in COMPUTERS:
        return []
    known = call_of(op, facts)
    if known is not None:
        return _tried(known, ranked=True)
    for rank in _RANKS:
        call = call_of(op, facts, rank)
        found = [] if call is None else _tried(call, ranked=False)
        if found:
            return found
    return []


def _tried(call: Call, *, ranked: bool) -> list[Found]:
    for sizes in islice(_sizes(call), _MAX_TRIALS):
        infos = call.run(sizes)
        if infos is not None:
            return [(one.dtype, (None,) * len(one.dims) if ranked else None) for one in infos]
    return []


def _sizes(call: Call) -> Iterator[Mapping[str, int]]:
    """Yield sizes for the names: equal ones first, then those that other axes have."""
    names = sorted({name for dim in call.dims() for name in call.algebra.names_in(dim)})
    given = sorted({dim for dim in call.dims() if isinstance(dim, int)} - {0, *_EQUAL})
    for size in (*_EQUAL, *given):
        yield dict.fromkeys(names, size)
    for sizes in product((*given, *_EQUAL), repeat=len(names)):
        yield dict(zip(names, sizes, strict=True))
