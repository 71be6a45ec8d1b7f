"""Where ONNX leaves a node's result open; such nodes are neither generated nor compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from vkmnn.cpu_fallback.registry import AnyArray

Inputs = Sequence[AnyArray | None]
Rule = Callable[[Mapping[str, Any], Inputs], bool]


def undefined(node: onnx.NodeProto, inputs: Inputs) -> bool:
    """True when the result depends on who computes it."""
    divisor = _STEPS.get(node.op_type)
    if divisor is not None and (_array(inputs, divisor) == 0).any():
        return True
    rule = _RULES.get(node.op_type)
    if rule is None:
        return False
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    try:
        return rule(given, inputs)
    except (LookupError, ValueError):  # shapes that do not fit together
        return True


def _array(inputs: Inputs, index: int) -> AnyArray:
    array = inputs[index] if index < len(inputs) else None
    return np.zeros(0, np.float32) if array is None else array


def _is_integer(array: AnyArray) -> bool:
    return array.dtype.kind in "iu"


def _divides_by_zero(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Integers by zero, or the lowest by -1."""
    a, b = _array(inputs, 0), _array(inputs, 1)
    if not _is_integer(b) or not b.size:
        return False
    lowest = a.dtype.kind == "i" and bool((a == np.iinfo(a.dtype).min).any())
    return bool((b == 0).any()) or (lowest and bool((b == -1).any()))


