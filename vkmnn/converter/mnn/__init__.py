"""MNN's model files: each op becomes nodes of ONNX, whose converter does the rest.

`docs/coming-from-mnn.md` describes what is supported. Semantics are those of MNN 3.6 if ONNX has
the same, else ONNX's: models are read as their authors wrote them.
"""

from __future__ import annotations

from vkmnn.converter.mnn import convolution, data, math  # noqa: F401 - they register ops
from vkmnn.converter.mnn.front_end import MnnFrontEnd, model_uuid
from vkmnn.converter.mnn.nodes import read_ops

__all__ = ["MnnFrontEnd", "model_uuid", "read_ops"]
