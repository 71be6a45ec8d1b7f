"""Many small pictures: `vkmnn map` beside loops that decode, prepare and run one after the other.

A loop is a process of its own: `python -m benchmarks.mapping ENGINE MODEL FOLDER OUTPUT DEVICE`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkmnn.host.sessions import session_options

Array = np.ndarray[Any, np.dtype[Any]]
_SIZE = 32
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_STD = np.array([0.229, 0.224, 0.225], np.float32)
LOOPS = ("vkmnn", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Rate:
    """Pictures a second, of a whole process: its start is part of it.

    `processor_us` is the processor time of a picture; `error` explains missing results.
    """

    engine: str
    rate: float = 0.0
    processor_us: float = 0.0
    error: str = ""


def measure(
    count: int, rounds: int, devices: Sequence[str], tell: Callable[[str], object]
) -> list[Rate]:
    """Return the medians of loops and of `vkmnn map`, which take turns.

    Args:
        count: pictures.
        rounds: runs of each.
        devices: values of `--devices`; the loop takes the first.
        tell: shows what runs.
    """
    with tempfile.TemporaryDirectory(prefix="vkmnn-map-") as place:
        folder = Path(place)
        _fill(folder, count)
        commands = {
            f"loop, {engine}": ["benchmarks.mapping", engine, "m.onnx", "in", "o", devices[0]]
            for engine in LOOPS
        } | {
            f"vkmnn map, devices {one}": ["vkmnn", "map", "m.onnx", "in/*.jpg", "-o", "o.parquet",
                                          "--devices", one]
            for one in devices
        }  # fmt: skip
        found: dict[str, list[Rate]] = {name: [] for name in commands}
        for number in range(rounds):
            for name, command in commands.items():
                tell(f"{name}, round {number + 1} of {rounds}")
                found[name].append(_timed(name, command, folder, count))
    return [_median(rates) for rates in found.values()]


def _fill(folder: Path, count: int) -> None:
    """Write pictures of 48 to 127 pixels a side, and a classifier of one convolution."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "in").mkdir()
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        width, height = (int(one) for one in rng.integers(48, 128, 2))
        made = small.resize((width, height), Image.Resampling.BICUBIC)
        made.save(folder / "in" / f"{number:06}.jpg", quality=85)
    weight = rng.standard_normal((10, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4, strides=[2, 2]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["logits"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, _SIZE, _SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(weight, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "m.onnx")


def _timed(name: str, command: Sequence[str], folder: Path, count: int) -> Rate:
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}
    before, begun = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    seconds, after = time.perf_counter() - begun, os.times()
    if done.returncode:
        return Rate(name, error=(done.stderr.strip().splitlines() or ["it failed"])[-1][:200])
    used = after.children_user - before.children_user
    used += after.children_system - before.children_system
    return Rate(name, count / seconds, used / count * 1e6)


def _median(rates: Sequence[Rate]) -> Rate:
    failed = [one for one in rates if one.error]
    if failed:
        return failed[0]
    return Rate(
        rates[0].engine,
        median(one.rate for one in rates),
        median(one.processor_us for one in rates),
    )


# --- a loop ---------------------------------------------------------------------------------------


def _runner(engine: str, model: str, device: str) -> Callable[[Array], Array]:
    if engine == "onnxruntime":
        import onnxruntime

        other = onnxruntime.InferenceSession(
            model, session_options(), providers=["CPUExecutionProvider"]
        )
        return lambda x: np.asarray(other.run(None, {"x": x})[0])
    import vkmnn

    first = device.split(",")[0]
    session = vkmnn.InferenceSession(model, "auto" if first == "all" else first)
    return lambda x: np.asarray(session.run(None, {"x": x})[0])


def _prepared(path: Path) -> Array:
    """Scale the shortest side to the network's size, crop the centre, normalise."""
    from PIL import Image

    image = Image.open(path).convert("RGB")
    scale = _SIZE / min(image.size)
    wide, high = (max(_SIZE, int(side * scale)) for side in image.size)
    left, top = (wide - _SIZE) // 2, (high - _SIZE) // 2
    small = image.resize((wide, high), Image.Resampling.BILINEAR)
    pixels = np.asarray(small.crop((left, top, left + _SIZE, top + _SIZE)), np.float32)
    values = (pixels / 255 - _MEAN) / _STD
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None], np.float32)


def _loop(engine: str, model: str, folder: str, output: str, device: str) -> None:
    run = _runner(engine, model, device)
    with Path(output).open("w") as file:
        for path in sorted(Path(folder).iterdir()):
            scores = run(_prepared(path))[0]
            chances = np.exp(scores - scores.max())
            chances /= chances.sum()
            best = [[int(one), float(chances[one])] for one in np.argsort(-chances)[:5]]
            file.write(json.dumps({"input": str(path), "result": best}) + "\n")


if __name__ == "__main__":
    _loop(*sys.argv[1:])
