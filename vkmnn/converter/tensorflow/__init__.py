"""Frozen graphs of TensorFlow: each node becomes nodes of ONNX, whose converter does the rest.

`docs/formats.md` says what is read. Channels stay last at the inputs and outputs.
"""

from __future__ import annotations

from vkmnn.converter.tensorflow.front_end import TensorflowFrontEnd, read_operators

__all__ = ["TensorflowFrontEnd", "read_operators"]
