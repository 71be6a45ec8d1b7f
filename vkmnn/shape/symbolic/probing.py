"""Named shapes of ops that have only a size computer, like those of most plug-ins.

The computer runs on probes: sizes that stand for the names. A probe remembers its name, and so do
its sums, products and quotients. The results for one set of probes are kept only if they hold for
others, large and small: if a computer compares sizes, or caps them at a limit, the sets differ, and
the dimension counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from typing import SupportsIndex

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import VkmnnError
from vkmnn.ir.graph import Array, Dim, Op, TensorInfo
from vkmnn.ir.op_type import OP_TYPES
from vkmnn.shape.registry import COMPUTERS, compute_shapes
from vkmnn.shape.symbolic.dims import DimAlgebra
from vkmnn.shape.symbolic.facts import MAX_ELEMENTS, Facts, Found, NamedShape

_LARGE = 100_000
"""Probes are primes above this bound: larger than sizes a computer compares with, small enough for
products of three in 64 bits.
"""

_ROUND = 5_040
"""Other probes are multiples of this, which has all small divisors, in the opposite order."""

_SMALL = ((6, 10, 4, 9, 3, 14, 2), (7, 5, 11, 3, 13, 2, 17))
_EQUAL = (720, 12, 1)
_MAX_NAMES = 64

_NAMELESS = "\0"
"""Prefix of unknown sizes; no name with it leaves this module."""


@dataclass(frozen=True, slots=True)
class Call:
    """An op with its inputs as far as they are known; unknown sizes have unique names."""

    op: Op
    infos: list[TensorInfo | None]
    values: list[NamedShape | Array | None]
    algebra: DimAlgebra

    def dims(self) -> Iterator[Dim]:
        """Yield every size that occurs."""
        for info in self.infos:
            yield from (info.shape or ()) if info is not None else ()
        for value in self.values:
            yield from value if isinstance(value, tuple) else ()

    def run(self, sizes: Mapping[str, int], *, trace: bool = False) -> list[TensorInfo] | None:
        """Return the computer's answer for these sizes; None if it rejects them."""
        infos: list[TensorInfo | None] = []
        values: list[Array | None] = []
        for info, value in zip(self.infos, self.values, strict=True):
            if info is None:
                infos.append(None)
                values.append(None)
                continue
            shape = [self._size(dim, sizes, trace=trace) for dim in info.shape or ()]
            if any(size < 0 for size in shape):
                return None
            infos.append(TensorInfo(info.name, info.dtype, tuple(shape)))
            if isinstance(value, tuple):
                listed = [self._size(dim, sizes) for dim in value]
                array: Array = np.array(listed, info.dtype.numpy).reshape(shape)
                values.append(array)
            else:
                values.append(value)
        try:
            return compute_shapes(self.op, infos, values, max_elements=inf)
        except VkmnnError:
            return None

    def _size(self, dim: Dim, sizes: Mapping[str, int], *, trace: bool = False) -> int:
        size = self.algebra.evaluate(dim, sizes)
        if size is None:
            raise ValueError(f"no size is given for {dim}")
        return _Probe.of(size, dim, self.algebra) if trace and isinstance(dim, str) else size


