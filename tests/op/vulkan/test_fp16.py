"""Floats of 16 bits on the device: which tensors are stored like that, and the consequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.op.vulkan.harness import device
from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConvolutionAttrs,
    CumSumAttrs,
    MatMulAttrs,
    PadAttrs,
    PoolingAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
    UnaryAttrs,
)
from vkmnn.runtime.device import Device
from vkmnn.testing.case import Case, tensor_info
from vkmnn.testing.runner import Picker, dispatched_by, run_case
from vkmnn.vulkan.backend import VulkanBackend

LOWEST = np.finfo(np.float32).min
POOL = PoolingAttrs("MAX", (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))


def floats(*shape: int, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(shape).standard_normal(shape)).astype(np.float32)


@pytest.fixture(autouse=True)
def gpu() -> Device:
    found = device()
    if "storage16" not in found.info.features:
        pytest.skip("the device has no 16-bit storage")
    return found


def op(kind: str, inputs: str, output: str, attrs: OpAttrs | None = None) -> Op:
    """Return an op; `inputs` are names with blanks between."""
    return Op(kind, output, inputs.split(), [output], attrs or OpAttrs())


class Run:
    """A network that has run once in half storage: results, and how each tensor was stored."""

    def __init__(
        self,
        ops: Sequence[Op],
        feeds: Mapping[str, Array],
        outputs: Mapping[str, Array],
        constants: Mapping[str, Array] | None = None,
        element: FloatElement = "f16",
    ) -> None:
        graph = Graph(
            "fp16",
            [tensor_info(name, array) for name, array in feeds.items()],
            [tensor_info(name, array) for name, array in outputs.items()],
            list(ops),
            dict(constants or {}),
        )
        backend = VulkanBackend(device(), element=element)
        infos = {name: tensor_info(name, array) for name, array in feeds.items()}
        plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
        try:
            assert not plan.placement().off_device
            self.results = plan.execute(feeds)
            made = [out for command in plan.commands for out in command.outputs]
            self.fp16_tensors = {tensor.name for tensor in made if tensor.element == "f16"}
            self.memory = plan.memory()
            self.choices = backend.choices
        finally:
            plan.close()
            backend.close()

    def close_to(self, name: str, want: Array, part: float = 2**-9) -> None:
        got = self.results[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert np.abs(got - want).max(initial=0) <= part * max(np.ptp(want), np.abs(want).max())


def through_fp16(name: str, columns: int) -> tuple[Op, dict[str, Array]]:
    """Return a product that does not change a matrix, and stores it in 16 bits."""
    eye = {f"{name}.eye": np.eye(columns, dtype=np.float32)}
    return op("MatMul", f"{name} {name}.eye", f"{name}.fp16", MatMulAttrs()), eye


# --- islands of float32 ---------------------------------------------------------------------------


def test_rms_norm_that_is_spelled_out_keeps_its_statistics() -> None:
    """Squares of 300 and more are beyond the range of halves."""
    x = floats(5, 64, scale=400)
    enter, eye = through_fp16("x", 64)
    ops = [
        enter,
        op("BinaryOp", "x.fp16 two", "squares", BinaryAttrs("POW")),
        op("Reduction", "squares axes", "mean", ReductionAttrs("MEAN", True)),
        op("BinaryOp", "mean eps", "safe", BinaryAttrs("ADD")),
        op("UnaryOp", "safe", "root", UnaryAttrs("SQRT")),
        op("BinaryOp", "x.fp16 root", "y", BinaryAttrs("DIV")),
    ]
    constants = {
        **eye,
        "two": np.float32(2).reshape(()),
        "axes": np.array([1], np.int64),
        "eps": np.float32(1e-6).reshape(()),
    }
    want = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
    run = Run(ops, {"x": x}, {"y": want}, constants)
    assert "x.fp16" in run.fp16_tensors
    assert not run.fp16_tensors & {"squares", "mean", "safe", "root", "y"}
    run.close_to("y", want)


@pytest.mark.parametrize(
    ("kind", "attrs", "gives"),
    [
        ("UnaryOp", UnaryAttrs("RELU"), True),
        ("UnaryOp", UnaryAttrs("EXP"), False),
        ("UnaryOp", UnaryAttrs("SQUARE"), False),
        ("Reduction", ReductionAttrs("SUM", True), False),
        ("Reduction", ReductionAttrs("MAX", True), False),
        ("Softmax", SoftmaxAttrs(-1), True),
        ("CumSum", None, False),
    ],
)
def test_which_results_are_halves(kind: str, attrs: OpAttrs | None, gives: bool) -> None:
    x = floats(3, 8)
    enter, constants = through_fp16("x", 8)
    leave, eye = through_fp16("y", 8)
    axis = {"Reduction": np.array([1], np.int64), "CumSum": np.array(1, np.int64)}.get(kind)
    inputs = "x.fp16 axis" if axis is not None else "x.fp16"
    attrs = attrs or CumSumAttrs()
    array = run_op(op(kind, inputs, "y", attrs), [x] if axis is None else [x, axis])[0]
    ops = [enter, op(kind, inputs, "y", attrs)]
    extra = {} if axis is None else {"axis": axis}
    if array.shape == x.shape:
        ops.append(leave)
        extra |= eye
    name = ops[-1].outputs[0]
    run = Run(ops, {"x": x}, {name: array}, {**constants, **extra})
    assert ("y" in run.fp16_tensors) == gives
    run.close_to(name, array)


def test_operands_in_float32_keep_an_elementwise_op_there() -> None:
    """One operand is an input of the network, the other one a half: nothing is lost."""
    x, z = floats(3, 8), floats(3, 8) + np.float32(1e-5)
    enter, eye = through_fp16("x", 8)
    want = x.astype(np.float16).astype(np.float32) * z
    ops = [enter, op("BinaryOp", "x.fp16 z", "y", BinaryAttrs("MUL"))]
    run = Run(ops, {"x": x, "z": z}, {"y": want}, eye)
    assert "x.fp16" in run.fp16_tensors
    assert "y" not in run.fp16_tensors
    run.close_to("y", want, 1e-6)


@pytest.mark.parametrize("value", [1e-12, 1e9])
def test_a_constant_that_is_no_half_keeps_an_elementwise_op_in_float32(value: float) -> None:
    x = floats(3, 8)
    enter, eye = through_fp16("x", 8)
    ops = [
        enter,
        op("BinaryOp", "x.fp16 c", "sum", BinaryAttrs("MUL")),
        op("BinaryOp", "sum c", "y", BinaryAttrs("DIV")),
    ]
    constants = {**eye, "c": np.float32(value).reshape(())}
    run = Run(ops, {"x": x}, {"y": x}, constants)
    assert not run.fp16_tensors & {"sum", "y"}
    run.close_to("y", x)


def test_a_scalar_that_halves_hold_does_not() -> None:
    x = floats(3, 8)
    enter, eye = through_fp16("x", 8)
    ops = [
        enter,
        op("BinaryOp", "x.fp16 c", "y", BinaryAttrs("MUL")),
        op("BinaryOp", "y c", "z", BinaryAttrs("DIV")),
    ]
    run = Run(ops, {"x": x}, {"z": x}, {**eye, "c": np.float32(3).reshape(())})
    assert "y" in run.fp16_tensors
    run.close_to("z", x)


# --- ranges ---------------------------------------------------------------------------------------


def test_results_overflow_to_infinity() -> None:
    x = np.array([[3e4, -3e4, 1.0, 0.0]], np.float32)
    ops = [op("MatMul", "x w", "y", MatMulAttrs())]
    y = Run(ops, {"x": x}, {"y": x}, {"w": 4 * np.eye(4, dtype=np.float32)}).results["y"]
    np.testing.assert_array_equal(y, np.array([[np.inf, -np.inf, 4, 0]], np.float32))


def test_weights_beyond_the_range_stay_finite() -> None:
    x = np.array([[1.0, 0.5]], np.float32)
    weight = np.array([[1e9, 16.0], [0.0, -1e30]], np.float32)
    ops = [op("MatMul", "x w", "y", MatMulAttrs())]
    y = Run(ops, {"x": x}, {"y": x}, {"w": weight}).results["y"]
    np.testing.assert_array_equal(y, np.array([[65504, 16 - 32752]], np.float32))


def scores_and_masks() -> Iterator[tuple[str, list[Op], dict[str, Array], dict[str, Array]]]:
    """Yield ways to hide keys: the last row sees none."""
    hidden = np.triu(np.ones((4, 4), np.bool_), 1)
    hidden[3] = True
    added = np.where(hidden, LOWEST, np.float32(0)).astype(np.float32)
    yield (
        "constant sum",
        [op("BinaryOp", "x.fp16 mask", "s", BinaryAttrs("ADD"))],
        {},
        {"mask": added},
    )
    yield "sum", [op("BinaryOp", "x.fp16 mask", "s", BinaryAttrs("ADD"))], {"mask": added}, {}
    lowest = {"low": np.array(LOWEST, np.float32)}
    yield "choice", [op("Select", "mask low x.fp16", "s")], {"mask": hidden}, lowest
    weight = (1 - hidden).astype(np.float32)
    scaled = [
        op("BinaryOp", "one mask", "off", BinaryAttrs("SUB")),
        op("BinaryOp", "off low", "far", BinaryAttrs("MUL")),
        op("BinaryOp", "x.fp16 far", "s", BinaryAttrs("ADD")),
    ]
    yield "scaled", scaled, {"mask": weight}, {**lowest, "one": np.array(1, np.float32)}


@pytest.mark.parametrize(
    ("masking", "feeds", "constants"),
    [pytest.param(*way, id=name) for name, *way in scores_and_masks()],
)
def test_rows_that_see_nothing_are_as_in_float32(
    masking: list[Op], feeds: dict[str, Array], constants: dict[str, Array]
) -> None:
    """Float32 sums with the lowest number forget the scores: the softmax of such a row is even."""
    x = floats(4, 4)
    enter, eye = through_fp16("x", 4)
    ops = [enter, *masking, op("Softmax", "s", "y", SoftmaxAttrs(-1))]
    feeds = {"x": x, **feeds}
    want = np.zeros((4, 4), np.float32)
    for row in range(3):
        power = np.exp(x[row, : row + 1] - x[row, : row + 1].max())
        want[row, : row + 1] = power / power.sum()
    want[3] = 0.25
    Run(ops, feeds, {"y": want}, {**eye, **constants}).close_to("y", want)


def test_masks_of_attention_keep_float32() -> None:
    """A row that sees no key gets the mean of all values, as in float32."""
    x = floats(2, 8, 64)
    mask = np.where(np.arange(8) < 5, np.float32(0), LOWEST).astype(np.float32)
    mask = np.broadcast_to(mask, (2, 1, 8, 8)).copy()
    mask[1, 0, 3] = LOWEST
    weights = {name: floats(64, 64, scale=0.2) for name in ("q", "k", "v")}
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in weights]
    turned = {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}
    for name, order in turned.items():
        nodes.append(helper.make_node("Reshape", [name, "split"], [f"{name}1"]))
        nodes.append(helper.make_node("Transpose", [f"{name}1"], [f"{name}2"], perm=order))
    nodes += [
        helper.make_node("MatMul", ["q2", "k2"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["parts"], axis=-1),
        helper.make_node("MatMul", ["parts", "v2"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "attention",
        [value("x", TensorProto.FLOAT, x.shape), value("mask", TensorProto.FLOAT, mask.shape)],
        [value("y", TensorProto.FLOAT, [2, 4, 8, 16])],
        [
            *(numpy_helper.from_array(array, f"w{name}") for name, array in weights.items()),
            numpy_helper.from_array(np.array([0, 0, 4, 16], np.int64), "split"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    feeds = {"x": x, "mask": mask}
    results = []
    for precision in ("high", "normal"):
        with vkmnn.InferenceSession(model, precision=precision, validation=True) as session:
            results += session.run(None, feeds)
            assert any(op.type == "StridedAttention" for op in session.placement())
    want, got = results
    assert np.isfinite(want).all()
    assert np.abs(got - want).max() < 2**-8 * np.ptp(want)


def test_softmax_of_large_logits() -> None:
    x = np.array([[6e4, -6e4, 6e4 - 64, 0.0], [40, 20, 30, 39.5]], np.float32)
    enter, eye = through_fp16("x", 4)
    ops = [enter, op("Softmax", "x.fp16", "y", SoftmaxAttrs(-1))]
    rounded = x.astype(np.float16).astype(np.float64)
    power = np.exp(rounded - rounded.max(1, keepdims=True))
    want = (power / power.sum(1, keepdims=True)).astype(np.float32)
    Run(ops, {"x": x}, {"y": want}, eye).close_to("y", want)


def test_indices_in_floats_keep_their_digits() -> None:
    """4097 does not fit fp16: a float that becomes an index must not be stored as one."""
    table = np.arange(5000, dtype=np.int32)
    where = np.array([4097.0, 2049.0, 3.0], np.float32)
    ops = [
        op("Cast", "where", "index", CastAttrs(DType.INT64)),
        op("Gather", "table index", "y", AxisAttrs(0)),
    ]
    run = Run(ops, {"where": where}, {"y": table[:3]}, {"table": table})
    np.testing.assert_array_equal(run.results["y"], where.astype(np.int32))


def test_pads_that_are_no_halves_keep_float32() -> None:
    x = floats(3, 8)
    enter, eye = through_fp16("x", 8)
    ops = [enter, op("Pad", "x.fp16 pads value", "y", PadAttrs())]
    constants = {"pads": np.array([0, 1, 0, 0], np.int64), "value": np.array(-1e30, np.float32)}
    want = np.pad(x, ((0, 0), (1, 0)), constant_values=np.float32(-1e30))
    got = Run(ops, {"x": x}, {"y": want}, {**eye, **constants}).results["y"]
    np.testing.assert_array_equal(got[:, 0], want[:, 0])
    np.testing.assert_allclose(got[:, 1:], x, rtol=2**-10)


# --- layouts, views and memory --------------------------------------------------------------------


def fp16_case(ops: Sequence[Op], feeds: dict[str, Array], constants: dict[str, Array]) -> Case:
    """Return a case whose output is that of the last op; its inputs are halves at once."""
    arrays = {**feeds, **constants}
    for one in ops:
        arrays[one.outputs[0]] = run_op(one, [arrays[name] for name in one.inputs])[0]
    name = ops[-1].outputs[0]
    inputs = [tensor_info(key, array) for key, array in feeds.items()]
    outputs = [tensor_info(name, np.asarray(arrays[name]))]
    return Case(Graph("views", inputs, outputs, list(ops), constants), feeds, floats="f16")


def copies(case: Case) -> int:
    names = dispatched_by(case, device(), Picker({}))
    return sum(name.startswith(("raster", "copy")) for name in names)


@pytest.mark.parametrize("channels", [(4, 8), (16, 5), (8, 4, 12), (3, 5)])
@pytest.mark.parametrize("pixels", [(4, 8), (3, 5), (1, 1)])
def test_concat_of_blocked_halves(channels: tuple[int, ...], pixels: tuple[int, int]) -> None:
    feeds = {f"x{i}": floats(1, c, *pixels) for i, c in enumerate(channels)}
    ops = [op("Pooling", name, f"{name}.pool", POOL) for name in feeds]
    pooled = " ".join(f"{name}.pool" for name in feeds)
    ops += [op("Concat", pooled, "all", AxisAttrs(1)), op("Pooling", "all", "y", POOL)]
    run_case(fp16_case(ops, feeds, {}), device(), {})


def test_a_concat_of_halves_costs_no_copy() -> None:
    limits = device().info.limits
    if limits.whole_buffers or limits.storage_offset_alignment > 256:
        pytest.skip("the device binds no such parts")
    feeds = {"a": floats(4, 128), "b": floats(8, 128)}
    ops = [
        op("UnaryOp", "a", "c", UnaryAttrs("NEG")),
        op("UnaryOp", "b", "d", UnaryAttrs("ABS")),
        op("Concat", "c d", "y", AxisAttrs(0)),
    ]
    case = fp16_case([*ops, op("UnaryOp", "y", "z", UnaryAttrs("NEG"))], feeds, {})
    run_case(case, device(), {})
    assert copies(case) == 0


@pytest.mark.parametrize("begin", [0, 1, 3, 4, 8, 16, 128])
@pytest.mark.parametrize("count", [1, 4, 8, 61, 64])
def test_slices_of_halves_at_any_offset(begin: int, count: int) -> None:
    constants = {
        "begin": np.array([begin], np.int64),
        "end": np.array([begin + count], np.int64),
        "axis": np.array([0], np.int64),
    }
    ops = [
        op("UnaryOp", "x", "a", UnaryAttrs("NEG")),
        op("Slice", "a begin end axis", "b"),
        op("UnaryOp", "b", "y", UnaryAttrs("ABS")),
    ]
    run_case(fp16_case(ops, {"x": floats(256)}, constants), device(), {})


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 5), (1, 1, 1, 1), (1, 3, 1, 1)])
def test_small_tensors(shape: tuple[int, ...]) -> None:
    ops = [
        op("UnaryOp", "x", "a", UnaryAttrs("EXP")),
        op("UnaryOp", "a", "b", UnaryAttrs("LOG")),
        op("BinaryOp", "b x", "y", BinaryAttrs("ADD")),
    ]
    run_case(fp16_case(ops, {"x": floats(*shape)}, {}), device(), {})


def test_memory_is_half() -> None:
    """Of activations and of weights; inputs and outputs stay float32."""
    x, w = floats(1, 8, 32, 32), floats(16, 8, 3, 3)
    conv = ConvolutionAttrs((3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
    back = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    ops = [
        op("Convolution", "x w", "a", conv),
        op("Convolution", "a v", "b", back),
        op("Convolution", "b v", "y", back),
    ]
    constants = {"w": w, "v": floats(16, 16, 1, 1)}
    wide, fp16 = (
        Run(ops, {"x": x}, {"y": floats(1, 16, 16, 16)}, constants, element=element)
        for element in FLOATS
    )
    fp16.close_to("y", wide.results["y"])
    assert fp16.memory.activations == wide.memory.activations // 2
    assert fp16.memory.constants <= wide.memory.constants * 0.51
    assert fp16.memory.io == wide.memory.io


def test_a_table_of_constants_is_stored_in_halves() -> None:
    table, index = floats(100, 64), np.array([3, 99, 0], np.int64)
    w = np.eye(64, dtype=np.float32)
    ops = [
        op("Gather", "table index", "rows", AxisAttrs(0)),
        op("MatMul", "rows w", "y", MatMulAttrs()),
    ]
    run = Run(ops, {"index": index}, {"y": table[index]}, {"table": table, "w": w})
    run.close_to("y", table[index])
    assert "rows" in run.fp16_tensors
    assert run.memory.constants < (table.size + w.size) * 2 + 1024


def test_measurements_of_halves_are_kept_apart() -> None:
    x, w = floats(64, 64), floats(64, 64)
    ops = [op("MatMul", "x w", "y", MatMulAttrs())]
    wide, fp16 = (
        Run(ops, {"x": x}, {"y": x}, {"w": w}, element=element).choices for element in FLOATS
    )
    keys = [{choice.key for choice in made if choice.what == "matmul"} for made in (wide, fp16)]
    assert all(keys)
    assert not keys[0] & keys[1]