def _modulo(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Also floats by zero, and values that are not finite."""
    a, b = _array(inputs, 0), _array(inputs, 1)
    if _divides_by_zero(attributes, inputs):
        return True
    return not _is_integer(b) and not (
        np.isfinite(a).all() and np.isfinite(b).all() and (b != 0).all()
    )


def _power(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Integers to negative powers, results beyond the type, and floats that are not integers."""
    a, b = _array(inputs, 0), _array(inputs, 1)
    if not _is_integer(a):
        return False
    if not np.isfinite(b).all() or bool((b < 0).any()):
        return True
    if b.dtype.kind == "f" and bool((a < 0).any()) and bool((b != np.round(b)).any()):
        return True
    with np.errstate(all="ignore"):
        wide = np.power(a.astype(np.float64), b.astype(np.float64))
    return bool(wide.size) and float(np.abs(wide).max()) > min(np.iinfo(a.dtype).max, 2**24)


def _shift(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    amount = _array(inputs, 1)
    bits = np.iinfo(amount.dtype).bits
    return bool(((amount < 0) | (amount >= bits)).any())


def _cast(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Floats that the integer type cannot hold."""
    to = attributes.get("to")
    target = (
        _array(inputs, 1).dtype if to is None else onnx.helper.tensor_dtype_to_np_dtype(int(to))
    )
    return _beyond(_array(inputs, 0), target)


def _beyond(array: AnyArray, target: np.dtype[Any]) -> bool:
    if array.dtype.kind != "f" or target.kind not in "iu" or not array.size:
        return False
    limits = np.iinfo(target)
    wide = np.trunc(array.astype(np.float64))
    return not bool(((wide >= limits.min) & (wide < float(limits.max) + 1.0)).all())


def _not_finite(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    return any(a is not None and a.dtype.kind == "f" and not np.isfinite(a).all() for a in inputs)


def _has_nan(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """NaN, which onnxruntime's activations turn into one of their bounds."""
    return any(a is not None and a.dtype.kind == "f" and np.isnan(a).any() for a in inputs)


def _top_k(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """The index among equal values, and the position of NaN."""
    x = _array(inputs, 0)
    if _not_finite(attributes, inputs):
        return True
    if not x.ndim or not attributes.get("sorted", 1):
        return True
    ordered = np.sort(x, axis=attributes.get("axis", -1))
    return bool((np.diff(ordered, axis=attributes.get("axis", -1)) == 0).any())


def _gather_nd(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """The reference evaluator does not mind other batches of indices than of data."""
    count = attributes.get("batch_dims", 0)
    return bool(_array(inputs, 0).shape[:count] != _array(inputs, 1).shape[:count])


def _max_pool(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Values that are not finite are compared somehow."""
    return _not_finite(attributes, inputs) or _pool(attributes, inputs)


def _pool(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """A window that is larger than its input, or that is outside of it.

    SAME padding that would have to be negative: kernels crop the image somewhere, or not at all.
    """
    kernel = attributes["kernel_shape"]
    axes = len(kernel)
    sizes = np.array(_array(inputs, 0).shape[2:])
    pads = np.array(attributes.get("pads", [0] * 2 * axes))
    extent = (np.array(kernel) - 1) * np.array(attributes.get("dilations", [1] * axes)) + 1
    if attributes.get("auto_pad", b"").startswith(b"SAME"):
        steps = np.array(attributes.get("strides", [1] * axes))
        return bool(((-(-sizes // steps) - 1) * steps + extent < sizes).any())
    if bool((extent > sizes + pads[:axes] + pads[axes:]).any()):
        return True
    strides = attributes.get("strides", [1] * axes)
    for axis in range(axes):
        step = (int(extent[axis]) - 1) // max(1, kernel[axis] - 1) or 1
        last = int(sizes[axis] + pads[axis + axes]) - int(extent[axis])
        starts = np.arange(-int(pads[axis]), last + strides[axis], strides[axis])
        taps = starts[:, None] + step * np.arange(kernel[axis])
        inside = (taps >= 0) & (taps < sizes[axis])
        if sizes[axis] and not inside[starts <= last].any(axis=1).all():
            return True
    return False


def _pool_of_codes(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """As for _pool; onnxruntime adds the zero point before it rounds, so ties may go either way.

    By QuantizeLinear's definition, rounding comes first; both agree if the zero point is even.
    """
    zero = _array(inputs, 4) if len(inputs) > 4 and inputs[4] is not None else np.zeros(1, np.uint8)
    return bool(zero.astype(np.int32).item() % 2) or _pool(attributes, inputs)


def _quantize(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    scale = _array(inputs, 1)
    return _not_finite(attributes, inputs) or bool((scale == 0).any())


def _dynamic_quantize(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """All zeros have the scale 0."""
    x = _array(inputs, 0)
    return _not_finite(attributes, inputs) or not x.size or not np.any(x)


def _causal_convolution(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """The reference evaluator does not mind other channels than the weight's."""
    return bool(_array(inputs, 0).shape[1] != _array(inputs, 1).shape[0])


def _group_norm(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """The reference evaluator lets scale and bias broadcast."""
    scale = _array(inputs, 1)
    fitting = (_array(inputs, 0).shape[1], attributes["num_groups"])
    return scale.shape != _array(inputs, 2).shape or scale.size not in fitting


def _by_channel(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """It lets other vectors broadcast as well."""
    x = _array(inputs, 0)
    count = x.shape[1] if x.ndim > 1 else 1
    return any(a is not None and a.shape != (count,) for a in inputs[1:])


def _skip(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Kernels of onnxruntime read other batches of the skip in a circle."""
    return bool(_array(inputs, 0).shape != _array(inputs, 1).shape)


def _resize(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Coordinates by which float32 and float64 choose different elements, where nothing decides.

    The reference evaluator does not know tf_half_pixel_for_nn, and uses scale · size as the length
    that pytorch_half_pixel refers to: 1.5 is one element, but not to the evaluator.
    """
    if _not_finite(attributes, inputs):
        return True
    mode = attributes.get("coordinate_transformation_mode")
    scales = _array(inputs, 2).astype(np.float64)
    if mode == b"pytorch_half_pixel" and scales.size:
        return any(
            1 < size * float(scale) < 2 for size in _array(inputs, 0).shape for scale in scales
        )
    if mode != b"tf_half_pixel_for_nn" or attributes.get("mode", b"nearest") != b"nearest":
        return False
    shape, scales, sizes = _array(inputs, 0).shape, _array(inputs, 2), _array(inputs, 3)
    factors = scales if scales.size else sizes / np.maximum(shape, 1)
    return any(tied(size, float(factor)) for size, factor in zip(shape, factors, strict=True))


def tied(size: int, factor: float) -> bool:
    """True when float32 and float64 see coordinates of a resized axis on two sides of a tie."""
    halves = np.arange(2 * np.ceil(size * factor) + 1) / 2
    exact = np.floor(2 * halves / factor)
    rounded = np.floor(2 * halves.astype(np.float32) / np.float32(factor))
    return bool((exact != rounded).any())


def _rotary(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Heads whose elements do not form pairs, or not as many as there are angles."""
    shape = _array(inputs, 0).shape
    width, rest = divmod(shape[-1], attributes.get("num_heads", 1) if len(shape) == 3 else 1)
    turned = attributes.get("rotary_embedding_dim", 0) or width
    table = _array(inputs, 2 if _array(inputs, 1).dtype.kind == "i" else 1)  # onnxruntime's, ONNX's
    return bool(rest or width % 2 or 2 * table.shape[-1] != turned)


def _group_query(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Lengths that do not add up: onnxruntime computes something."""
    query, past, last, total = (_array(inputs, index) for index in (0, 3, 5, 6))
    length, lasts = query.shape[1], last.reshape(-1).tolist()
    count = int(total.reshape(-1)[0])
    fits = length <= count <= past.shape[2] + length and max(lasts) == count - 1
    return not fits or min(lasts) < (count if length > 1 else 1) - 1


def _hidden(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Keys and values of different lengths, or not finite, some of which a mask may hide."""
    if _array(inputs, 1).shape[-2:-1] != _array(inputs, 2).shape[-2:-1]:
        return True
    return len(inputs) > 3 and _not_finite(attributes, inputs[1:3])


def _fused_gemm(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Sigmoids far below 0, which onnxruntime flushes; nothing else implements this operator."""
    sizes = [float(np.abs(_array(inputs, i)).sum()) for i in range(2)]
    return attributes.get("activation") == b"Sigmoid" and sizes[0] * sizes[1] > 17


def _log_sum_exp(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Exponentials beyond the type, which the reference evaluator does not scale first."""
    x = _array(inputs, 0)
    return bool(x.size) and bool(x.max() > np.log(np.finfo(x.dtype).max) - 1)


def _range(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    return bool((_array(inputs, 2) == 0).any()) or _not_finite(attributes, inputs)


def _grid_sample(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Images and grids of two types, which onnxruntime has no kernel for.

    The reference evaluator clamps the position, whereas ONNX clamps the element that each tap of a
    cubic reads.
    """
    return _array(inputs, 0).dtype != _array(inputs, 1).dtype or _not_finite(attributes, inputs)


def _scaled_product(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Scales with the wrong number of columns: onnxruntime uses the first of them."""
    return _array(inputs, 3).size not in (1, _array(inputs, 1).shape[-1])


def _dynamic_product(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """Empty products, for which onnxruntime omits the bias; values that cannot be quantised."""
    return _not_finite(attributes, inputs) or not _array(inputs, 0).size


def _integer_mean(attributes: Mapping[str, Any], inputs: Inputs) -> bool:
    """An empty tensor, divided by its size."""
    x = _array(inputs, 0)
    return _is_integer(x) and not x.size


_RULES: Mapping[str, Rule] = {
    "Div": _divides_by_zero,
    "Mod": _modulo,
    "Pow": _power,
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast,
    "TopK": _top_k,
    "GatherND": _gather_nd,
    "MaxPool": _max_pool,
    "AveragePool": _pool,
    "QLinearAveragePool": _pool_of_codes,
    "LpPool": _pool,
    "ArgMax": _not_finite,
    "ArgMin": _not_finite,
    "Hardmax": _not_finite,
    "QuantizeLinear": _quantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Range": _range,
    "SkipLayerNormalization": _skip,
    "SkipSimplifiedLayerNormalization": _skip,
    "InstanceNormalization": _by_channel,
    "BatchNormalization": _by_channel,
    "GroupNormalization": _group_norm,
    "CausalConvWithState": _causal_convolution,
    "Resize": _resize,
    "RotaryEmbedding": _rotary,
    "Upsample": _not_finite,
    "GridSample": _grid_sample,
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulIntegerToFloat": _scaled_product,
    "ReduceMean": _integer_mean,
    "GroupQueryAttention": _group_query,
    "Attention": _hidden,
    "FusedGemm": _fused_gemm,
    "ReduceLogSumExp": _log_sum_exp,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _has_nan),
}
"""By operator; NaN and infinity if they meet comparisons or interpolation weights of 0."""

_STEPS: Mapping[str, int] = {
    "QLinearConcat": 0,
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean"), 3),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), 3),
    **dict.fromkeys(("QLinearAdd", "QLinearMul", "QLinearConv", "QLinearMatMul"), 6),
    **dict.fromkeys(("QLinearWhere", "QGemm"), 7),
}
"""Operator -> the position of the scale of its results, by which they are divided."""
