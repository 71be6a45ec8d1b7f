"""Load an ONNX model, run it on the best Vulkan device, and see where each op runs.

python examples/quickstart.py [model.onnx] [device]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import vkmnn

DIGITS = Path(__file__).parent / "digits" / "digits.onnx"


def main(model: str | Path = DIGITS, device: str = "auto") -> None:
    """Run `model` once on random data; symbolic dimensions are taken as 1."""
    rng = np.random.default_rng(0)
    with vkmnn.InferenceSession(model, device=device) as session:
        feeds = {}
        for item in session.get_inputs():
            shape = [size if isinstance(size, int) else 1 for size in item.shape or ()]
            feeds[item.name] = rng.random(shape).astype(item.dtype)
            print(f"input   {item.name}: {item.dtype} {shape}")

        results = session.run(None, feeds)

        for item, result in zip(session.get_outputs(), results, strict=True):
            print(f"output  {item.name}: {result.dtype} {list(result.shape)}")
        print(f"device  {session.device.name}\n")
        print(session.placement())


if __name__ == "__main__":
    main(*sys.argv[1:3])
