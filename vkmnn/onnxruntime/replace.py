"""Makes programs import `vkmnn.onnxruntime` as onnxruntime."""

from __future__ import annotations

import importlib
import sys

_MODULES = (
    "",
    ".capi",
    ".capi.onnxruntime_pybind11_state",
    ".capi._pybind_state",
    ".capi.onnxruntime_inference_collection",
)


def replace_onnxruntime() -> None:
    """Make `import onnxruntime` return `vkmnn.onnxruntime` in this process, from now on.

    Call it before anything imports onnxruntime. Parts of onnxruntime that do not run models
    (`onnxruntime.quantization`, `onnxruntime.transformers`) cannot be imported afterwards.
    """
    for name in [name for name in sys.modules if f"{name}.".startswith("onnxruntime.")]:
        del sys.modules[name]
    for ending in _MODULES:
        sys.modules[f"onnxruntime{ending}"] = importlib.import_module(f"vkmnn.onnxruntime{ending}")
