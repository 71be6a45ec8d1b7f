"""How libraries for embeddings open a model and run it."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort

available = ort.get_available_providers()
wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
providers = [name for name in wanted if name in available]
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
model = ort.InferenceSession(sys.argv[1], providers=providers, sess_options=options)
if "CUDAExecutionProvider" in wanted and "CUDAExecutionProvider" not in model.get_providers():
    print("no CUDA")
needed = {node.name for node in model.get_inputs()}
tokens = {"x": np.ones((2, 4), np.float32), "y": np.ones(3)}
tokens = {name: array for name, array in tokens.items() if name in needed}
print(model.run(None, tokens)[0].round(3).tolist())
