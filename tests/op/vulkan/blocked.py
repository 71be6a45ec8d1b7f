"""Run one op on tensors that lie channel-blocked on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.op.vulkan.harness import run_graph
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import PoolingAttrs


def check_blocked(
    op_type: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    *,
    constants: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> None:
    """Run the op between poolings of one pixel, which leave values alone and want NC4HW4.

    The first input is fed; the others are constants of the graph or, without `constants`, fed too.
    """
    x = inputs[0]
    assert x is not None
    ones = (1,) * (x.ndim - 2)
    pooling = PoolingAttrs("MAX", ones, ones, ones, (0,) * (2 * len(ones)))
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    op = Op(op_type, "op", ["blocked", *names[1:]], ["made"], attrs)
    expected = run_op(op, inputs)[0]
    ops = [Op("Pooling", "before", ["in0"], ["blocked"], pooling), op]
    if expected.ndim == x.ndim:
        ops.append(Op("Pooling", "behind", ["made"], ["out"], pooling))
    fed = {
        n: a
        for n, a in zip(names, inputs, strict=True)
        if a is not None and (n == "in0" or not constants)
    }
    graph = Graph(
        "blocked",
        [TensorInfo(n, DType.from_numpy(a.dtype), a.shape) for n, a in fed.items()],
        [TensorInfo(ops[-1].outputs[0], DType.from_numpy(expected.dtype), expected.shape)],
        ops,
        {n: a for n, a in zip(names, inputs, strict=True) if a is not None and n not in fed},
    )
    (result,) = run_graph(graph, fed)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)
