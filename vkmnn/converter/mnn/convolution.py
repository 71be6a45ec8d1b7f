"""Convolutions, products with constants, and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.converter.mnn.nodes import MnnOp, enum_name, reads
from vkmnn.converter.mnn.weights import convolution_weights
from vkmnn.converter.nodes import INT32, INT64
from vkmnn.errors import ModelError
from vkmnn.ir import Array
from vkmnn.schema import Table


def _activation(common: Table) -> str:
    return "RELU6" if common.scalar("relu6") else "RELU" if common.scalar("relu") else "NONE"


def _padding(op: MnnOp, common: Table) -> dict[str, Any]:
    """Return the pads as ONNX's attributes."""
    mode = enum_name("PadMode", common.integer("padMode"))
    if mode == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if mode == "VALID":
        return {"pads": [0, 0, 0, 0]}
    pads = common.integers("pads")
    if not pads:
        x, y = common.integer("padX"), common.integer("padY")
        pads = [y, x, y, x]
    if len(pads) != 4:
        raise op.unreadable(f"pads {pads}")
    return {"pads": pads}


def _window(common: Table) -> dict[str, Any]:
    return {
        "kernel_shape": [common.integer("kernelY"), common.integer("kernelX")],
        "strides": [common.integer("strideY"), common.integer("strideX")],
        "dilations": [common.integer("dilateY"), common.integer("dilateX")],
    }


def _shaped(op: MnnOp, weights: Array, first: int, kernel: list[int]) -> Array:
    """Return weights with four axes: the given first ones, then the rest."""
    window = kernel[0] * kernel[1]
    if first <= 0 or window <= 0 or weights.size % (first * window) or not weights.size:
        raise ModelError(
            f"{weights.size} weights are not those of {first} channels and a kernel of {kernel}",
            op=op.type,
            node=op.name,
        )
    return weights.reshape(first, -1, *kernel)


@reads("Convolution", "ConvolutionDepthwise")
def convolution(op: MnnOp) -> None:
    """Conv; with two or three inputs the weights are tensors."""
    op.need(1)
    table = op.parameters("Convolution2D")
    common = table.table("common")
    if common is None or table.table("symmetricQuan") is not None:
        raise op.unreadable("a convolution of integers")
    options = _window(common) | _padding(op, common)
    group = common.integer("group")
    if len(op.inputs) > 1:
        operands = _computed(op, op.inputs[1:3])
        del options["kernel_shape"]
    else:
        weights, bias = convolution_weights(op, table)
        outputs = common.integer("outputCount")
        shaped = _shaped(op, weights, outputs, options["kernel_shape"])
        operands = [op.scope.constant(shaped, op.name)]
        if bias.size:
            operands.append(op.scope.constant(_bias(op, bias, outputs), op.name))
        if op.type == "ConvolutionDepthwise":
            group = outputs if shaped.shape[1] == 1 else group
    options["group"] = max(group, 1)
    if op.rank(0) == 3:  # a 1-D sequence is an image of width 1
        wide = op.make("Unsqueeze", op.inputs[0], op.constant([3]))
        result = op.make("Squeeze", op.make("Conv", wide, *operands, **options), op.constant([3]))
    else:
        result = op.make("Conv", op.inputs[0], *operands, **options)
    op.finish_active(result, _activation(common))


def _computed(op: MnnOp, operands: Sequence[str]) -> list[str]:
    """Return weights and a bias that are tensors; 1-D weights get a last axis."""
    weights, *bias = operands
    shape = op.scope.shapes.get(weights)
    if shape is not None and len(shape) == 3:
        weights = op.make("Unsqueeze", weights, op.constant([3]))
    return [weights, *bias]


def _bias(op: MnnOp, bias: Array, outputs: int) -> Array:
    if bias.size != outputs:
        raise ModelError(f"{bias.size} biases for {outputs}", op=op.type, node=op.name)
    return bias


