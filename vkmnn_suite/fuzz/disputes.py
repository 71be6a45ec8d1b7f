"""Deviations of onnxruntime from ONNX that vkmnn and the reference evaluator do not share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np
import onnx

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn_suite.fuzz.defined import tied

Inputs = Sequence[AnyArray | None]

_POOLS = "*Pool"
_LOW = -17.0


@dataclass(frozen=True, slots=True)
class Dispute:
    """A deviation of onnxruntime.

    Attributes:
        ops: pattern of the operator's name.
        reason: its behaviour, and why vkmnn behaves differently.
        concerns: returns whether this is about a node with these inputs.
    """

    ops: str
    reason: str
    concerns: Callable[[onnx.NodeProto, Inputs], bool]


def _always(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return True


def _has_nan(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return any(a is not None and a.dtype.kind == "f" and np.isnan(a).any() for a in inputs)


def _is_low(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return any(a is not None and a.dtype.kind == "f" and (a < _LOW).any() for a in inputs)


def _is_float16(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return any(a is not None and a.dtype == np.float16 for a in inputs)


def _causal_with_past(node: onnx.NodeProto, inputs: Inputs) -> bool:
    causal = any(a.name == "is_causal" and a.i for a in node.attribute)
    return causal and any(name for name in node.input[4:6])


def _fractional_length(node: onnx.NodeProto, inputs: Inputs) -> bool:
    modes = (b"align_corners", b"half_pixel_symmetric", b"tf_crop_and_resize")
    kept = (b"not_larger", b"not_smaller")  # sizes then follow from one scale
    scaled = len(node.input) == 3 or any(a.s in kept for a in node.attribute)
    idle = _interpolates(node, inputs) and any(a.name == "nearest_mode" for a in node.attribute)
    framework = idle and any(a.s == modes[0] for a in node.attribute)
    return scaled and not framework and any(a.s in modes for a in node.attribute)


def _is_convolved(node: onnx.NodeProto, inputs: Inputs) -> bool:
    signal = inputs[0]
    return signal is not None and any(size & (size - 1) for size in signal.shape)


def _interpolates(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return any(a.name == "mode" and a.s != b"nearest" for a in node.attribute)


def _is_flat(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return inputs[1] is not None and inputs[1].size != 2


def _has_output_shape(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return len(node.input) > 2


def _is_tied(node: onnx.NodeProto, inputs: Inputs) -> bool:
    x, scales = inputs[0], inputs[min(2, len(inputs) - 1)]
    nearest = not any(a.name == "mode" and a.s != b"nearest" for a in node.attribute)
    if not nearest or x is None or scales is None or scales.size != x.ndim:
        return False
    return any(tied(size, float(scale)) for size, scale in zip(x.shape, scales, strict=True))


def _aligns_corners(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return any(a.name == "align_corners" and a.i for a in node.attribute)


def _sums_nothing(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return inputs[0] is not None and not inputs[0].size


def _infinite_without_bound(node: onnx.NodeProto, inputs: Inputs) -> bool:
    x = inputs[0]
    bounds = [array for array in inputs[1:] if array is not None]
    return x is not None and x.dtype.kind == "f" and bool(np.isinf(x).any()) and len(bounds) < 2


def _rounds_up(node: onnx.NodeProto, inputs: Inputs) -> bool:
    return without_rounding(node) is not node


def without_rounding(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a pooling with VALID padding without ceil_mode, which ONNX says changes nothing.

    Other nodes are returned unchanged.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    valid = "auto_pad" in given and given["auto_pad"].s == b"VALID"
    if not (fnmatch(node.op_type, _POOLS) and valid and "ceil_mode" in given):
        return node
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.attribute.remove(given["ceil_mode"])
    return plain


DISPUTES: tuple[Dispute, ...] = (
    Dispute(
        "Resize",
        "onnxruntime rounds the new length before it aligns; ONNX uses scale · size",
        _fractional_length,
    ),
    Dispute(
        "Resize",
        "onnxruntime has places between elements in float32, and loses digits on long axes",
        _interpolates,
    ),
    Dispute(
        "Resize",
        "onnxruntime divides by scales in float32, where 1.5 / 0.6 is 2.5 and not a little less",
        _is_tied,
    ),
    Dispute(
        "DFT",
        "onnxruntime takes float32 through a convolution where a length is not a power of two, and"
        " is off by 3e-5 of the largest element; vkmnn is by 3e-7",
        _is_convolved,
    ),
    Dispute(
        "Col2Im",
        "onnxruntime mistakes the places of blocks unless images have two axes",
        _is_flat,
    ),
    Dispute(
        "MaxUnpool",
        "onnxruntime counts indices in output_shape; onnx's tests in the shape that follows",
        _has_output_shape,
    ),
    Dispute(
        "InstanceNormalization",
        "onnxruntime multiplies before it subtracts the mean, and loses digits",
        _always,
    ),
    Dispute(
        "MeanVarianceNormalization",
        "onnxruntime takes the root of a difference, which rounding may make negative",
        _always,
    ),
    Dispute("Reduce*", "onnxruntime leaves NaN out in float16", _has_nan),
    Dispute("Sign", "onnxruntime gives 0 for NaN in float16", _has_nan),
    Dispute(
        "Attention",
        "with past keys, onnxruntime's causal mask lets a query see keys that come after it",
        _causal_with_past,
    ),
    Dispute(
        "Attention",
        "onnxruntime keeps scores of float16 in float32; ONNX's function body rounds them, and"
        " large ones become infinite",
        _is_float16,
    ),
    Dispute(
        "AffineGrid",
        "onnxruntime puts the only point of an axis in the middle; ONNX begins at -1",
        _aligns_corners,
    ),
    Dispute(
        "Clip",
        "onnxruntime bounds infinities where a bound is absent; ONNX's function body does nothing",
        _infinite_without_bound,
    ),
    Dispute("Sigmoid", "onnxruntime gives 0 below -18, where it is up to 1.5e-8", _is_low),
    Dispute("Gemm", "onnxruntime leaves beta out where there is nothing to sum", _sums_nothing),
    Dispute(
        _POOLS,
        "onnxruntime rounds up with auto_pad=VALID, where ceil((size - kernel + 1) / stride) leaves"
        " no part of a window",
        _rounds_up,
    ),
)


def reason_of(node: onnx.NodeProto, inputs: Inputs) -> str | None:
    """Return why vkmnn is right about a node that the oracles compute differently, if known."""
    for dispute in DISPUTES:
        if fnmatch(node.op_type, dispute.ops) and dispute.concerns(node, inputs):
            return dispute.reason
    return None
