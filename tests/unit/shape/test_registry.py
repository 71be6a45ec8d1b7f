from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkmnn.cpu_fallback import cpu_execution, has_execution, placed_execution, run_op
from vkmnn.errors import InvalidInputError, ModelError, PluginError, ShapeError, VkmnnError
from vkmnn.ir import HOST_GRAPH, OP_TYPES, DType, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    ConvolutionAttrs,
    DeconvolutionAttrs,
    EinsumAttrs,
    GatherNDAttrs,
    InterpAttrs,
    PadAttrs,
    PoolingAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    SplitAttrs,
)
from vkmnn.shape import (
    compute_shapes,
    size_computer,
)
from vkmnn.shape.registry import COMPUTERS


def info(shape, dtype=DType.FLOAT32, name="x"):
    return TensorInfo(name, dtype, shape)


@pytest.mark.parametrize("op_type", [name for name in OP_TYPES if name != HOST_GRAPH])
def test_every_operator_is_covered(op_type):
    assert has_execution(op_type)
    # Whoever makes one of these knows its output.
    assert (op_type in COMPUTERS) == (op_type not in ("Raster", "StridedAttention"))


def test_duplicates_are_refused():
    for decorator in (size_computer, cpu_execution, placed_execution):
        for name in ("Concat", "Raster"):
            if decorator is size_computer and name == "Raster":
                continue
            with pytest.raises(PluginError, match=name):
                decorator(name)(lambda *_: [])


@pytest.mark.usefixtures("registrations")
def test_a_new_operator():
    size_computer("Twice")(lambda op, inputs, values: [(DType.INT8, (2, *inputs[0].dims))])
    (result,) = compute_shapes(Op("Twice", "n", ["x"], ["y"], OpAttrs()), [info((3,))], [None])
    assert result == TensorInfo("y", DType.INT8, (2, 3))


def test_unknown_operators():
    op = Op("Frobnicate", "n", ["x"], ["y"], OpAttrs())
    with pytest.raises(ShapeError, match="Frobnicate") as error:
        compute_shapes(op, [info((3,))], [None])
    assert error.value.hint
    with pytest.raises(ModelError, match="Frobnicate") as missing:
        run_op(op, [np.zeros(3)])
    assert missing.value.hint


def test_output_names_and_optional_outputs():
    op = Op("LayerNorm", "n", ["x"], ["y", "", "s"], OP_TYPES["LayerNorm"].attrs())
    shapes = compute_shapes(op, [info((2, 3))], [None])
    assert [item.name for item in shapes] == ["y", "", "s"]
    assert [item.dims for item in shapes] == [(2, 3), (2, 1), (2, 1)]
    op.outputs = ["y"]
    assert len(compute_shapes(op, [info((2, 3))], [None])) == 1
    assert len(run_op(op, [np.zeros((2, 3), np.float32)])) == 1


def test_too_many_outputs():
    op = Op("Identity", "n", ["x"], ["y", "z"], OpAttrs())
    with pytest.raises(ShapeError, match="2 outputs"):
        compute_shapes(op, [info((3,))], [None])
    with pytest.raises(ModelError, match="2 outputs"):
        run_op(op, [np.zeros(3)])


def test_unknown_content_is_an_error_with_a_way_out():
    op = Op("Reshape", "flat", ["x", "s"], ["y"], ReshapeAttrs(), source="Reshape 'flat/1'")
    with pytest.raises(ShapeError, match="unknown") as error:
        compute_shapes(op, [info((3,)), info((1,), DType.INT64)], [None, None])
    text = str(error.value)
    assert "flat/1" in text
    assert "float32[3], int64[1]" in text
    assert "hint" in text


def test_unknown_shapes_are_an_error():
    op = Op("Identity", "n", ["x"], ["y"], OpAttrs())
    with pytest.raises(VkmnnError, match="no static shape"):
        compute_shapes(op, [info(("N", 3))], [None])


def test_python_exceptions_do_not_leak():
    op = Op("Split", "n", ["x"], ["y"], SplitAttrs(axis="first"))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="n"):
        compute_shapes(op, [info((3,))], [None])
    with pytest.raises(InvalidInputError, match="float32"):
        run_op(
            Op("BinaryOp", "n", ["a", "b"], ["y"], BinaryAttrs("ADD")),
            [np.zeros(2, np.float32), np.zeros(3, np.float32)],
        )


