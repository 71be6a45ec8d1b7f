"""MNN on the CPU, by the extension modules of its wheel, which has no Vulkan."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from vkmnn.base.cache_files import own_folder
from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.ir import Array

_TIMEOUT_S = 600
_HINT = "pip install 'vkmnn[bench,peers]'"
_CONVERT = "import sys, _tools; _tools.mnnconvert(['mnnconvert', *sys.argv[1:]])"


class MnnCpu(Engine):
    """MNN's module API on the CPU, in float32.

    The wheel's Python files install packages and report conversions; its extension modules do
    neither, so only these are imported, in processes without any program to install with.
    """

    def load(self, job: Job) -> None:
        """Load the model, converting it if necessary."""
        os.environ["PATH"] = ""
        try:
            import _mnncengine._expr as expr
            import _mnncengine._nn as nn
        except ImportError as error:
            raise EngineMissingError("MNN is not installed", _HINT) from error
        self._expr = expr
        self._module = nn.load_module_from_file(
            None,  # no runtime that modules share
            list(job.feeds),
            _outputs(job.model),
            str(_converted(job)),
            False,  # no dynamic graph
            False,  # shapes stay as they are
            True,  # weights are reordered now
            expr.Backend.CPU,
            expr.MemoryMode.Normal,
            expr.PowerMode.Normal,
            expr.PrecisionMode.High,
            job.threads,
        )
        self._feeds = [_narrow(array) for array in job.feeds.values()]

    def run(self) -> list[Array]:
        """Run once."""
        expr = self._expr
        results = self._module.onForward([_variable(expr, array) for array in self._feeds])
        plain = (expr.convert(result, expr.NCHW) for result in results)
        return [np.array(result.read()) for result in plain]


def _narrow(array: Array) -> Array:
    """Return an input in MNN's types: floats and integers of 32 bits."""
    kept = np.float32 if array.dtype.kind == "f" else np.int32
    return np.ascontiguousarray(array, kept)


def _variable(expr: ModuleType, array: Array) -> object:
    kind = expr.float if array.dtype == np.float32 else expr.int
    return expr.const(array, list(array.shape), expr.NCHW, kind)


def _outputs(model: Path) -> list[str]:
    import onnx

    return [info.name for info in onnx.load(model, load_external_data=False).graph.output]


def _converted(job: Job) -> Path:
    """Return the model in MNN's format."""
    key = hashlib.sha256(job.model.read_bytes()).hexdigest()[:24]
    folder = job.folder / f"mnn-{key}"
    target = folder / "model.mnn"
    try:
        own_folder(folder)
    except OSError as error:
        raise EngineMissingError(f"no folder to convert the model in: {error}") from error
    if (folder / "done").exists():
        return target
    files = ["--modelFile", str(job.model), "--MNNModel", str(target)]
    command = [sys.executable, "-c", _CONVERT, "-f", "ONNX", *files, "--bizCode", "vkmnn"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise EngineMissingError(f"MNN's converter took more than {_TIMEOUT_S} s") from error
    if done.returncode or not target.exists():
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        raise EngineMissingError(f"MNN cannot convert the model: {lines[-1]}")
    (folder / "done").touch()
    return target
