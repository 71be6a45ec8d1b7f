"""Uses of every operator with arrays for its inputs, and parts of them along a loop."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from tests.unit.shape.named_cases import CASES, SIZES, Case
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import VkmnnError
from vkmnn.ir import OP_TYPES, Array, DType, Op, TensorInfo
from vkmnn.shape import compute_shapes
from vkmnn.shape.axes import Known, Loop, is_broadcast, with_sizes

# Where integers are numbers of elements, of images, or how many rows there are.
_BOUNDS = {"Gather": 4, "GatherND": 4, "GatherElements": 4, "ScatterND": 1, "ScatterElements": 4,
           "RoiAlign": 1, "OneHot": 8, "GatherNBits": 9}  # fmt: skip


@dataclass(frozen=True)
class Use:
    """An op on arrays."""

    op: Op
    arrays: tuple[Array | None, ...]

    def results(self, arrays: tuple[Array | None, ...] | None = None, op: Op | None = None):
        """Return what numpy makes of the op, of all its named results."""
        made = run_op(op or self.op, list(self.arrays if arrays is None else arrays))
        return [np.asarray(array) for array in made[: len(self.op.outputs)]]

    def known(self) -> Known:
        """Return what a plan knows."""
        infos = [None if a is None else TensorInfo("", DType.from_numpy(a.dtype), a.shape)
                 for a in self.arrays]  # fmt: skip
        content = OP_TYPES[self.op.type].content
        values = [a if place in content else None for place, a in enumerate(self.arrays)]
        outputs = compute_shapes(self.op, infos, values)
        return Known([None if a is None else a.shape for a in self.arrays],
                     [info.dims for info in outputs], values)  # fmt: skip

    def part(self, loop: Loop, begin: int, end: int) -> list[Array]:
        """Return the op on what a range of a loop's steps reads."""
        known, taken = self.known(), list(self.arrays)
        for place, axis in enumerate(loop.reads):
            array = taken[place]
            if axis is None or array is None or is_broadcast(loop, place, array.shape):
                continue
            if loop.window is not None and place == 0:
                first, last = loop.window.part(begin, end)[0]
            else:
                times = 1 if place in loop.longer else array.shape[axis] // int(loop.size or 1)
                first, last = begin * times, end * times
            taken[place] = np.take(array, range(first, last), axis)
        dims = [
            sliced(np.empty(shape), axis, loop.size, begin, end).shape
            for shape, axis in zip(known.outputs, loop.makes, strict=True)
        ]
        for place, content in with_sizes(self.op, known.values, dims[0]).items():
            taken[place] = content
        attrs = loop.attrs(begin, end) if loop.attrs else self.op.attrs
        names = list(self.op.inputs), list(self.op.outputs)
        return self.results(tuple(taken), Op(self.op.type, "part", *names, attrs))


def sliced(array: Array, axis: int | None, size: object, begin: int, end: int) -> Array:
    """Return the part of a result that belongs to a range of steps."""
    if axis is None:
        return array
    times = array.shape[axis] // int(str(size))
    return np.take(array, range(begin * times, end * times), axis)


def uses() -> list[Use]:
    """Return every case at the sizes that fit it and are small."""
    found = []
    for case in CASES:
        for sizes in SIZES[:2]:
            use = _use(case, sizes)
            if use is not None:
                found.append(use)
    return found


def _use(case: Case, sizes: dict[str, int]) -> Use | None:
    pairs = [(None, None) if given is None else given.sized(sizes) for given in case.inputs]
    try:
        infos = compute_shapes(case.op, [i for i, _ in pairs], [value for _, value in pairs])
    except VkmnnError:
        return None
    if any(0 in info.dims for info in infos):
        return None
    random = np.random.default_rng(zlib.crc32(str(case).encode()))
    bound = _BOUNDS.get(case.op.type, 2)
    arrays: list[Array | None] = []
    for info, value in pairs:
        if info is None or value is not None:
            arrays.append(value)
        elif info.dtype is DType.BOOL:
            arrays.append(random.random(info.dims) < 0.5)
        elif info.dtype.is_integer:
            arrays.append(random.integers(0, bound, info.dims).astype(info.dtype.numpy))
        else:
            arrays.append(random.standard_normal(info.dims).astype(info.dtype.numpy))
    if case.op.type == "RoiPool":
        regions = arrays[1]
        assert regions is not None
        regions[:, 0] = 0  # the image
    return Use(case.op, tuple(arrays))
