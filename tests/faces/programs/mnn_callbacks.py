"""How programs for MNN inspect a network: a runtime for two sessions, batches, op by op."""

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
runtime, exists = MNN.Interpreter.createRuntime((config,))
assert exists == (True,)
first, second = net.createSession(config, runtime), net.createSession(config, runtime)
print("backend", net.getSessionInfo(first, 2))

picture = np.linspace(0, 1, 3 * 8 * 8).reshape(8, 8, 3) - (0.4, 0.5, 0.6)
picture = picture.transpose((2, 0, 1)).astype(np.float32)


def resize(session: MNN.Session, batch: int) -> None:
    net.resizeTensor(net.getSessionInputAll(session)["image"], (batch, 3, 8, 8))
    net.resizeSession(session)


def fill(session: MNN.Session, batch: int) -> None:
    """Sessions of one runtime share memory in MNN: inputs are filled right before a run."""
    data = np.stack([picture] * batch)
    order = MNN.Tensor_DimensionType_Caffe
    source = MNN.Tensor((batch, 3, 8, 8), MNN.Halide_Type_Float, data, order)
    net.getSessionInputAll(session)["image"].copyFrom(source)


resize(first, 1)
resize(second, 3)
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


fill(first, 1)
assert net.runSessionWithCallBackInfo(first, begin, end) == 0
assert abs(sum(operations) - net.getSessionInfo(first, 1)) < 1e-2
assert (1, 5) in sizes
one = net.getSessionOutput(first, "scores").getNumpyData()

fill(second, 3)
stops = net.runSessionWithCallBack(second, lambda tensors, name: True, lambda tensors, name: False)
assert stops == 11
fill(second, 3)
assert net.runSession(second) == 0
three = net.getSessionOutputAll(second)["scores"]
host = MNN.Tensor(three.getShape(), MNN.Halide_Type_Float, MNN.Tensor_DimensionType_Caffe)
three.copyToHostTensor(host)
assert np.allclose(host.getNumpyData(), np.repeat(one, 3, axis=0), atol=1e-4)
print("class", np.argmax(one), np.round(one, 4).tolist())
