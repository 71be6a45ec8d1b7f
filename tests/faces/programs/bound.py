"""How pipelines bind and reuse memory, and handle errors."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

try:
    ort.InferenceSession("missing.onnx", providers=["CPUExecutionProvider"])
except NoSuchFile as error:
    print("File doesn't exist" in str(error))
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
z = np.zeros((2, 3), np.float32)
binding = ort.IOBinding(session)
shape = tuple(x.shape)
binding.bind_input("x", "cpu", 0, np.float32, shape, x.ctypes.data)
binding.bind_output("z", "cpu", 0, np.float32, z.shape, z.ctypes.data)
binding.bind_output("y", "cpu")
for _ in range(2):
    session.run_with_iobinding(binding)
    print(z.round(3).tolist(), [value.shape() for value in binding.get_outputs()])
    x += 1
value = ort.OrtValue.ortvalue_from_numpy(x)
print(session.run_with_ort_values(["z"], {"x": value})[0].numpy().round(3).tolist())
try:
    session.run(None, {"x": x.astype(np.float64)})
except InvalidArgument as error:
    print("Unexpected input data type" in str(error))
