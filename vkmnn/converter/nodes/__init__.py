"""Shared parts of front ends for other formats, which write operators as nodes of ONNX.

A front end reads its file into `SourceOp`s; its `Readers` have a function for each type of
operator, which writes nodes into a `Scope`, and `finish_model` creates the model for the ONNX
converter.
"""

from __future__ import annotations

from vkmnn.converter.nodes.model import finish_model, inner_graph
from vkmnn.converter.nodes.registry import FORMATS, Readers, Reading, lists_operators
from vkmnn.converter.nodes.scope import (
    BOOL,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    OPSET,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    Scope,
    TensorNames,
)
from vkmnn.converter.nodes.source_op import SourceOp, UnreadableError

__all__ = [
    "BOOL",
    "DOUBLE",
    "FLOAT",
    "FLOAT16",
    "FORMATS",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "OPSET",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "Readers",
    "Reading",
    "Scope",
    "SourceOp",
    "TensorNames",
    "UnreadableError",
    "finish_model",
    "inner_graph",
    "lists_operators",
]
