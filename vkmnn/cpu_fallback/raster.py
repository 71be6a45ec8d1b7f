"""Raster: strided copies between flat tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, placed_execution, required
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Op, TensorInfo, View
from vkmnn.ir.ops import RasterAttrs


def strided(flat: AnyArray, view: View, size: tuple[int, ...], what: str) -> AnyArray:
    """Return the elements of 1-D contiguous `flat` that `view` addresses, without a copy.

    Raises:
        InvalidInputError: the view has another rank than `size`, or reaches outside the tensor.
    """
    if len(view.strides) != len(size) or any(count < 0 for count in size):
        raise InvalidInputError(f"{what} {view} does not fit a region of size {size}")
    if 0 in size:
        return np.empty(size, dtype=flat.dtype)
    reach = [stride * (count - 1) for stride, count in zip(view.strides, size, strict=True)]
    low = view.offset + sum(step for step in reach if step < 0)
    high = view.offset + sum(step for step in reach if step > 0)
    if low < 0 or high >= flat.size:
        raise InvalidInputError(
            f"{what} {view} of size {size} reaches elements {low} to {high} of {flat.size}"
        )
    steps = tuple(stride * flat.itemsize for stride in view.strides)
    return np.lib.stride_tricks.as_strided(flat[view.offset :], size, steps)


@placed_execution("Raster")
def _raster(op: Op[RasterAttrs], inputs: Inputs, outputs: Sequence[TensorInfo]) -> list[AnyArray]:
    attrs = op.attrs
    info = outputs[0]
    result = np.full(info.dims, attrs.fill, dtype=info.dtype.numpy)
    flat = result.reshape(-1)
    sources = [
        np.ascontiguousarray(required(inputs, index)).reshape(-1) for index in range(len(inputs))
    ]
    for region in attrs.regions:
        if not 0 <= region.origin < len(sources):
            raise InvalidInputError(f"a region reads input {region.origin} of {len(sources)}")
        source = sources[region.origin]
        if source.dtype != flat.dtype:
            raise InvalidInputError(f"a region copies {source.dtype} into {flat.dtype}")
        target = strided(flat, region.dst, region.size, "destination")
        target[...] = strided(source, region.src, region.size, "source")
    return [result]
