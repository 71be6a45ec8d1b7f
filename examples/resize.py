"""Feed one session inputs of several sizes: each new size is planned once, then only replayed.

python examples/resize.py [device]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx.parser

import vkmnn

# A blur of any image: the network's sizes are symbols, so each run may bring its own.
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
blur (float[N, 1, H, W] image) => (float[N, 1, H, W] blurred)
<float[1, 1, 3, 3] kernel = {1, 2, 1, 2, 4, 2, 1, 2, 1}, float sixteen = {16}>
{
    summed = Conv <pads = [1, 1, 1, 1]> (image, kernel)
    blurred = Div (summed, sixteen)
}
"""
SIZES = [(1, 32, 32), (1, 64, 64), (3, 37, 53), (1, 32, 32), (3, 37, 53)]


def main(device: str = "auto") -> None:
    """Blur images of several sizes and show what the first run of a size costs."""
    model = onnx.parser.parse_model(MODEL)
    with vkmnn.InferenceSession(model, device=device) as session:
        print(f"device  {session.device.name}")
        for batch, height, width in SIZES:
            image = np.random.default_rng(0).random((batch, 1, height, width), dtype=np.float32)
            start = time.perf_counter()
            (blurred,) = session.run(None, {"image": image})
            spent = (time.perf_counter() - start) * 1e3
            rough, smooth = float(image.std()), float(blurred.std())
            size = f"{batch} x {height} x {width}"
            print(f"{size:12}  {spent:7.2f} ms   spread {rough:.3f} -> {smooth:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
