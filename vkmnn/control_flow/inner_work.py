"""Work of the graphs inside an If, a Loop or a Scan."""

from __future__ import annotations

from vkmnn.ir import HOST_GRAPH, DType, Graph, TensorInfo
from vkmnn.shape import flops

WORTH = 1 << 20
"""Floating-point operations that take the host as long as a submission to a slow device."""

_UNKNOWN_SIZE = 16
"""Assumed size of an unknown axis."""


def operations(graph: Graph) -> int:
    """Return the approximate floating-point operations of a network.

    Unknown axes count 16; WORTH is returned if even a rank is unknown.
    """
    infos = {info.name: info for info in (*graph.inputs, *graph.outputs)} | graph.infos
    arrays = graph.constants
    count = 0
    for op in graph.ops:
        if op.type == HOST_GRAPH:
            continue
        shapes = []
        for name in (*op.inputs, *op.outputs):
            info = infos.get(name)
            shape = arrays[name].shape if name in arrays else info.shape if info else None
            if name and shape is None:
                return WORTH
            sizes = [size if isinstance(size, int) else _UNKNOWN_SIZE for size in shape or ()]
            dtype = info.dtype if info else DType.FLOAT32
            shapes.append(TensorInfo(name, dtype, tuple(sizes)) if name else None)
        results = [one for one in shapes[len(op.inputs) :] if one is not None]
        # Unknown axes hide the size of a matrix: each of its numbers is used at least once.
        held = sum(arrays[name].size for name in op.inputs if name in arrays)
        count += max(flops(op, shapes[: len(op.inputs)], results), 2 * held)
    return count
