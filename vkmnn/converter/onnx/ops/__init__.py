"""Converters of ONNX's operators."""
