"""Writes what transformers makes of a picture and a trimap, for `test_matting.py`.

Run it where transformers is installed: python tests/pipelines/oracle_matting.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.pipelines.networks import stripes, trimap

DATA = Path(__file__).resolve().parents[1] / "data" / "pipelines"
SIZE = 45, 70


def write_trimaps() -> None:
    import transformers

    processor = transformers.VitMatteImageProcessorPil()
    found = processor(stripes(*SIZE), trimaps=trimap(*SIZE), return_tensors="np")["pixel_values"]
    np.savez_compressed(DATA / "trimaps.npz", pixel_values=np.asarray(found, np.float16))


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    write_trimaps()