def probed(op: Op, facts: Facts) -> list[Found]:
    """Return the infos of an op's results for all input sizes, by probing its size computer."""
    call = call_of(op, facts) if op.type in COMPUTERS else None
    if call is None:
        return []
    names = sorted({name for dim in call.dims() for name in call.algebra.names_in(dim)})
    if not names:
        return [(info.dtype, info.shape) for info in call.run({}) or ()]
    if len(names) > _MAX_NAMES:
        return _by_equal_sizes(call, names)
    first = dict(zip(names, _primes(_LARGE, len(names)), strict=True))
    factors = _primes(_LARGE // _ROUND, len(names))
    second = dict(zip(names, (_ROUND * factor for factor in reversed(factors)), strict=True))
    traced, plain = call.run(first, trace=True), call.run(second)
    if traced is None or plain is None:
        return _by_equal_sizes(call, names)
    found: list[Found] = [
        (info.dtype, tuple(_read(dim, first, call.algebra) for dim in info.dims)) for info in traced
    ]
    found = _agreed(found, plain, second, call.algebra)
    small = (
        {name: sizes[place % len(sizes)] for place, name in enumerate(names)} for sizes in _SMALL
    )
    for sizes in (*small, *(dict.fromkeys(names, size) for size in _EQUAL)):
        # A set that the computer refuses is ignored: a kernel may be larger than small inputs.
        found = _agreed(found, call.run(sizes), sizes, call.algebra)
    return [(dtype, _without_nameless(shape)) for dtype, shape in found]


def call_of(op: Op, facts: Facts, rank: int | None = None) -> Call | None:
    """Return the op with its inputs; None if a type or a rank is unknown.

    Args:
        op: the op.
        facts: the known facts about its inputs.
        rank: the rank assumed for inputs of unknown rank.
    """
    infos: list[TensorInfo | None] = []
    values: list[NamedShape | Array | None] = []
    content = OP_TYPES[op.type].content if op.type in OP_TYPES else ()
    for place, name in enumerate(op.inputs):
        info = facts.info(op, place) if name else None
        if info is not None and info.shape is None and rank is not None:
            info = TensorInfo(name, info.dtype, (None,) * rank)
        if info is None or info.shape is None:
            if name:
                return None
            infos.append(None)
            values.append(None)
            continue
        value: NamedShape | Array | None = facts.constants.get(name)
        if value is None:
            value = facts.values_of(name)
            if value is None and place in content:
                value = _unknown_content(info)
            if value is not None:
                value = _filled(f"{place}:", value)
        shape = _filled(f"{place}", info.shape)
        if isinstance(value, tuple) and shape:
            shape = (len(value),)
        infos.append(TensorInfo(name, info.dtype, shape))
        values.append(value)
    return Call(op, infos, values, facts.algebra)


def _filled(where: str, dims: NamedShape) -> NamedShape:
    return tuple(
        f"{_NAMELESS}{where}[{place}]" if dim is None else dim for place, dim in enumerate(dims)
    )


def _unknown_content(info: TensorInfo) -> NamedShape | None:
    """Return unknown elements for a small integer tensor, so that the rest may be worked out."""
    shape = info.shape
    if shape is None or len(shape) > 1 or not info.dtype.is_integer:
        return None
    length = shape[0] if shape else 1
    return (None,) * length if isinstance(length, int) and 0 <= length <= MAX_ELEMENTS else None


def _by_equal_sizes(call: Call, names: Sequence[str]) -> list[Found]:
    """Return types, ranks and fixed sizes if the computer requires some sizes to be equal."""
    made = [call.run(dict.fromkeys(names, size)) for size in _EQUAL]
    answers = [infos for infos in made if infos is not None]
    if len(answers) < 2:
        return []
    found: list[Found] = [(info.dtype, tuple(map(_plain, info.dims))) for info in answers[0]]
    for infos in answers[1:]:
        found = _agreed(found, infos, {}, call.algebra)
    return found


def _agreed(
    found: Sequence[Found],
    infos: Sequence[TensorInfo] | None,
    sizes: Mapping[str, int],
    algebra: DimAlgebra,
) -> list[Found]:
    """Keep only those findings that these infos, for these sizes, do not contradict."""
    if infos is None:
        return list(found)
    kept: list[Found] = []
    for (dtype, shape), info in zip(found, infos, strict=False):
        if shape is not None and len(shape) == len(info.dims):
            pairs = zip(shape, info.dims, strict=True)
            shape = tuple(
                dim if algebra.evaluate(dim, sizes) == size else None for dim, size in pairs
            )
        else:
            shape = None
        kept.append((dtype if dtype is info.dtype else None, shape))
    return kept


def _without_nameless(shape: NamedShape | None) -> NamedShape | None:
    if shape is None:
        return None
    return tuple(None if isinstance(dim, str) and _NAMELESS in dim else dim for dim in shape)


def _read(size: int, sizes: Mapping[str, int], algebra: DimAlgebra) -> Dim:
    """Return the dimension that a result's size represents."""
    if isinstance(size, _Probe):
        return size.dim
    factors: Dim = 1
    rest = _plain(size)
    if 0 < rest < 1 << 256:
        # numpy's functions do not preserve probes, but they are primes.
        for name, probe in sizes.items():
            while rest % probe == 0:
                rest, factors = rest // probe, algebra.multiply(factors, name)
    return algebra.multiply(factors, rest)


def _plain(size: SupportsIndex) -> int:
    return size.__index__()


@cache
def _primes(above: int, count: int) -> tuple[int, ...]:
    """Return `count` primes, ascending, above a number (rounded to an even one)."""
    found: list[int] = []
    number = above // 2 * 2 + 1
    while len(found) < count:
        if all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2)):
            found.append(number)
        number += 2
    return tuple(found)


class _Probe(int):
    """A size that remembers its dimension through arithmetic."""

    dim: Dim
    _algebra: DimAlgebra

    @classmethod
    def of(cls, size: int, dim: Dim, algebra: DimAlgebra) -> int:
        """Return the probe; a plain int if the dimension is unknown or an int itself."""
        if not isinstance(dim, str):
            return size
        made = cls(size)
        made.dim, made._algebra = dim, algebra
        return made

    def _result(self, size: int, dim: Dim) -> int:
        return _Probe.of(size, dim, self._algebra)

    def __add__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        return self._result(int(self) + int(other), self._algebra.add(self.dim, _dim_of(other)))

    def __sub__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        dim = self._algebra.subtract(self.dim, _dim_of(other))
        return self._result(int(self) - int(other), dim)

    def __rsub__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        dim = self._algebra.subtract(_dim_of(other), self.dim)
        return self._result(int(other) - int(self), dim)

    def __mul__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        dim = self._algebra.multiply(self.dim, _dim_of(other))
        return self._result(int(self) * int(other), dim)

    def __floordiv__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        size = int(self) // int(other)
        divisor = _dim_of(other)
        if isinstance(divisor, int):
            return self._result(size, self._algebra.floor_divide(self.dim, divisor))
        return self._result(size, self._algebra.divide(self.dim, divisor))

    def __neg__(self) -> int:
        return self._result(-int(self), self._algebra.multiply(self.dim, -1))

    __radd__ = __add__
    __rmul__ = __mul__


def _dim_of(number: int) -> Dim:
    return number.dim if isinstance(number, _Probe) else int(number)
