"""ncnn on a Vulkan device, with the model converted by pnnx."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.base.cache_files import own_folder
from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.ir import Array

_HALVES = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic")
_SUFFIXES = {"float32": "f32", "float16": "f16", "int64": "i64", "int32": "i32"}
_TIMEOUT_S = 600
_HINT = "pip install 'vkmnn[bench,peers]'"


class NcnnVulkan(Engine):
    """ncnn's Vulkan backend; option "precision": "high" for float32, "normal" for its float16."""

    def load(self, job: Job) -> None:
        """Load the model, converting it if necessary."""
        try:
            import ncnn
        except ImportError as error:
            raise EngineMissingError("ncnn is not installed", _HINT) from error
        if any(feed.ndim and feed.shape[0] != 1 for feed in job.feeds.values()):
            raise EngineMissingError("ncnn runs batches of one only")
        device = _device(ncnn, job)
        param, weights, names = _converted(job)
        self._ncnn = ncnn
        self._net = net = ncnn.Net()
        net.opt.use_vulkan_compute = True
        net.opt.num_threads = job.threads
        for option in _HALVES:
            setattr(net.opt, option, job.options.get("precision") == "normal")
        net.set_vulkan_device(device)
        if net.load_param(str(param)) or net.load_model(str(weights)):
            raise EngineMissingError("ncnn cannot load the model converted by pnnx")
        # ncnn has no batches, and reads 32-bit integers.
        self._feeds = [
            (
                f"in{number}",
                _narrow(job.feeds[name][0] if job.feeds[name].ndim else job.feeds[name]),
            )
            for number, name in enumerate(names)
        ]
        outputs = (name for name in net.output_names() if name.startswith("out"))
        self._outputs = sorted(outputs, key=lambda name: int(name[3:]))

    def run(self) -> list[Array]:
        """Run once."""
        results = []
        with self._net.create_extractor() as extractor:
            for name, array in self._feeds:
                extractor.input(name, self._ncnn.Mat(array).clone())
            for name in self._outputs:
                status, mat = extractor.extract(name)
                if status:
                    raise RuntimeError(f"ncnn failed with status {status}")
                results.append(np.array(mat))
        return results


def _narrow(array: Array) -> Array:
    kept = array if array.dtype == np.float32 else array.astype(np.int32)
    return np.ascontiguousarray(kept)


def _device(ncnn: Any, job: Job) -> int:
    """Return ncnn's index of the device."""
    infos = [ncnn.get_gpu_info(index) for index in range(ncnn.get_gpu_count())]
    names = [info.device_name() for info in infos]
    fitting = [index for index, name in enumerate(names) if name == job.device_name]
    if len(fitting) <= job.twin:
        found = ", ".join(names) or "none"
        raise EngineMissingError(f"ncnn does not see '{job.device_name}' (it sees: {found})")
    return fitting[job.twin]


def _converted(job: Job) -> tuple[Path, Path, list[str]]:
    """Return the model's structure and weights for ncnn, and its remaining inputs."""
    names = list(job.feeds)
    shapes = {name: (feed.shape, str(feed.dtype)) for name, feed in job.feeds.items()}
    key = hashlib.sha256(job.model.read_bytes() + repr(shapes).encode()).hexdigest()[:24]
    folder = job.folder / f"ncnn-{key}"
    failure = ""
    # Masks and types of tokens, which are integers, stop pnnx; frozen, they do not.
    first = names[:1]
    frozen = first + [name for name in names[1:] if job.feeds[name].dtype.kind == "f"]
    for kept in (names, frozen) if frozen != names else (names,):
        target = folder / str(len(kept))
        param, weights = target / "model.ncnn.param", target / "model.ncnn.bin"
        try:
            own_folder(target)
        except OSError as error:
            raise EngineMissingError(f"no folder to convert the model in: {error}") from error
        if not (target / "done").exists():
            failure = _convert(job, kept, target)
            if failure:
                continue
            (target / "done").touch()
        return param, weights, kept
    raise EngineMissingError(f"pnnx cannot convert the model: {failure}")


def _convert(job: Job, kept: list[str], target: Path) -> str:
    """Run pnnx, writing to `target`; return its error, "" for none."""
    try:
        import pnnx
    except ImportError as error:
        raise EngineMissingError("pnnx is not installed", _HINT) from error
    model = target / "model.onnx"
    _freeze(job.model, {n: a for n, a in job.feeds.items() if n not in kept}, model)
    shapes = ",".join(
        f"[{','.join(map(str, job.feeds[n].shape))}]{_SUFFIXES.get(str(job.feeds[n].dtype), 'f32')}"
        for n in kept
    )
    command = [pnnx.EXEC_PATH, model.name, f"inputshape={shapes}", "fp16=0"]
    try:
        done = subprocess.run(
            command,
            cwd=target,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_TIMEOUT_S} s"
    finally:
        for file in target.glob("model.*"):
            if not file.name.startswith("model.ncnn"):
                file.unlink()
    if done.returncode < 0:
        return f"it ended with signal {-done.returncode}"
    if done.returncode or not (target / "model.ncnn.bin").exists():
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return ""


def _freeze(source: Path, values: Mapping[str, Array], target: Path) -> None:
    """Write the model with some inputs as constants."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(source)
    kept = [item for item in model.graph.input if item.name not in values]
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in values.items()
    )
    del model.graph.input[:]
    model.graph.input.extend(kept)
    onnx.save(model, target)
