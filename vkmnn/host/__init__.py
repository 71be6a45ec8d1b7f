"""Runs parts of ONNX models on the host: by onnxruntime if it is installed, else by onnx."""

from __future__ import annotations

from vkmnn.host.branches import branch_models
from vkmnn.host.check import check_on_host
from vkmnn.host.engines import ENGINES, HostEngine
from vkmnn.host.folding import fold_on_host
from vkmnn.host.function import HostFunction, open_on_host
from vkmnn.host.loops import body_model, carries_objects

__all__ = [
    "ENGINES",
    "HostEngine",
    "HostFunction",
    "body_model",
    "branch_models",
    "carries_objects",
    "check_on_host",
    "fold_on_host",
    "open_on_host",
]
