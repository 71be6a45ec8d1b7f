"""All of vkmnn's front ends: importing this module registers them.

The one for vkmnn's own files, which needs no converter, is registered before.
"""

from __future__ import annotations

from vkmnn.converter import caffe, keras, language, mnn, onnx, tensorflow, tflite, torch

__all__ = ["caffe", "keras", "language", "mnn", "onnx", "tensorflow", "tflite", "torch"]
