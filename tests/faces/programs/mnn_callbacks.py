"""How programs for MNN look into a network: a runtime for two sessions, batches, op by op."""

from __future__ import annotations

import sys

import MNN
import numpy as np

net = MNN.Interpreter(sys.argv[1])
config = {
    "backend": sys.argv[2],
    "precision": "high",
    "memory": "low",
    "power": "low",
    "numThread": 2,
}
runtime, exists = net.createRuntime(config)
assert all(exists)
first, second = net.createSession(config, runtime), net.createSession(config, runtime)
print("backend", net.getSessionInfo(first, 2))

picture = np.linspace(0, 1, 3 * 8 * 8).reshape(8, 8, 3) - (0.4, 0.5, 0.6)
picture = picture.transpose((2, 0, 1)).astype(np.float32)


def fill(session: MNN.Session, batch: int) -> None:
    target = net.getSessionInputAll(session)["image"]
    net.resizeTensor(target, (batch, 3, 8, 8))
    net.resizeSession(session)
    data = np.stack([picture] * batch)
    order = MNN.Tensor_DimensionType_Caffe
    target.copyFrom(MNN.Tensor((batch, 3, 8, 8), MNN.Halide_Type_Float, data, order))


fill(first, 1)
fill(second, 3)
assert net.getSessionInfo(second, 1) > 2 * net.getSessionInfo(first, 1)
assert net.getSessionInfo(first, 3) == 0

operations: list[float] = []
sizes: list[tuple[int, ...]] = []


def begin(tensors: list[MNN.Tensor], info: MNN.OpInfo) -> bool:
    operations.append(info.getFlops())
    return bool(info.getName() and info.getType())


def end(tensors: list[MNN.Tensor], info: MNN.OpInfo) -> bool:
    sizes.extend(tensor.getShape() for tensor in tensors)
    return True


assert net.runSessionWithCallBackInfo(first, begin, end) == 0
assert abs(sum(operations) - net.getSessionInfo(first, 1)) < 1e-2
assert (1, 5) in sizes
stops = net.runSessionWithCallBack(second, lambda tensors, name: True, lambda tensors, name: False)
assert stops == 11
net.runSession(second)

one = net.getSessionOutput(first, "scores").getNumpyData()
three = net.getSessionOutputAll(second)["scores"]
host = MNN.Tensor(three.getShape(), MNN.Halide_Type_Float, MNN.Tensor_DimensionType_Caffe)
three.copyToHostTensor(host)
assert np.allclose(host.getNumpyData(), np.repeat(one, 3, axis=0), atol=1e-4)
print("class", np.argmax(one), np.round(one, 4).tolist())
