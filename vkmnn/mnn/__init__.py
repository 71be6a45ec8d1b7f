"""MNN's Python API on any Vulkan device, for ONNX models.

    import vkmnn.mnn as MNN

    net = MNN.Interpreter("model.onnx")
    session = net.createSession({"backend": "VULKAN"})

`python -m vkmnn.mnn app.py` runs a program that imports MNN itself. What differs is in
docs/coming-from-mnn.md.
"""

from __future__ import annotations

from typing import NoReturn

from vkmnn.errors import page
from vkmnn.mnn import expr, nn
from vkmnn.mnn.interpreter import Interpreter, Session
from vkmnn.mnn.tensor import (
    Halide_Type_Double,
    Halide_Type_Float,
    Halide_Type_Int,
    Halide_Type_Int64,
    Halide_Type_String,
    Halide_Type_Uint8,
    Tensor,
    Tensor_DimensionType_Caffe,
    Tensor_DimensionType_Caffe_C4,
    Tensor_DimensionType_Tensorflow,
)

__version__ = "3.6.1"  # of the MNN whose calls these are

__all__ = [
    "Halide_Type_Double",
    "Halide_Type_Float",
    "Halide_Type_Int",
    "Halide_Type_Int64",
    "Halide_Type_String",
    "Halide_Type_Uint8",
    "Interpreter",
    "Session",
    "Tensor",
    "Tensor_DimensionType_Caffe",
    "Tensor_DimensionType_Caffe_C4",
    "Tensor_DimensionType_Tensorflow",
    "expr",
    "nn",
    "version",
]

F = expr


def version() -> str:
    """Return the version of the MNN whose calls these are."""
    return __version__


def __getattr__(name: str) -> NoReturn:
    """Say what is not there, and where to look."""
    raise AttributeError(
        f"module 'vkmnn.mnn' has no attribute '{name}': it answers what runs models; see "
        f"{page('coming-from-mnn')}"
    )
