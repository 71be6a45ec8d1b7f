"""The ONNX front end: `load_model` turns a model into a graph.

Importing it is cheap: the onnx package is imported when the first model is loaded.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.base.budget import Budget, Meter
from vkmnn.converter.front_end import Conversion
from vkmnn.converter.onnx import families as _families  # noqa: F401 - fills the registry
from vkmnn.converter.onnx.front_end import OnnxFrontEnd
from vkmnn.converter.onnx.host_nodes import HostCheck
from vkmnn.converter.onnx.node import NodeContext, UnsupportedCaseError
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.onnx.support import OpSupport, supported_ops
from vkmnn.ir import Graph

if TYPE_CHECKING:
    import onnx

    from vkmnn.shape.folding import Evaluator

__all__ = [
    "HostCheck",
    "NodeContext",
    "OnnxFrontEnd",
    "OpSupport",
    "UnsupportedCaseError",
    "converter",
    "load_model",
    "supported_ops",
]


def load_model(
    model: str | Path | bytes | onnx.ModelProto,
    meter: Meter | None = None,
    evaluate: Evaluator | None = None,
    as_inputs: Collection[str] = (),
    host: HostCheck | None = None,
) -> Graph:
    """Convert an ONNX model to a graph; plug-ins are the caller's to load.

    Args:
        model: a path, the bytes of a file, or a protobuf. External data is read only for a path,
            and only from inside the model's folder.
        meter: counts nodes and time; None has the default limits.
        evaluate: computes an op on constant inputs. With it, conditions of If may be computed from
            constants and known sizes; without, they have to be constants.
        as_inputs: inputs with a default value that stay inputs; the others become constants.
        host: tells what an evaluator on the host can run. With it, nodes that cannot be converted
            become ops of the type HostGraph; without it, they are refused.

    Raises:
        ModelError: the file is missing, damaged or hostile, or the model is not a valid graph.
        BudgetError: it has more nodes, or takes more time, than allowed.
        ConversionError: an opset or IR version that the installed onnx package does not know.
        UnsupportedOpError: nodes that cannot be converted; all of them are listed.
    """
    conversion = Conversion(meter or Meter(Budget()), evaluate, frozenset(as_inputs), host)
    one = OnnxFrontEnd()
    return one.convert(one.read(model), conversion)
