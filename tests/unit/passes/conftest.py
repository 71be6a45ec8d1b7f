from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from vkmnn.converter.passes import Pass
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import OP_TYPES, Array, Dim, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import BinaryAttrs, OpAttrs, UnaryAttrs

Evaluate = Callable[[Graph, dict[str, Array]], list[Array]]


class Net:
    """Builds a graph op by op; unnamed tensors are t0, t1, …; infos come from a run."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.graph = Graph("net", [], [])
        self.feeds: dict[str, Array] = {}
        self._counts: dict[str, int] = {}

    def _new(self, base: str) -> str:
        self._counts[base] = self._counts.get(base, -1) + 1
        return f"{base}{self._counts[base]}"

    def input(self, *shape: int, name: str = "", dtype: str = "float32") -> str:
        name = name or self._new("x")
        info = TensorInfo(name, DType(dtype), shape)
        self.graph.inputs.append(info)
        self.feeds[name] = (self.random.standard_normal(shape) * 2).astype(dtype)
        return name

    def weights(self, *shape: int) -> str:
        return self.const(self.random.standard_normal(shape).astype(np.float32) + 0.1)

    def const(self, value: object, dtype: str = "float32") -> str:
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype)
        name = self._new("c")
        self.graph.constants[name] = array
        return name

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def op(
        self, kind: str, /, *inputs: str, outputs: int = 1, out: str = "", **attrs: object
    ) -> str:
        results = [out or self._new("t")] + [self._new("t") for _ in range(outputs - 1)]
        made: OpAttrs = OP_TYPES[kind].attrs(**attrs)
        self.graph.ops.append(Op(kind, self._new("op"), list(inputs), results, made))
        return results[0]

    def binary(self, kind: str, a: str, b: str, **attrs: object) -> str:
        name = self._new("t")
        self.graph.ops.append(
            Op("BinaryOp", self._new("op"), [a, b], [name], BinaryAttrs(kind, **attrs))
        )
        return name

    def unary(self, kind: str, x: str, alpha: float = 0.0, beta: float = 0.0) -> str:
        name = self._new("t")
        self.graph.ops.append(
            Op("UnaryOp", self._new("op"), [x], [name], UnaryAttrs(kind, alpha, beta))
        )
        return name

    def conv(self, x: str, w: str, *rest: str, pads: int = 0, **attrs: object) -> str:
        kernel = self.graph.constants[w].shape[2:]
        fixed = {
            "kernel": kernel,
            "strides": (1,) * len(kernel),
            "dilations": (1,) * len(kernel),
            "pads": (pads,) * 2 * len(kernel),
        }
        return self.op("Convolution", x, w, *rest, **{**fixed, **attrs})

    def finish(self, *outputs: str, infos: bool = True) -> Graph:
        """Name the outputs; fill `infos` from a run, or leave all shapes unknown."""
        values = run(self.graph, self.feeds)
        known = {
            name: TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
            for name, array in values.items()
        }
        self.graph.outputs = [known[name] for name in outputs]
        if infos:
            produced = self.graph.producers()
            self.graph.infos = {name: known[name] for name in known if name in produced}
        else:
            self.graph.outputs = [TensorInfo(o.name, o.dtype, None) for o in self.graph.outputs]
        self.graph.validate()
        return self.graph


def run(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    values: dict[str, Array] = {**graph.constants, **feeds}
    for op in graph.ops:
        inputs = [values[name] if name else None for name in op.inputs]
        values.update(zip(op.outputs, run_op(op, inputs), strict=True))
    return values


class Checked:
    """A graph after passes, with queries for tests."""

    def __init__(self, graph: Graph, rewrites: int) -> None:
        self.graph = graph
        self.rewrites = rewrites

    @property
    def types(self) -> list[str]:
        return [op.type for op in self.graph.ops]

    @property
    def kinds(self) -> list[str]:
        """Types, with the kind of unary and binary ops instead of theirs."""
        return [
            op.attrs.kind if isinstance(op.attrs, UnaryAttrs | BinaryAttrs) else op.type
            for op in self.graph.ops
        ]

    @property
    def only(self) -> Op:
        (op,) = self.graph.ops
        return op

    def attrs(self, number: int = 0) -> OpAttrs:
        return self.graph.ops[number].attrs


Check = Callable[..., Checked]


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def check(net: Net) -> Check:
    """Run passes on the net, compare every output before and after, and check the kept infos.

    infos: whether shapes of intermediate tensors are known. dims: shapes of inputs with symbols, by
    name; all other shapes are then unknown, unless RefineShapes is among the passes.
    """

    def checked(
        outputs: str | Sequence[str],
        *passes: Pass,
        infos: bool = True,
        dims: dict[str, tuple[Dim, ...]] | None = None,
        rtol: float = 2e-5,
        atol: float = 2e-6,
    ) -> Checked:
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        graph = net.finish(*names, infos=infos and dims is None)
        if dims is not None:
            graph.inputs = [
                TensorInfo(one.name, one.dtype, dims.get(one.name, one.shape))
                for one in graph.inputs
            ]
        before = run(graph, net.feeds)
        after = copy.deepcopy(graph)
        rewrites = sum(one.run(after) for one in passes)
        after.validate()
        assert [info.name for info in after.outputs] == list(names)
        assert after.inputs == graph.inputs
        values = run(after, net.feeds)
        for name in names:
            assert values[name].dtype == before[name].dtype
            np.testing.assert_allclose(values[name], before[name], rtol=rtol, atol=atol)
        sizes: dict[str, int] = {}
        for name, info in after.infos.items():
            if name not in values:
                continue
            assert info.dtype.numpy == values[name].dtype, name
            if info.shape is not None:
                assert len(info.shape) == values[name].ndim, name
                for dim, size in zip(info.shape, values[name].shape, strict=True):
                    assert (sizes.setdefault(dim, size) if isinstance(dim, str) else dim) in (
                        None,
                        size,
                    )
        return Checked(after, rewrites)

    return checked
