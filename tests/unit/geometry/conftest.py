"""A small numpy interpreter of lowered graphs, independent of the library's own backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from vkmnn.geometry import fuse_rasters, fuse_views, lower_graph
from vkmnn.geometry.regions import validate
from vkmnn.ir import OP_TYPES, Array, DType, Op, OpAttrs, Region, TensorInfo, View
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    MatMulAttrs,
    RasterAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    StridedAttentionAttrs,
    UnaryAttrs,
)
from vkmnn.shape import compute_shapes


def addresses(view: View, size: Sequence[int]) -> Array:
    """All addresses of a view, as an array of shape `size`."""
    result = np.full(tuple(size), view.offset, np.int64)
    for axis, stride in enumerate(view.strides):
        shape = [1] * len(size)
        shape[axis] = size[axis]
        result += (np.arange(size[axis]) * stride).reshape(shape)
    return result


def apply_region(region: Region, source: Array, dest: Array) -> None:
    """Copy one region between flat arrays; addresses out of bounds are errors."""
    src, dst = addresses(region.src, region.size), addresses(region.dst, region.size)
    assert src.size == 0 or (src.min() >= 0 and dst.min() >= 0)
    dest[dst.reshape(-1)] = source[src.reshape(-1)]


def run_raster(attrs: RasterAttrs, inputs: Sequence[Array], info: TensorInfo) -> Array:
    result = np.full(int(np.prod(info.dims, dtype=np.int64)), attrs.fill, info.dtype.numpy)
    written = np.zeros(result.size, np.int64)
    for region in attrs.regions:
        assert len(region.size) <= 6
        apply_region(region, inputs[region.origin].reshape(-1), result)
        np.add.at(written, addresses(region.dst, region.size).reshape(-1), 1)
    assert attrs.ordered or not (written > 1).any(), "unordered regions overlap"
    return result.reshape(info.dims)


def run_attention(attrs: StridedAttentionAttrs, inputs: Sequence[Array], info: TensorInfo) -> Array:
    def read(view: View, rows: int, columns: int, source: Array) -> Array:
        return source.reshape(-1)[places(view, rows, columns)]

    def places(view: View, rows: int, columns: int) -> Array:
        return addresses(View(view.offset, (*view.strides, 1)), (*attrs.batch, rows, columns))

    lengths = ((attrs.queries, attrs.depth), (attrs.keys, attrs.depth), (attrs.keys, attrs.width))
    q, k, v = (
        read(view, *length, source)
        for view, length, source in zip(attrs.views, lengths, inputs[:3], strict=True)
    )
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.asarray(attrs.scale, q.dtype)
    if attrs.mask is not None:
        assert inputs[3].dtype == q.dtype
        scores = scores + read(attrs.mask, attrs.queries, attrs.keys, inputs[3])
    if attrs.causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    if attrs.zero_fully_masked:
        weights = np.where((scores == -np.inf).all(-1, keepdims=True), 0, weights)
    result = np.full(int(np.prod(info.dims)), np.nan, info.dtype.numpy)
    written = places(attrs.result, attrs.queries, attrs.width)
    assert len(set(written.reshape(-1).tolist())) == result.size
    result[written] = np.matmul(weights, v)
    return result.reshape(info.dims)


REDUCTIONS: dict[str, Callable[..., Array]] = {
    "SUM": np.sum,
    "MEAN": np.mean,
    "MAX": np.max,
    "MIN": np.min,
    "PROD": np.prod,
    "L1": lambda x, **kw: np.sum(np.abs(x), **kw),
    "L2": lambda x, **kw: np.sqrt(np.sum(x * x, **kw)),
    "LOG_SUM": lambda x, **kw: np.log(np.sum(x, **kw)),
    "LOG_SUM_EXP": lambda x, **kw: np.log(np.sum(np.exp(x), **kw)),
    "SUM_SQUARE": lambda x, **kw: np.sum(x * x, **kw),
}
BINARIES = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "MIN": np.minimum,
    "LESS": np.less,
    "GREATER_EQUAL": np.greater_equal,
}
UNARIES = {"ABS": np.abs, "SQUARE": np.square, "LOG": np.log}


def run_op(op: Op, inputs: Sequence[Array], info: TensorInfo) -> Array:
    attrs = op.attrs
    if isinstance(attrs, RasterAttrs):
        return run_raster(attrs, inputs, info)
    if isinstance(attrs, StridedAttentionAttrs):
        return run_attention(attrs, inputs, info)
    if isinstance(attrs, MatMulAttrs):
        a, b = inputs
        a = np.swapaxes(a, -1, -2) if attrs.transpose_a else a
        b = np.swapaxes(b, -1, -2) if attrs.transpose_b else b
        return np.asarray(np.matmul(a, b) * np.asarray(attrs.alpha, a.dtype))
    if isinstance(attrs, ReductionAttrs):
        axes = tuple(int(axis) for axis in inputs[1])
        reduced = REDUCTIONS[attrs.kind](inputs[0], axis=axes, keepdims=attrs.keepdims)
        return np.asarray(reduced).astype(inputs[0].dtype)
    if isinstance(attrs, SoftmaxAttrs):
        assert not attrs.flatten
        x = inputs[0] - inputs[0].max(axis=attrs.axis, keepdims=True)
        total = np.exp(x).sum(axis=attrs.axis, keepdims=True)
        return np.asarray(x - np.log(total) if attrs.log else np.exp(x) / total)
    if isinstance(attrs, BinaryAttrs):
        return np.asarray(BINARIES[attrs.kind](*inputs))
    if isinstance(attrs, UnaryAttrs):
        return np.asarray(UNARIES[attrs.kind](*inputs))
    if isinstance(attrs, CastAttrs):
        return inputs[0].astype(attrs.to.numpy)
    if op.type == "Gather":
        assert isinstance(attrs, AxisAttrs)
        return np.asarray(np.take(*inputs, axis=attrs.axis))
    assert op.type == "Select", op.type
    return np.where(*inputs)


def run_ops(
    ops: Sequence[Op], infos: Mapping[str, TensorInfo], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Run ops in order; every result must have the dtype and shape that `infos` promises."""
    values = dict(feeds)
    for op in ops:
        (name,) = op.outputs
        info = infos[name]
        result = run_op(op, [values[item] for item in op.inputs], info)
        assert result.shape == info.dims, (op, result.shape, info)
        assert result.dtype == info.dtype.numpy, (op, result.dtype, info)
        values[name] = result
    return values


