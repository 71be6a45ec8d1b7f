"""Models without their weights: small enough to copy to a machine without PyTorch and network.

Speed does not depend on the values of weights; results of a model like this are meaningless.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SMALL = 256
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def strip(source: Path, target: Path) -> None:
    """Write a model whose large weights are generated when it is loaded, each with one value.

    Args:
        source: an ONNX file.
        target: path of the small one.
    """
    model = onnx.load(source)
    graph = model.graph
    kept, made = [], []
    for number, weight in enumerate(graph.initializer):
        if weight.data_type not in _FLOATS or prod(weight.dims) <= SMALL:
            kept.append(weight)
            continue
        # Sums of as many products keep their scale. No two are equal: equal ones would be merged.
        value = (1 + number / 1024) / max(weight.dims[0], prod(weight.dims[1:]))
        kind = helper.tensor_dtype_to_np_dtype(weight.data_type)
        shape = numpy_helper.from_array(np.array(weight.dims, "int64"), f"{weight.name}.dims")
        kept.append(shape)
        made.append(
            helper.make_node(
                "ConstantOfShape",
                [shape.name],
                [weight.name],
                value=numpy_helper.from_array(np.array([value], kind)),
            )
        )
    nodes = [*made, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
    onnx.save(model, target)
