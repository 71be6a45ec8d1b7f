"""Import this module to fill the registry with every converter of the package."""

from __future__ import annotations

from vkmnn.converter.onnx import (  # noqa: F401 - imported for what they register
    activation,
    attention,
    boxes,
    compaction,
    composed,
    contrib,
    contrib_attention,
    contrib_experts,
    contrib_group_query,
    contrib_quantized,
    conv,
    custom,
    elementwise,
    gather,
    matmul,
    movement,
    norm,
    packed,
    pool,
    qlinear,
    quantize,
    recurrent,
    reduce,
    resize,
    shape_ops,
    signal,
    training,
    unfold,
)
