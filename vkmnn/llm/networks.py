"""The networks of a language model, as the decoder runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.base.budget import Budget
from vkmnn.ir import Array, Dim, Graph, TensorInfo
from vkmnn.ir.ops import AxisAttrs
from vkmnn.llm.wanted_rows import of_wanted_rows
from vkmnn.opening import load_network
from vkmnn.shape.symbolic import DimAlgebra

if TYPE_CHECKING:
    from vkmnn.converter.onnx.model_file import ModelFile

_TOKENS, _PAST = "sequence_length", "past_sequence_length"
_FIXED: Mapping[str, Array] = {
    "use_cache_branch": np.array([True]),
    "num_logits_to_keep": np.array(0, np.int64),
    "logits_to_keep": np.array(0, np.int64),
}
"""Inputs that are the same in every run of a decoder with caches; 0 keeps all logits."""


def decoder_graph(
    model: Path | ModelFile,
    logits: str,
    budget: Budget | None,
    fixed: Mapping[str, Array] = _FIXED,
) -> Graph:
    """Return a decoder with the input `wanted_rows.ROWS`, if its last product allows it.

    Args:
        model: an ONNX file, or its parsed content.
        logits: the output that has them.
        budget: limits of loading.
        fixed: values of inputs that become constants.

    Raises:
        VkmnnError: as `load_network`.
    """
    return of_wanted_rows(plain_graph(model, budget, fixed), logits)


def plain_graph(
    model: Path | ModelFile,
    budget: Budget | None = None,
    fixed: Mapping[str, Array] = _FIXED,
) -> Graph:
    """Return a decoder with caches of all tokens and constants for some inputs, unoptimised.

    Args:
        model: an ONNX file, or its parsed content.
        budget: limits of loading.
        fixed: values of inputs that become constants.

    Raises:
        VkmnnError: as `load_network`.
    """
    return load_network(_prepared(model, fixed), budget, optimised=False).source


def of_one_text(graph: Graph, roles: Mapping[str, str], caches: Collection[str]) -> Graph:
    """Return a decoder with the sizes of a single sequence.

    Exported models name sizes freely, and one size in several ways. With one name for each, passes
    can prove more shapes equal.

    Args:
        graph: the network.
        roles: the role of each input.
        caches: inputs that grow along an axis of unknown size.
    """
    total = DimAlgebra().add(_TOKENS, _PAST)
    known: dict[str, tuple[Dim, ...]] = {
        **dict.fromkeys(("input_ids", "position_ids", "token_type_ids"), (1, _TOKENS)),
        "attention_mask": (1, total),
    }
    inputs = []
    for info in graph.inputs:
        shape, sizes = info.shape, known.get(roles.get(info.name, ""))
        if shape is not None and sizes is not None and len(shape) == len(sizes):
            info = replace(info, shape=sizes)
        elif shape is not None and info.name in caches and not isinstance(shape[0], int):
            info = replace(info, shape=(1, *_of_one_cache(graph, info)[1:]))
        inputs.append(info)
    outputs = [_open(info) for info in graph.outputs]
    inner = {info.name for info in (*graph.inputs, *graph.outputs)}
    infos = {name: _open(info) for name, info in graph.infos.items() if name not in inner}
    return replace(graph, inputs=inputs, outputs=outputs, infos=infos)


def _of_one_cache(graph: Graph, info: TensorInfo) -> tuple[Dim, ...]:
    """Return the shape of a cache: `_PAST` where it grows, other sizes as for new rows."""
    shape = info.shape or ()
    open_axes = [axis for axis, dim in enumerate(shape) if axis and not isinstance(dim, int)]
    if len(open_axes) < 2:
        return tuple(_PAST if axis in open_axes else dim for axis, dim in enumerate(shape))
    for op in graph.ops:
        if op.type in ("Concat", "JoinPast") and op.inputs[0] == info.name:
            new = graph.infos.get(op.inputs[1])
            if new is not None and new.shape is not None and len(new.shape) == len(shape):
                axis = op.attrs.axis % len(shape) if isinstance(op.attrs, AxisAttrs) else 2
                return (*new.shape[:axis], _PAST, *new.shape[axis + 1 :])
    return shape


def _open(info: TensorInfo) -> TensorInfo:
    """Forget the names of sizes."""
    if info.shape is None:
        return info
    return replace(info, shape=tuple(dim if isinstance(dim, int) else None for dim in info.shape))


def _prepared(model: Path | ModelFile, fixed: Mapping[str, Array]) -> ModelFile:
    """Return the model with constants for some inputs, and with caches of all tokens.

    A merged decoder becomes one of its branches: the converter keeps the chosen one. If
    onnxruntime's attention keeps only visible rows (`sliding_window_cache`), its mask hides the
    others as well, and growing caches stay in place.
    """
    import onnx

    from vkmnn.converter.onnx.model_file import read_model

    found = read_model(model)
    graph = found.proto.graph
    for info in [info for info in graph.input if info.name in fixed]:
        rank = len(info.type.tensor_type.shape.dim)
        value = np.reshape(fixed[info.name], (1,) * rank)
        graph.initializer.append(onnx.numpy_helper.from_array(value, info.name))
        graph.input.remove(info)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "GroupQueryAttention" and attribute.name == "sliding_window_cache":
                attribute.i = 0
    return found
