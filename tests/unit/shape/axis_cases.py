"""Uses of every operator, with arrays for its inputs."""

from __future__ import annotations

import zlib

import numpy as np

from tests.unit.shape.named_cases import CASES, SIZES, Case
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array, DType
from vkmnn.shape import compute_shapes
from vkmnn.testing.axes import Use

# Integers are below these where they number elements, images or rows.
_BOUNDS = {"Gather": 4, "GatherND": 4, "GatherElements": 4, "ScatterND": 1, "ScatterElements": 4,
           "RoiAlign": 1, "OneHot": 8, "GatherNBits": 9, "ExpertMatMul": 5}  # fmt: skip


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
