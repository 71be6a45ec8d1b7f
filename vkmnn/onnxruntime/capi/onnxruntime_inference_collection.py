"""Classes that programs import from onnxruntime's Python part."""

from __future__ import annotations

from vkmnn.onnxruntime.binding import IOBinding
from vkmnn.onnxruntime.session import InferenceSession, Session
from vkmnn.onnxruntime.values import OrtDevice, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "Session"]
