"""References for `vkmnn run --compare`: another device, or onnxruntime."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.base.cache_files import cache_dir
from vkmnn.core.backends import named_backend
from vkmnn.discovery import load_plugins
from vkmnn.errors import HostError, InvalidInputError, MissingExtraError
from vkmnn.ir import Array
from vkmnn.opening import CPU_DEVICE, front_end_of
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.selection import select

if TYPE_CHECKING:
    from vkmnn.cli.feeds import Feeds

Reference = Callable[["Feeds", Sequence[str]], tuple[str, Mapping[str, Array]]]
"""Computes the expected outputs of these names, and names the engine."""

_ONNXRUNTIME = frozenset({"onnxruntime", "ort"})


def reference_for(name: str, model: Path, elsewhere: Reference) -> Reference:
    """Return a function that computes the expected outputs; checks first that it can.

    Args:
        name: a device, or "onnxruntime".
        model: the file.
        elsewhere: computes them on the device of that name.

    Raises:
        DeviceNotFoundError: there is no such device.
        MissingExtraError: onnxruntime is not installed.
        InvalidInputError: onnxruntime does not read the file.
    """
    if name.lower() in _ONNXRUNTIME:
        return _onnxruntime(model)
    check_device(name)
    return elsewhere


def check_device(selector: str) -> None:
    """Refuse a selector that no device matches.

    Raises:
        DeviceNotFoundError: there is none.
    """
    if selector in ("auto", "fastest", CPU_DEVICE):
        return
    load_plugins()
    if named_backend(selector) is None:
        select(enumerate_devices(None), selector)


def _onnxruntime(model: Path) -> Reference:
    from vkmnn.converter.onnx import OnnxFrontEnd

    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError(
            "--compare onnxruntime: onnxruntime is not installed",
            hint="pip install onnxruntime; --compare cpu compares with numpy",
        )
    if not isinstance(front_end_of(model), OnnxFrontEnd | None):
        raise InvalidInputError(
            f"--compare onnxruntime: onnxruntime does not read '{model.name}'",
            hint="give the .onnx file, or compare with numpy: --compare cpu",
        )

    def run(fed: Feeds, names: Sequence[str]) -> tuple[str, Mapping[str, Array]]:
        from vkmnn.bench.compare import usable_cores
        from vkmnn.bench.engine import Job
        from vkmnn.bench.engines.ort import OnnxRuntime

        engine = OnnxRuntime()
        job = Job(model, fed.arrays, CPU_DEVICE, "", 0, usable_cores(), cache_dir() / "bench")
        try:
            engine.load(job)
            results = engine.run()
        except Exception as error:  # onnxruntime's own errors have no common class
            raise HostError(
                f"onnxruntime cannot run the model: {error}",
                hint="compare with numpy: --compare cpu",
            ) from error
        return "onnxruntime (CPU)", dict(zip(names, results, strict=True))

    return run
