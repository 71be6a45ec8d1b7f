"""Networks whose tensors between ops are quantised to a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vkmnn.cpu_fallback import run_op
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Graph, Op
from vkmnn.ir.ops import ElementwiseAttrs, PoolingAttrs, QuantizedConvolutionAttrs, Step
from vkmnn.testing.case import Case, tensor_info

Arrays = dict[str, AnyArray]


def codes_from(low: int, *shape: int, seed: int = 0) -> AnyArray:
    """Return integers from `low` to `low` + 255, with both ends if there is room for them."""
    rng = np.random.default_rng([seed, *shape])
    array = rng.integers(low, low + 256, shape).astype(np.float32)
    ends = array.reshape(-1)[-2:]
    ends[:] = [low, low + 255][: ends.size]
    return array


def as_bytes(source: str, made: str, shape: Sequence[int], low: int) -> tuple[Op, Arrays]:
    """Return a convolution from floats to equal quantised bytes, and its constants."""
    channels, axes = shape[1], len(shape) - 2
    ones, ends = (1,) * axes, (float(low), float(low + 255))
    attrs = QuantizedConvolutionAttrs(
        ones, ones, ones, (0,) * 2 * axes, channels, "NOTSET", *ends, taken=ends
    )
    constants: Arrays = {
        f"{made}:w": np.ones((channels, 1, *ones), np.int8),
        f"{made}:b": np.zeros(channels, np.float32),
        f"{made}:f": np.ones(channels, np.float32),
    }
    w, b, f = constants
    return Op("QuantizedConvolution", f"{made}:op", [source, w, b, "", f], [made], attrs), constants


def maximum(source: str, made: str, axes: int) -> Op:
    """Return the maximum over single pixels, which reads and writes quantised values."""
    ones = (1,) * axes
    attrs = PoolingAttrs("MAX", ones, ones, ones, (0,) * 2 * axes)
    return Op("Pooling", f"{made}:op", [source], [made], attrs)


def quantizer(unit: float, low: float, high: float) -> ElementwiseAttrs:
    """Return the steps of a QuantizeLinear, as the passes leave them."""
    steps = (
        *(Step("DIV", (0, -1)), Step("ROUND", (1,)), Step("GREATER", (2, -2))),
        *(Step("SELECT", (3, 2, -2)), Step("MIN", (4, -3))),
    )
    return ElementwiseAttrs(steps, (unit, float(low), float(high)))


def chain_case(
    ops: Sequence[Op], feeds: Mapping[str, AnyArray], constants: Arrays, rtol: float = 0.0
) -> Case:
    """Return the case of ops in running order; the last one computes the output."""
    known: Arrays = {**feeds, **constants}
    for op in ops:
        known[op.outputs[0]] = run_op(op, [known.get(name) for name in op.inputs])[0]
    (out,) = ops[-1].outputs
    inputs = [tensor_info(name, array) for name, array in feeds.items()]
    graph = Graph("codes", inputs, [tensor_info(out, known[out])], list(ops), dict(constants))
    return Case(graph, dict(feeds), rtol, 0.0)