@dataclass
class Network:
    """Ops with their tensors' infos, constants and run-time inputs, built op by op."""

    ops: list[Op] = field(default_factory=list)
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)

    def add(self, array: Array | None, *, constant: bool = False) -> str:
        """Add a constant or a run-time input; None is an absent input."""
        if array is None:
            return ""
        name = f"t{len(self.infos)}"
        self.infos[name] = TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        (self.constants if constant else self.feeds)[name] = array
        return name

    def op(
        self, op_type: str, attrs: OpAttrs, inputs: Sequence[str], outputs: int = 1
    ) -> list[str]:
        """Append an op; the shape computers determine its outputs."""
        number = len(self.ops)
        names = [f"op{number}.{index}" for index in range(outputs)]
        op = Op(op_type, f"op{number}", list(inputs), names, attrs, f"node{number}")
        infos = compute_shapes(
            op,
            [self.infos[name] if name else None for name in inputs],
            [self.constants.get(name) for name in inputs],
        )
        self.infos.update({info.name: info for info in infos})
        self.ops.append(op)
        return names

    def run(self, keep: Sequence[str]) -> tuple[list[Array], list[Op]]:
        """Lower, run, fuse, run again: both runs must agree. Return results and the fused ops."""
        ops, infos, constants = lower_graph(self.ops, self.infos, self.constants)
        assert set(self.infos) <= set(infos)
        assert set(self.constants) <= set(constants)
        for op in ops:
            assert op.source.startswith("node")
        fused = fuse_views(fuse_rasters(ops, infos, set(keep)), infos, set(keep))
        plain = run_ops(ops, infos, {**constants, **self.feeds})
        results = run_ops(fused, infos, {**constants, **self.feeds})
        for op in fused:
            if isinstance(op.attrs, RasterAttrs):
                elements = int(np.prod(infos[op.outputs[0]].dims))
                for region in op.attrs.regions:
                    source = infos[op.inputs[region.origin]]
                    validate(region, int(np.prod(source.dims)), elements)
        for name in keep:
            np.testing.assert_array_equal(results[name], plain[name])
            assert results[name].dtype == infos[name].dtype.numpy
        return [results[name] for name in keep], fused


def lower_and_run(
    op_type: str,
    attrs: OpAttrs,
    *inputs: Array | None,
    constant: Sequence[int] = (),
    outputs: int = 1,
) -> tuple[list[Array], list[Op]]:
    """Run one op, whose content inputs and the inputs in `constant` are constants."""
    known = {*OP_TYPES[op_type].content, *constant}
    network = Network()
    names = [network.add(array, constant=index in known) for index, array in enumerate(inputs)]
    return network.run(network.op(op_type, attrs, names, outputs))


@pytest.fixture(scope="session")
def network() -> type[Network]:
    return Network


@pytest.fixture(scope="session")
def run() -> Callable[..., tuple[list[Array], list[Op]]]:
    return lower_and_run


@pytest.fixture(scope="session")
def region_interpreter() -> Callable[[Region, Array, Array], None]:
    return apply_region


@pytest.fixture(scope="session")
def interpret() -> Callable[..., dict[str, Array]]:
    return run_ops
