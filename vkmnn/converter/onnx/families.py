"""Import this module to fill the registry with every converter of the package."""

from __future__ import annotations

from vkmnn.converter.onnx import custom  # noqa: F401
from vkmnn.converter.onnx.contrib import attention as contrib_attention  # noqa: F401
from vkmnn.converter.onnx.contrib import common as contrib  # noqa: F401
from vkmnn.converter.onnx.contrib import decoding as contrib_decoding  # noqa: F401
from vkmnn.converter.onnx.contrib import experts as contrib_experts  # noqa: F401
from vkmnn.converter.onnx.contrib import fused as contrib_fused  # noqa: F401
from vkmnn.converter.onnx.contrib import group_query as contrib_group_query  # noqa: F401
from vkmnn.converter.onnx.contrib import quantized as contrib_quantized  # noqa: F401
from vkmnn.converter.onnx.ops import (  # noqa: F401
    activation,
    attention,
    boxes,
    compaction,
    composed,
    conv,
    elementwise,
    gather,
    matmul,
    movement,
    norm,
    pool,
    recurrent,
    reduce,
    resize,
    shape_ops,
    signal,
    training,
    unfold,
)
from vkmnn.converter.onnx.quantized import integer_products, packed, qlinear, quantize  # noqa: F401
