"""How scripts for detectors read names of classes and sizes from the model."""

from __future__ import annotations

import ast
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
meta = session.get_modelmeta()
names = ast.literal_eval(meta.custom_metadata_map["names"])
stride = int(meta.custom_metadata_map["stride"])
half = "float16" in session.get_inputs()[0].type
outputs = [output.name for output in session.get_outputs()]
x = np.eye(4, dtype=np.float16 if half else np.float32)
scores = session.run(outputs, {session.get_inputs()[0].name: x})[-1]
print([names[int(row.argmax())] for row in scores], stride, meta.producer_name, meta.version)
