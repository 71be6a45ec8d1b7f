"""MNN's Python API on any Vulkan device, for ONNX models.

    import vkmnn.mnn as MNN

    net = MNN.Interpreter("model.onnx")
    session = net.createSession({"backend": "VULKAN"})

`python -m vkmnn.mnn app.py` runs a program that imports MNN itself. The differences are in
docs/coming-from-mnn.md.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from vkmnn.mnn import expr, nn, numpy
from vkmnn.mnn.codes import ErrorCode, error_code, return_error_codes
from vkmnn.mnn.interpreter import Interpreter, OpInfo, Session
from vkmnn.mnn.refused import refuse
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
    "ErrorCode",
    "Halide_Type_Double",
    "Halide_Type_Float",
    "Halide_Type_Int",
    "Halide_Type_Int64",
    "Halide_Type_String",
    "Halide_Type_Uint8",
    "Interpreter",
    "OpInfo",
    "Session",
    "Tensor",
    "Tensor_DimensionType_Caffe",
    "Tensor_DimensionType_Caffe_C4",
    "Tensor_DimensionType_Tensorflow",
    "error_code",
    "expr",
    "get_model_uuid",
    "nn",
    "numpy",
    "return_error_codes",
    "version",
]

F = expr


def version() -> str:
    """Return the version of the MNN whose calls these are."""
    return __version__


def get_model_uuid(path: str | Path) -> str:
    """Return the identifier in a `.mnn` file; "" if there is none."""
    from vkmnn.converter.mnn import model_uuid

    return model_uuid(os.fspath(path))


_LATE = ("cv", "llm")
_IMAGES = (
    *("CVImageProcess", "CVMatrix", "CV_Filter_BICUBIC", "CV_Filter_BILINEAL"),
    *("CV_Filter_NEAREST", "CV_ImageFormat_BGR", "CV_ImageFormat_BGRA", "CV_ImageFormat_GRAY"),
    *("CV_ImageFormat_RGB", "CV_ImageFormat_RGBA", "CV_ImageFormat_YUV_NV21"),
    *("CV_Wrap_CLAMP_TO_EDGE", "CV_Wrap_REPEAT", "CV_Wrap_ZERO"),
)


def __getattr__(name: str) -> Any:
    """Import the modules for images and language models with their first use."""
    if name in _LATE:
        return import_module(f"vkmnn.mnn.{name}")
    if name in _IMAGES:
        return getattr(import_module("vkmnn.mnn.image_process"), name)
    return refuse("", name)