SIZES = st.lists(st.integers(0, 5), max_size=5).map(tuple)
NUMBERS = st.lists(st.integers(-3, 5), max_size=5).map(tuple)
ATTRIBUTES = st.one_of(
    st.builds(
        lambda *given: ("Convolution", ConvolutionAttrs(*given)),
        *([NUMBERS] * 4),
        st.integers(-1, 3),
        st.sampled_from(["NOTSET", "SAME_UPPER", "VALID"]),
    ),
    st.builds(
        lambda *given, group: ("Deconvolution", DeconvolutionAttrs(*given, group=group)),
        *([NUMBERS] * 6),
        group=st.integers(-1, 3),
    ),
    st.builds(
        lambda *given: ("Pooling", PoolingAttrs(*given)),
        st.sampled_from(["MAX", "AVERAGE", "LP"]),
        *([NUMBERS] * 4),
        st.sampled_from(["NOTSET", "SAME_LOWER", "VALID"]),
        st.booleans(),
    ),
    st.builds(lambda axis: ("Concat", AxisAttrs(axis)), st.integers(-6, 6)),
    st.builds(lambda axis: ("Gather", AxisAttrs(axis)), st.integers(-6, 6)),
    st.builds(lambda axis: ("GatherElements", AxisAttrs(axis)), st.integers(-6, 6)),
    st.builds(lambda axis: ("Flatten", AxisAttrs(axis)), st.integers(-6, 6)),
    st.builds(lambda batch: ("GatherND", GatherNDAttrs(batch)), st.integers(-1, 3)),
    st.builds(lambda mode: ("Pad", PadAttrs(mode)), st.sampled_from(["constant", "reflect"])),
    st.builds(lambda zero: ("Reshape", ReshapeAttrs(zero)), st.booleans()),
    st.builds(lambda keep: ("Reduction", ReductionAttrs("SUM", keep)), st.booleans()),
    st.builds(lambda text: ("Einsum", EinsumAttrs(text)), st.text("ij.,->", max_size=9)),
    st.sampled_from([(name, OpAttrs()) for name in ("Expand", "Tile", "Squeeze", "Unsqueeze")]),
    st.builds(lambda mode: ("Interp", InterpAttrs(mode)), st.sampled_from(["linear", "cubic"])),
)


@settings(max_examples=1000, deadline=None, database=None)
@given(ATTRIBUTES, SIZES, NUMBERS, SIZES)
def test_shapes_foretell_results_whatever_the_model_says(choice, shape, numbers, second):
    """compute_shapes returns exactly run_op's shapes, or raises a VkmnnError and nothing else."""
    op_type, attrs = choice
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    if op_type in ("Convolution", "Deconvolution"):
        arrays = [x, np.ones(second, np.float32)]
    elif op_type in ("Concat", "Einsum"):
        arrays = [x, x]
    elif op_type in ("Pooling", "Flatten"):
        arrays = [x]
    elif op_type.startswith("Gather"):
        arrays = [x, np.zeros(second, np.int64)]
    elif op_type == "Interp":
        arrays = [x, None, None, np.int64(numbers)]
    else:
        arrays = [x, np.int64(numbers)]
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    op = Op(op_type, "node", names, ["y"], attrs)
    infos = [
        None if array is None else info(array.shape, DType(array.dtype.name)) for array in arrays
    ]
    contents = [array if i in OP_TYPES[op.type].content else None for i, array in enumerate(arrays)]
    try:
        (wanted,) = compute_shapes(op, infos, contents)
    except VkmnnError as error:
        located = error.op
        wanted = None
    if wanted is None:
        assert located == op_type
        return
    try:
        (result,) = run_op(op, arrays)
    except InvalidInputError:
        # Only an index can be wrong once the shapes are right.
        assert op_type.startswith("Gather")
        return
    assert result.shape == wanted.dims
    assert result.dtype == wanted.dtype.numpy


@pytest.mark.parametrize("shape", [(0, 2**31 - 1, 2**31 - 1), (2**40, 0, 2**40), (0, 2**62)])
def test_empty_tensors_have_sizes_that_can_be_counted(shape):
    """numpy multiplies the sizes of an empty array as well, and so do strides."""
    sizes = TensorInfo("s", DType.INT64, (len(shape),))
    op = Op("ConstantOfShape", "fill", ["s"], ["y"], OP_TYPES["ConstantOfShape"].attrs())
    with pytest.raises(ShapeError, match="the output would be"):
        compute_shapes(op, [sizes], [np.array(shape, np.int64)])
    (small,) = compute_shapes(op, [sizes], [np.array([0, *shape[1:]], np.int64) // 2**35])
    assert 0 in small.dims
