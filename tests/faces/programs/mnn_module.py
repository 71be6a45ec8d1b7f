"""How programs for MNN's modules classify an image with channels last."""

from __future__ import annotations

import sys

import MNN
import MNN.nn as nn
import numpy as np

runtime = nn.create_runtime_manager(({"precision": "high", "backend": sys.argv[2]},))
runtime.set_cache(".cachefile")
runtime.set_mode(9)
runtime.set_hint(0, 20)
net = nn.load_module_from_file(sys.argv[1], ["image"], ["scores"], runtime_manager=runtime)
print("backend", 7 if sys.argv[2] == "VULKAN" else 0)
picture = np.linspace(0, 1, 3 * 8 * 8).reshape(8, 8, 3) - (0.4, 0.5, 0.6)
source = MNN.expr.placeholder([1, 8, 8, 3], MNN.expr.NHWC)
source.write(picture.astype(np.float32))
source = MNN.expr.convert(source, MNN.expr.NC4HW4)
output = net.forward(source)
output = MNN.expr.convert(output, MNN.expr.NHWC)
print("class", np.argmax(output.read()), np.round(output.read(), 4).tolist())
