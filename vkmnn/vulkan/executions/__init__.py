"""The Vulkan executions, one module per op family; each registers itself when imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vkmnn.vulkan.execution import EXECUTIONS, VulkanExecution

MODULES: Mapping[str, tuple[str, ...]] = {
    "append": ("Append", "UnpackRows"),
    "arg_reduce": ("ArgMax", "ArgMin"),
    "attention": ("StridedAttention",),
    "binary": ("BinaryOp",),
    "cached_attention": ("CachedAttention",),
    "cast": ("BitCast", "Cast"),
    "convolution": ("Convolution", "DynamicQuantizeConvolution", "QuantizedConvolution"),
    "cum_sum": ("CumProd", "CumSum"),
    "deconvolution": ("Deconvolution",),
    "deform_columns": ("DeformColumns",),
    "det": ("Det",),
    "dynamic_range": ("DynamicRange",),
    "elementwise": ("Elementwise",),
    "experts": ("ExpertMatMul",),
    "gathering": ("Gather", "GatherElements", "GatherND"),
    "grid_sample": ("GridSample",),
    "group_norm": ("GroupNorm",),
    "image_to_tensor": ("ImageToTensor",),
    "interp": ("Interp",),
    "layer_norm": ("LayerNorm",),
    "linear_attention": ("LinearAttention",),
    "lrn": ("LRN",),
    "matmul": ("DynamicQuantizeMatMul", "MatMul", "NormedMatMul", "QuantizedMatMul"),
    "non_max_suppression": ("NonMaxSuppression",),
    "one_hot": ("OneHot",),
    "packed": ("GatherNBits", "MatMulNBits"),
    "pooling": ("Pooling",),
    "raster": ("ConvertTensor", "Raster"),
    "recurrent": ("Recurrent",),
    "reduction": ("Reduction",),
    "regions": ("RoiAlign", "RoiPool"),
    "rotary": ("Rotary",),
    "sample_token": ("SampleToken",),
    "scale": ("Scale",),
    "scattering": ("ScatterElements", "ScatterND"),
    "select": ("Select",),
    "softmax": ("Softmax",),
    "top_k": ("TopK",),
    "unary": ("UnaryOp",),
    "unlowered": ("Col2Im", "DFT"),
}
"""The module that registers the executions of each op type."""

_HOMES = {op_type: module for module, op_types in MODULES.items() for op_type in op_types}


def execution_of(op_type: str) -> type[VulkanExecution[Any]] | None:
    """Return the execution of an op type, or None; import the module that registers it."""
    found = EXECUTIONS.get(op_type)
    if found is None and op_type in _HOMES:
        import_module(f"{__name__}.{_HOMES[op_type]}")
        found = EXECUTIONS.get(op_type)
    return found


def load_all() -> None:
    """Import every module of this package, so that all executions are registered."""
    for module in MODULES:
        import_module(f"{__name__}.{module}")
