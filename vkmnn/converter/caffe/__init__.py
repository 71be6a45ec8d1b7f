"""Caffe's networks: each layer becomes nodes of ONNX, whose converter does the rest.

`docs/formats.md` describes what is supported. Semantics are Caffe's own in the phase TEST and, for
layers of forks, those of the fork.
"""

from __future__ import annotations

from vkmnn.converter.caffe.front_end import CaffeFrontEnd, read_layers

__all__ = ["CaffeFrontEnd", "read_layers"]
