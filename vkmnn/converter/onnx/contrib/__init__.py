"""Converters of onnxruntime's own operators."""
