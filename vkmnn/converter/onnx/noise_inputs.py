"""Random nodes of a network as an input, so that a seed determines its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkmnn.errors import ModelFileError

NOISE = "vkmnn.noise"
"""Name of the input: float32 [COUNT], numbers from a normal distribution."""
EVEN = "vkmnn.even"
"""Likewise, from 0 to 1."""
COUNT = 1 << 20
_STEP = 7919
"""Distance of the first numbers of two nodes."""


def read_with_noise_inputs(path: Path) -> tuple[onnx.ModelProto, list[str]]:
    """Read a model; return it as `with_noise_inputs` changes it, and the new inputs' names.

    Raises:
        ModelFileError: the file cannot be read.
    """
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's, or of external data
        raise ModelFileError(f"'{path}' cannot be read: {error}") from error
    return model, with_noise_inputs(model)


def with_noise_inputs(model: Any) -> list[str]:
    """Replace the random nodes of a model, and return the names of the new inputs.

    Args:
        model: an onnx.ModelProto, changed in place.
    """
    used: list[str] = []
    places = _Places()
    for graph in _graphs(model.graph):
        nodes = []
        for node in graph.node:
            made = _REPLACED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            nodes += [node] if made is None else made(node, places, used)
        del graph.node[:]
        graph.node.extend(nodes)
    for name in dict.fromkeys(used):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [COUNT]))
    return list(dict.fromkeys(used))


class _Places:
    """Numbers the nodes that have been replaced."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """Return the next number."""
        self.count += 1
        return self.count - 1


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and the graphs in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                yield from _graphs(inner)


_Made = Callable[[Any, _Places, list[str]], list[Any]]


def _replaced(node: Any, places: _Places, used: list[str]) -> list[Any]:
    """Return nodes that read as many numbers of the input as the node draws."""
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    even, number = "Uniform" in node.op_type, places.next()
    source = EVEN if even else NOISE
    used.append(source)
    tag = f"vkmnn.noise/{number}/"
    made: list[Any] = []

    def add(op: str, inputs: list[str], target: str = "", **attributes: Any) -> str:
        name = target or f"{tag}{len(made)}"
        made.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(values: Any, dtype: Any) -> str:
        tensor = numpy_helper.from_array(np.array(values, dtype))
        return add("Constant", [], value=tensor)

    like = node.op_type.endswith("Like")
    shape = add("Shape", [node.input[0]]) if like else constant(given["shape"], np.int64)
    size = add("ReduceProd", [shape], keepdims=0)
    indices = add("Range", [constant(0, np.int64), size, constant(1, np.int64)])
    shifted = add("Add", [indices, constant(number * _STEP, np.int64)])
    wrapped = add("Mod", [shifted, constant(COUNT, np.int64)])
    values = add("Reshape", [add("Gather", [source, wrapped]), shape])
    low, high = (given.get(name, usual) for name, usual in (("low", 0.0), ("high", 1.0)))
    scale = high - low if even else given.get("scale", 1.0)
    start = low if even else given.get("mean", 0.0)
    values = add("Mul", [values, constant(scale, np.float32)])
    values = add("Add", [values, constant(start, np.float32)])
    if "dtype" in given or not like:
        add("Cast", [values], node.output[0], to=given.get("dtype", TensorProto.FLOAT))
    else:
        add("CastLike", [values, node.input[0]], node.output[0])
    return made


_REPLACED: dict[str, _Made] = dict.fromkeys(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), _replaced
)
