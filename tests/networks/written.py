"""Networks as text for onnx.parser, with random weights: exporters' graphs without exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from vkmnn.ir import Array

Feeds = Mapping[str, Any]


def network(
    text: str,
    weights: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> onnx.ModelProto:
    """Return the model that a text describes.

    Args:
        text: the model in the language of onnx.parser.
        weights: shapes of initializers with random float32 values, which keep the variance of the
            activations: all axes but the first count as inputs of a matrix or filter.
        constants: further initializers.
        seed: seed of the weights.

    Raises:
        onnx.parser.ParseError, onnx.checker.ValidationError: the text is wrong.
    """
    random = np.random.default_rng(seed)
    proto = onnx.parser.parse_model(text)
    arrays: dict[str, Array] = {}
    for name, shape in (weights or {}).items():
        inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 16
        arrays[name] = (random.standard_normal(shape) * inputs**-0.5).astype(np.float32)
    arrays |= {name: np.asarray(value) for name, value in (constants or {}).items()}
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(proto)
    return proto


def normal(random: np.random.Generator, *shape: int) -> Array:
    """Return float32 values of a normal distribution."""
    return random.standard_normal(shape, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Written:
    """A network, and its feeds: of different sizes, one after the other.

    `what` describes it briefly. `twin` creates the same network in a form that onnxruntime reads,
    if it cannot read this one.
    """

    what: str
    make: Callable[[], onnx.ModelProto]
    feeds: Callable[[np.random.Generator], list[Feeds]]
    twin: Callable[[], onnx.ModelProto] | None = None
