"""Random ONNX models on vkmnn: `python -m vkmnn_suite.fuzz`."""