@reads("Deconvolution", "DeconvolutionDepthwise")
def deconvolution(op: MnnOp) -> None:
    """ConvTranspose."""
    op.need(1)
    table = op.parameters("Convolution2D")
    common = table.table("common")
    if common is None:
        raise op.unreadable("a transposed convolution without parameters")
    options = _window(common) | _padding(op, common)
    given = list(op.inputs[1:])
    if common.scalar("hasOutputShape"):
        sizes = op.integers(len(op.inputs) - 1)
        if sizes is None or len(sizes) != 4:
            raise op.unreadable("a transposed convolution whose sizes are computed")
        # MNN states the sizes with channels last, and pads as needed.
        options |= {"output_shape": sizes[1:3], "auto_pad": "SAME_UPPER"}
        given.pop()
    extra = common.integers("outPads")
    if extra:
        options["output_padding"] = extra
    outputs = common.integer("outputCount")
    depthwise = op.type == "DeconvolutionDepthwise"
    group = outputs if depthwise else max(common.integer("group"), 1)
    if given:
        operands = _computed(op, given[:2])
    else:
        weights, bias = convolution_weights(op, table)
        kernel = options["kernel_shape"]
        each = 1 if depthwise else outputs // group
        first = weights.size // max(each * kernel[0] * kernel[1], 1)
        shaped = _shaped(op, weights, first, kernel)
        operands = [op.scope.constant(shaped, op.name)]
        if bias.size:
            operands.append(op.scope.constant(_bias(op, bias, outputs), op.name))
    if op.rank(0) == 3:  # a 1-D sequence is an image of width 1
        wide = op.make("Unsqueeze", op.inputs[0], op.constant([3]))
        result = op.make("ConvTranspose", wide, *operands, group=group, **options)
        op.finish_active(op.make("Squeeze", result, op.constant([3])), _activation(common))
        return
    result = op.make("ConvTranspose", op.inputs[0], *operands, group=group, **options)
    op.finish_active(result, _activation(common))


@reads("InnerProduct")
def inner_product(op: MnnOp) -> None:
    """Gemm over the remaining axes."""
    op.need(1)
    table = op.parameters("InnerProduct")
    weights, bias = convolution_weights(op, table)
    outputs = table.integer("outputCount")
    if outputs <= 0 or weights.size % outputs:
        raise ModelError(f"{weights.size} weights for {outputs}", op=op.type, node=op.name)
    shaped = (
        weights.reshape(-1, outputs) if table.scalar("transpose") else weights.reshape(outputs, -1)
    )
    flat = op.make("Flatten", op.inputs[0], axis=table.integer("axis"))
    operands = [op.scope.constant(shaped, op.name)]
    if bias.size:
        operands.append(op.scope.constant(_bias(op, bias, outputs), op.name))
    op.finish("Gemm", flat, *operands, transB=0 if table.scalar("transpose") else 1)


@reads("Pooling")
def pooling(op: MnnOp) -> None:
    """MaxPool and AveragePool of pictures."""
    op.need(1)
    table = op.parameters("Pool")
    largest = enum_name("PoolType", table.integer("type")) == "MAXPOOL"
    if table.scalar("isGlobal"):
        op.finish("GlobalMaxPool" if largest else "GlobalAveragePool", op.inputs[0])
        return
    options: dict[str, Any] = {
        "kernel_shape": [table.integer("kernelY"), table.integer("kernelX")],
        "strides": [max(table.integer("strideY"), 1), max(table.integer("strideX"), 1)],
        "ceil_mode": int(table.scalar("ceilModel")),
    }
    kind = enum_name("PoolPadType", table.integer("padType"))
    if kind == "SAME":
        options["auto_pad"] = "SAME_UPPER"
    elif kind != "VALID":
        x, y = table.integer("padX"), table.integer("padY")
        pads = table.integers("pads") or [y, x, y, x]
        options["pads"] = [pads[0], 0, pads[1], 0] if len(pads) == 2 else pads
    if not largest:
        count = enum_name("AvgPoolCountType", table.integer("countType"))
        options["count_include_pad"] = int(count == "INCLUDE_PADDING")
        op.finish("AveragePool", op.inputs[0], **options)
    elif len(op.outputs) == 1:
        op.finish("MaxPool", op.inputs[0], **options)
    else:
        indexes = op.scope.fresh(op.name)
        outputs = [op.outputs[0], indexes]
        op.scope.emit("MaxPool", op.inputs[:1], outputs, op.name, **options)
        op.scope.types[indexes] = INT64
        op.scope.emit("Cast", [indexes], op.outputs[1:2], op.name, INT32, to=INT32)


