"""How background-removal tools choose providers, and name inputs by position."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.inter_op_num_threads = 1
options.intra_op_num_threads = 1
if ort.get_device()[0:3] == "GPU" and "CUDAExecutionProvider" in ort.get_available_providers():
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
else:
    providers = ["CPUExecutionProvider"]
session = ort.InferenceSession(sys.argv[1], sess_options=options, providers=providers)
first = session.get_inputs()[0]
outputs = session.run(None, {first.name: np.full((1, 4), 0.5, np.float32)})
print(len(outputs), outputs[0][:, 0].tolist(), first.type, first.shape)
