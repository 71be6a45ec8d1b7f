"""Random ONNX models on vkmnn: `python -m vkmnn.testing.fuzz`."""