@reads("Pooling3D")
def pooling_3d(op: MnnOp) -> None:
    """Pooling over any number of axes; ONNX's global ones are written like this as well."""
    op.need(1)
    table = op.parameters("Pool3D")
    kind = "Max" if enum_name("PoolType", table.integer("type")) == "MAXPOOL" else "Average"
    if table.scalar("isGlobal"):
        op.finish(f"Global{kind}Pool", op.inputs[0])
        return
    options: dict[str, Any] = {
        "kernel_shape": table.integers("kernels"),
        "strides": table.integers("strides"),
    }
    mode = enum_name("PoolPadType", table.integer("padType"))
    if mode == "SAME":
        options["auto_pad"] = "SAME_UPPER"
    elif mode != "VALID":
        pads = table.integers("pads")
        options["pads"] = pads * 2 if len(pads) == len(options["kernel_shape"]) else pads
    op.finish(f"{kind}Pool", op.inputs[0], **options)


@reads("MatMul", "BatchMatMul")
def matmul(op: MnnOp) -> None:
    """MatMul of tensors; the third input is a bias."""
    op.need(2)
    transposed = [False, False]
    if op.main is not None and op.main.kind == "MatMul":
        transposed = [bool(op.main.scalar("transposeA")), bool(op.main.scalar("transposeB"))]
    elif op.main is not None and op.main.kind == "BatchMatMulParam":
        transposed = [bool(op.main.scalar("adjX")), bool(op.main.scalar("adjY"))]
    operands = [
        _transposed(op, number) if swap else op.inputs[number]
        for number, swap in enumerate(transposed)
    ]
    result = op.make("MatMul", *operands)
    if len(op.inputs) > 2:
        op.finish("Add", result, op.inputs[2])
    else:
        op.finish("Identity", result)


def _transposed(op: MnnOp, number: int) -> str:
    rank = op.rank(number)
    if rank is None or rank < 2:
        raise op.unreadable("a transposed operand of unknown rank")
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return op.make("Transpose", op.inputs[number], perm=perm)


@reads("Scale")
def scale(op: MnnOp) -> None:
    """A factor and a summand for each channel."""
    from vkmnn.converter.mnn.weights import floats

    op.need(1)
    table = op.parameters("Scale")
    factors, summands = floats(op, table, "scaleData", 0), floats(op, table, "biasData", 1)
    if not summands.size:
        summands = np.zeros_like(factors)
    _normalise(op, factors, summands, np.zeros_like(factors), np.ones_like(factors), 0.0)


@reads("BatchNorm")
def batch_norm(op: MnnOp) -> None:
    """Normalisation by statistics that are known."""
    op.need(1)
    table = op.parameters("BatchNorm")
    names = ("slopeData", "biasData", "meanData", "varData")
    arrays = [table.vector(name).astype(np.float32) for name in names]
    _normalise(op, *arrays, float(table.scalar("epsilon")))


def _normalise(op: MnnOp, *arrays: Any) -> None:
    *vectors, epsilon = arrays
    if len({vector.size for vector in vectors}) != 1 or not vectors[0].size:
        raise ModelError("its scales and biases differ in number", op=op.type, node=op.name)
    names = [op.scope.constant(vector, op.name) for vector in vectors]
    op.finish("BatchNormalization", op.inputs[0], *names, epsilon=epsilon)
