"""Tensors beyond the device's largest bindable range: ops are split, or visibly run elsewhere."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.plan import Plan
from vkmnn.core.session import Session
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import OutOfDeviceMemoryError, PlacementError
from vkmnn.ir import Activation, Array, DType, OpAttrs
from vkmnn.ir import ops as o
from vkmnn.runtime import Device
from vkmnn.runtime.memory import Buffer, MemoryKind
from vkmnn.runtime.pipeline_store import PipelineStore
from vkmnn.testing.case import Case, blocked_case, op_case
from vkmnn.testing.runner import compare
from vkmnn.vulkan.backend import VulkanBackend

LIMIT = 4 << 10
"""Bytes that the device is said to bind at once: 32 by 32 words."""


@lru_cache
def limited(limit: int = LIMIT, *, texels: bool = False, groups: int = 65535) -> Device:
    """Return the device, as if it bound no more than `limit` bytes as a storage buffer."""
    result = copy.copy(device())
    info = result.info
    limits = dataclasses.replace(
        info.limits, max_storage_buffer_range=limit, max_workgroup_count=(groups,) * 3
    )
    kept = frozenset(name for name in info.features if texels or "texel" not in name)
    result.info = dataclasses.replace(info, limits=limits, features=kept)
    result._pipelines = PipelineStore()  # they know the limits of their device
    return result


def plan_of(case: Case, on: Device) -> Plan:
    backend = VulkanBackend(on, fp16=case.fp16, fp16_inputs=case.fp16)
    return Plan(case.graph, case.infos, {}, backend, CpuBackend(), run_op)


def check(case: Case, on: Device) -> Counter[str]:
    """Run a case on the device alone; return how many ops of each type the plan has."""
    if on.info.limits.whole_buffers:
        pytest.skip("the driver binds whole buffers, so that nothing is cut")
    made = plan_of(case, on)
    assert not made.placement().off_device, str(made.placement())
    results = made.execute(dict(case.feeds))
    for info, want in zip(case.graph.outputs, case.expected(), strict=True):
        compare(results[info.name], want, case)
    made.close()
    return Counter(command.op.type for command in made.commands)


random = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def ints(high: int, *shape: int) -> Array:
    return random.integers(0, high, shape)


def codes(*shape: int) -> Array:
    return random.integers(-90, 90, shape).astype(np.float32)


def bits(*shape: int) -> Array:
    return random.integers(0, 16, shape).astype(np.uint8)


def conv(kernel: int, pad: int = 0, stride: int = 1, group: int = 1) -> o.ConvolutionAttrs:
    return o.ConvolutionAttrs((kernel, kernel), (stride, stride), (1, 1), (pad,) * 4, group=group)


def pool(kind: str, kernel: int, pad: int = 0, stride: int = 1, **more: bool) -> o.PoolingAttrs:
    two = (kernel, kernel)
    return o.PoolingAttrs(kind, two, (stride, stride), (1, 1), (pad,) * 4, **more)


@dataclass(frozen=True)
class Row:
    """An op with an operand or a result that is too large."""

    attrs: o.OpAttrs
    inputs: Sequence[Array | None]
    constant: Sequence[int] = ()
    outputs: int = 1


RELU, ADD = o.UnaryAttrs("RELU"), o.BinaryAttrs("ADD")
UPSCALE = np.array([1, 1, 2, 2], np.float32)
DECONV = o.DeconvolutionAttrs((2, 2), (2, 2), (1, 1), (0,) * 4, (0, 0))
# Two batches of attention between 40 queries and keys, in tensors [batch, row, head, column].
HEADS = o.AttentionAttrs(scale=0.3)

ROWS = {
    "UnaryOp: one element too many": Row(RELU, [floats(1025)]),
    "UnaryOp: images": Row(RELU, [floats(2, 7, 20, 30)]),
    "UnaryOp: a row is too long": Row(RELU, [floats(3, 2051)]),
    "Cast": Row(o.CastAttrs(DType.INT32), [floats(5, 700)]),
    "BinaryOp": Row(ADD, [floats(2, 9, 17, 31), floats(9, 1, 1)]),
    "BinaryOp: broadcast over rows": Row(ADD, [floats(50, 60), floats(60)]),
    "BinaryOp: both broadcast": Row(ADD, [floats(90, 1), floats(1, 90)]),
    "Select": Row(OpAttrs(), [floats(40, 50) > 0, floats(40, 50), floats(1)]),
    "Scale": Row(o.ScaleAttrs(), [floats(1, 12, 20, 21), floats(12), floats(12)], (1, 2)),
    "ImageToTensor: rows": Row(o.ImageToTensorAttrs(bias=(1.0, -2.0, 3.0)), [floats(1, 40, 21, 3)]),
    "ImageToTensor: images": Row(o.ImageToTensorAttrs(False), [floats(9, 5, 3, 11)]),
    "ImageToTensor: one image": Row(o.ImageToTensorAttrs(single=True), [floats(30, 20, 5)]),
    "Convolution: channels": Row(
        conv(3, 1), [floats(1, 3, 16, 16), floats(18, 3, 3, 3), floats(18)], (1, 2)
    ),
    "Convolution: rows": Row(conv(3, 1), [floats(1, 6, 20, 17), floats(5, 6, 3, 3)], (1,)),
    "Convolution: stride": Row(
        conv(5, 2, 2), [floats(1, 3, 34, 31), floats(6, 3, 5, 5), floats(6)], (1, 2)
    ),
    "Convolution: images": Row(
        conv(1), [floats(5, 12, 9, 9), floats(8, 12, 1, 1), None, floats(5, 8, 9, 9)], (1,)
    ),
    "Convolution: depthwise": Row(
        conv(3, 1, group=9), [floats(2, 9, 15, 16), floats(9, 1, 3, 3), floats(9)], (1, 2)
    ),
    "Convolution: groups": Row(
        conv(3, 1, group=3), [floats(1, 12, 13, 13), floats(24, 4, 3, 3)], (1,)
    ),
    "Deconvolution": Row(DECONV, [floats(2, 6, 6, 7), floats(6, 7, 2, 2), floats(7)], (1, 2)),
    "Deconvolution: rows": Row(
        o.DeconvolutionAttrs((3, 4), (2, 3), (2, 1), (1, 0, 2, 1), (1, 2)),
        [floats(1, 4, 13, 12), floats(4, 3, 3, 4)],
        (1,),
    ),
    "Deconvolution: gaps": Row(
        o.DeconvolutionAttrs((2, 2), (3, 3), (1, 1), (0,) * 4, (2, 0)),
        [floats(1, 4, 11, 12), floats(4, 3, 2, 2), floats(3)],
        (1, 2),
    ),
    "Deconvolution: one channel": Row(
        o.DeconvolutionAttrs((5, 5), (1, 1), (1, 1), (2,) * 4, (0, 0)),
        [floats(1, 3, 21, 19), floats(3, 1, 5, 5)],
        (1,),
    ),
    "Pooling: channels": Row(pool("MAX", 3, 1, 2), [floats(1, 13, 17, 18)]),
    "Pooling: images": Row(pool("AVERAGE", 2), [floats(9, 4, 12, 12)]),
    "Pooling: rows": Row(pool("AVERAGE", 3, 1, 2), [floats(1, 3, 41, 40)]),
    "Pooling: ceil": Row(pool("MAX", 3, 0, 2, ceil_mode=True), [floats(1, 2, 40, 36)]),
    "Pooling: whole": Row(o.PoolingAttrs("AVERAGE", is_global=True), [floats(3, 20, 8, 9)]),
    "MatMul: rows": Row(o.MatMulAttrs(), [floats(150, 16), floats(16, 12)], (1,)),
    "MatMul: rows of a result": Row(o.MatMulAttrs(), [floats(99, 4), floats(4, 30)], (1,)),
    "MatMul: columns": Row(
        o.MatMulAttrs(transpose_b=True), [floats(3, 30), floats(130, 30), floats(130)], (1, 2)
    ),
    "MatMul: batch": Row(o.MatMulAttrs(), [floats(6, 20, 18), floats(6, 18, 21)]),
    "MatMul: shared": Row(o.MatMulAttrs(), [floats(5, 2, 20, 18), floats(2, 18, 21)]),
    "MatMul: transposed": Row(o.MatMulAttrs(transpose_a=True), [floats(20, 120), floats(20, 9)]),
    "MatMul: a vector": Row(o.MatMulAttrs(), [floats(200, 8), floats(8)]),
    "NormedMatMul: columns": Row(
        o.NormedMatMulAttrs(norm="RMS", epsilon=1e-5, activation=Activation("SILU")),
        [floats(2, 24), floats(24, 97), floats(97), floats(2, 97)], (1, 2),
    ),
    "NormedMatMul: gates": Row(
        o.NormedMatMulAttrs(True, "STD", 1e-5, Activation("SILU"), gated=True),
        [floats(1, 3, 20), floats(164, 20), floats(164)], (1, 2),
    ),
    "NormedMatMul: rows": Row(
        o.NormedMatMulAttrs(norm="RMS"), [floats(70, 24), floats(24, 8)], (1,)
    ),
    "QuantizedMatMul: columns": Row(
        o.QuantizedMatMulAttrs(False, False, -128, 127),
        [codes(5, 12), codes(12, 130), codes(130), None, np.exp2(codes(130) // 9)],
        (1, 2, 4),
    ),
    "QuantizedMatMul: rows": Row(
        o.QuantizedMatMulAttrs(False, True, 0, 255),
        [codes(190, 12), codes(9, 12), None, None, np.float32([1 / 128])], (1, 4),
    ),
    "MatMulNBits: columns": Row(
        o.MatMulNBitsAttrs(4, 32, 64, 259),
        [floats(2, 64), bits(259, 2, 16), floats(259), floats(2, 259), floats(259, 2) / 9,
         bits(259, 2)], (1, 2, 4, 5),
    ),
    "MatMulNBits: gates": Row(
        o.MatMulNBitsAttrs(8, 16, 32, 324, Activation("SILU"), epsilon=1e-5, gated=True),
        [floats(1, 32), bits(324, 2, 16), None, None, floats(324, 2) / 99, None, floats(32)],
        (1, 4, 6),
    ),
    "MatMulNBits: rows": Row(
        o.MatMulNBitsAttrs(4, 16, 64, 8),
        [floats(2, 41, 64), bits(8, 4, 8), None, None, floats(8, 4) / 9], (1, 4),
    ),
    "GatherNBits: table": Row(
        o.GatherNBitsAttrs(4, 16, 64, 120),
        [bits(120, 4, 8), ints(120, 3, 2), floats(120, 4), bits(120, 4)], (0, 2, 3),
    ),
    "GatherNBits: indices": Row(
        o.GatherNBitsAttrs(8, 16, 16, 30), [bits(30, 1, 16), ints(30, 99), floats(30, 1)], (0, 2)
    ),
    "Softmax": Row(o.SoftmaxAttrs(-1), [floats(33, 50)]),
    "Softmax: channels": Row(o.SoftmaxAttrs(1), [floats(1, 5, 20, 21)]),
    "LayerNorm": Row(o.LayerNormAttrs(-1), [floats(3, 30, 20), floats(20), floats(20)], (1, 2)),
    "LayerNorm: residual": Row(
        o.LayerNormAttrs(-1), [floats(3, 30, 20), floats(20), floats(3, 30, 20)], (1,)
    ),
    "GroupNorm": Row(
        o.GroupNormAttrs(3), [floats(2, 12, 11, 10), floats(12), floats(12)], (1, 2)
    ),
    "InstanceNorm": Row(o.GroupNormAttrs(), [floats(1, 7, 15, 16), floats(7), floats(7)], (1, 2)),
    "LRN": Row(o.LRNAttrs(3), [floats(2, 5, 17, 16)]),
    "Reduction": Row(o.ReductionAttrs("MEAN"), [floats(40, 50), np.array([1])], (1,)),
    "Reduction: outer": Row(
        o.ReductionAttrs("SUM", keepdims=False), [floats(20, 90), np.array([0])], (1,)
    ),
    "Reduction: all": Row(o.ReductionAttrs("MAX"), [floats(40, 50)]),
    **{
        f"Reduction: {kind} of a row": Row(
            o.ReductionAttrs(kind, keepdims=False), [np.abs(floats(2, 2010)), np.array([1])], (1,)
        )
        for kind in o.REDUCTION_KINDS
        if kind != "PROD"
    },
    "Reduction: PROD": Row(o.ReductionAttrs("PROD"), [floats(1030) / 9 + 1]),
    "ArgMax": Row(o.ArgReduceAttrs(1, keepdims=False), [floats(30, 60)]),
    "TopK": Row(o.TopKAttrs(), [floats(30, 60), np.array([3])], (1,), 2),
    "CumSum": Row(o.CumSumAttrs(), [floats(30, 60), np.array(1)], (1,)),
    "Interp": Row(o.InterpAttrs("linear"), [floats(1, 9, 9, 10), None, UPSCALE], (2,)),
    "Interp: sizes": Row(
        o.InterpAttrs("nearest"),
        [floats(2, 6, 9, 10), None, None, np.array([2, 6, 18, 15])],
        (3,),
    ),
    "GridSample": Row(
        o.GridSampleAttrs(), [floats(2, 9, 11, 11), floats(2, 12, 13, 2) / 2]
    ),
    "Gather: rows": Row(o.AxisAttrs(0), [floats(100, 40), ints(100, 7)], (0,)),
    "Gather: indices": Row(o.AxisAttrs(1), [floats(5, 6), ints(6, 300)]),
    "GatherElements": Row(o.AxisAttrs(1), [floats(60, 30), ints(30, 50, 40)]),
    "GatherND": Row(o.GatherNDAttrs(1), [floats(8, 9, 30), ints(9, 8, 6, 1)]),
    "ScatterElements": Row(
        o.ScatterElementsAttrs(1, "add"), [floats(60, 30), ints(30, 60, 5), floats(60, 5)]
    ),
    "ScatterND": Row(
        o.ScatterNDAttrs("add"), [floats(20, 70), ints(20, 6, 1), floats(6, 70)]
    ),
    "OneHot": Row(
        o.AxisAttrs(-1), [ints(20, 80), np.array(20), np.array([0, 1], np.float32)], (1,)
    ),
    "BitCast": Row(o.BitCastAttrs(DType.INT32), [floats(9, 300)]),
    "Det": Row(OpAttrs(), [floats(150, 3, 3)]),
    "MatMul: matrices by a vector": Row(o.MatMulAttrs(), [floats(6, 30, 18), floats(18)]),
    "QuantizedConvolution: channels": Row(
        o.QuantizedConvolutionAttrs(
            (3, 3), (1, 1), (1, 1), (1,) * 4, 1, "NOTSET", -128.0, 127.0
        ),
        [codes(1, 3, 12, 11), codes(36, 3, 3, 3) // 9, codes(36), None,
         np.exp2(codes(36) // 15)], (1, 2, 4),
    ),
    "QuantizedConvolution: groups": Row(
        o.QuantizedConvolutionAttrs(
            (1, 1), (1, 1), (1, 1), (0,) * 4, 6, "NOTSET", -128.0, 127.0
        ),
        [codes(1, 12, 13, 13), codes(24, 2, 1, 1), codes(24), None,
         np.float32([1 / 64] * 24)], (1, 2, 4),
    ),
    "RoiAlign": Row(
        o.RoiAlignAttrs((6, 5), 2),
        [floats(1, 9, 9, 8), np.float32([[0, 0, 5, 6], [1, 2, 7, 7], [3, 1, 4, 8]] * 3),
         np.zeros(9, np.int64)],
    ),
    "RoiPool": Row(
        o.RoiPoolAttrs((6, 5)), [floats(1, 9, 9, 8), np.float32([[0, 1, 1, 5, 6]] * 7)],
    ),
    "DeformColumns": Row(
        o.DeformColumnsAttrs((2, 2), (1, 1), (1, 1), (0,) * 4),
        [floats(8, 3, 6, 6), floats(8, 8, 5, 5) / 4],
    ),
    "LinearAttention": Row(
        o.LinearAttentionAttrs(2, 2), [floats(9, 5, 24), floats(9, 5, 24), floats(9, 5, 40)],
        outputs=2,
    ),
    "Transpose": Row(o.TransposeAttrs((0, 2, 3, 1)), [floats(2, 6, 17, 19)]),
    "Transpose: a matrix": Row(o.TransposeAttrs(), [floats(41, 43)]),
    "Concat": Row(o.AxisAttrs(1), [floats(2, 300), floats(2, 801)]),
    "Pad": Row(o.PadAttrs(), [floats(30, 50), np.array([1, 2, 3, 4]), np.float32(9)], (1, 2)),
    "Pad: reflected": Row(o.PadAttrs("reflect"), [floats(30, 50), np.array([1, 2, 3, 4])], (1,)),
    "Expand": Row(OpAttrs(), [floats(1, 60), np.array([40, 60])], (1,)),
    "Recurrent": Row(
        o.RecurrentAttrs("LSTM", (Activation("TANH"),) * 3),
        [floats(5, 40, 28), floats(1, 28, 7)], (1,), 3,
    ),
    "Recurrent: batch first": Row(
        o.RecurrentAttrs("GRU", (Activation("TANH"),) * 4, "BIDIRECTIONAL", batch_first=True),
        [floats(37, 4, 42), floats(2, 21, 7), None, np.arange(37, dtype=np.int32) % 5,
         floats(37, 2, 7)], (1,), 2,
    ),
    "Attention": Row(HEADS, [floats(2, 4, 40, 8), floats(2, 4, 40, 8), floats(2, 4, 40, 8)]),
    "Attention: mask": Row(
        HEADS,
        [floats(1, 2, 40, 8), floats(1, 2, 40, 8), floats(1, 2, 40, 8), floats(1, 1, 40, 40)],
    ),
    "Attention: causal": Row(
        o.AttentionAttrs(0.3, causal=True),
        [floats(3, 2, 40, 8), floats(3, 2, 40, 8), floats(3, 2, 40, 8)],
    ),
}  # fmt: skip
"""Ops by the tensor that is too large."""


def case_of(name: str) -> Case:
    row = ROWS[name]
    return op_case(
        name.partition(":")[0] if name != "InstanceNorm" else "GroupNorm",
        row.attrs,
        row.inputs,
        constant=row.constant,
        outputs=row.outputs,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", ROWS)
def test_an_op_is_cut(name: str) -> None:
    check(case_of(name), limited())


@pytest.mark.parametrize("name", ROWS)
def test_an_op_is_cut_in_halves(name: str) -> None:
    if "storage16" not in device().info.features:
        pytest.skip("the device has no 16-bit storage")
    case = dataclasses.replace(case_of(name), floats="f16")
    check(case, limited(LIMIT // 2))


@pytest.mark.parametrize("name", ["UnaryOp: images", "Transpose", "Concat", "MatMul: rows"])
def test_an_op_is_cut_where_kernels_load_through_texel_buffers(name: str) -> None:
    check(case_of(name), limited(texels=True))


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("channels", [8, 13])
@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("UnaryOp", RELU),
        ("Softmax", o.SoftmaxAttrs(1)),
        ("Transpose", o.TransposeAttrs((0, 1, 3, 2))),
        ("Transpose", o.TransposeAttrs((0, 2, 3, 1))),
    ],
)
def test_large_tensors_change_their_layout(
    op_type: str, attrs: OpAttrs, images: int, channels: int
) -> None:
    check(blocked_case(op_type, attrs, [floats(images, channels, 17, 15)]), limited())


@pytest.mark.parametrize("pixels", [(34, 33), (1, 700)])
def test_a_block_of_channels_exceeds_the_range(pixels: tuple[int, int]) -> None:
    check(blocked_case("UnaryOp", RELU, [floats(2, 5, *pixels)]), limited())


def test_what_fits_is_not_cut() -> None:
    kinds = check(op_case("UnaryOp", RELU, [floats(1024)]), limited())
    assert kinds == {"UnaryOp": 1}


def test_parts_lie_where_they_were() -> None:
    """A channel takes a multiple of 256 bytes, the largest alignment that devices may ask for."""
    made = plan_of(op_case("UnaryOp", RELU, [floats(1, 8, 16, 16)]), limited())
    assert made.memory().activations == 0, "slices or results were copied"
    made.close()


def test_too_many_workgroups_are_cut() -> None:
    case = op_case("MatMul", o.MatMulAttrs(), [floats(40, 20, 18), floats(40, 18, 21)])
    kinds = check(case, limited(1 << 13, groups=16))
    assert kinds["MatMul"] > 1


ROW = np.arange(2000, dtype=np.float32)


def test_what_cannot_be_cut_is_placed_elsewhere() -> None:
    case = op_case("CumSum", o.CumSumAttrs(), [ROW, np.array(0)], constant=[1])
    made = plan_of(case, limited())
    (placed,) = made.placement()
    assert placed.backend == "CPU"
    assert "takes 8000 bytes, more than the 4096 that the device binds" in placed.reason
    (result,) = made.execute(dict(case.feeds)).values()
    np.testing.assert_array_equal(result, np.cumsum(ROW))
    made.close()


def test_a_constant_that_packing_makes_too_large_is_placed_elsewhere() -> None:
    # Each of 4 output channels takes 3 words of every block of 4 input channels' 9 taps.
    case = op_case(
        "Convolution", conv(3, 1), [floats(1, 65, 3, 3), floats(4, 65, 3, 3)], constant=[1]
    )
    made = plan_of(case, limited())
    (placed,) = made.placement()
    assert placed.backend == "CPU"
    assert "that the device binds as one buffer" in placed.reason
    made.close()


def test_it_is_an_error_where_the_device_is_required() -> None:
    case = op_case("CumSum", o.CumSumAttrs(), [ROW, np.array(0)], constant=[1])
    backend = VulkanBackend(limited())
    session = Session(case.graph, backend, CpuBackend(), run_op, require_main=True)
    with pytest.raises(PlacementError, match="more than the 4096 that the device binds"):
        session.run(dict(case.feeds))


def test_whole_buffers_are_not_cut_unless_constants_are() -> None:
    on = copy.copy(limited())
    limits = dataclasses.replace(on.info.limits, whole_buffers=True)
    on.info = dataclasses.replace(on.info, limits=limits)
    check(case_of("MatMul: columns"), on)
    case = case_of("Convolution: channels")
    made = plan_of(case, on)
    (placed,) = made.placement()
    assert "more than the 4096 that the device binds" in placed.reason
    compare(made.execute(dict(case.feeds))["out0"], case.expected()[0], case)
    made.close()


def test_what_does_not_fit_memory_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = Device.allocate

    def small(on: Device, nbytes: int, kind: MemoryKind) -> Buffer:
        if kind is MemoryKind.DEVICE:
            raise OutOfDeviceMemoryError("the memory does not exist")
        return allocate(on, nbytes, kind)

    monkeypatch.setattr(Device, "allocate", small)
    with pytest.raises(OutOfDeviceMemoryError, match=r"not there; the plan needs \d+ bytes for"):
        plan_of(case_of("Convolution: rows"), device())
