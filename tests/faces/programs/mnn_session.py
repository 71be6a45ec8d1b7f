"""How programs for MNN's sessions classify an image."""

from __future__ import annotations

import sys

import MNN
import numpy as np


def host_like(tensor: MNN.Tensor) -> MNN.Tensor:
    shape = tensor.getShape()
    data = np.ones(shape, dtype=np.float32)
    return MNN.Tensor(shape, tensor.getDataType(), data, tensor.getDimensionType())


net = MNN.Interpreter(sys.argv[1])
net.setCacheFile(".cachefile")
net.setSessionMode(9)
net.setSessionHint(0, 20)
session = net.createSession({"backend": sys.argv[2], "precision": "high", "numThread": 4})
print("backend", net.getSessionInfo(session, 2))
picture = np.linspace(0, 1, 3 * 8 * 8).reshape(8, 8, 3) - (0.4, 0.5, 0.6)
picture = picture.transpose((2, 0, 1)).astype(np.float32)
source = MNN.Tensor((1, 3, 8, 8), MNN.Halide_Type_Float, picture, MNN.Tensor_DimensionType_Caffe)
target = net.getSessionInput(session)
net.resizeTensor(target, (1, 3, 8, 8))
net.resizeSession(session)
target.copyFrom(source)
net.runSession(session)
output = net.getSessionOutput(session)
host = host_like(output)
output.copyToHostTensor(host)
net.updateCacheFile(session, 0)
print("class", np.argmax(host.getData()), np.round(host.getNumpyData(), 4).tolist())
