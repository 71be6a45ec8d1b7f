"""The expected results of a model: onnxruntime without optimisations, node by node.

onnx's reference evaluator computes nodes that onnxruntime has no kernel for, and it is the second
opinion. Evaluating node by node shows which of them two engines disagree about, and allows
inserting rounding errors in between, to see how much they matter.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkmnn.converter.onnx.branches import reads
from vkmnn.errors import VkmnnError
from vkmnn.host.sessions import session_options
from vkmnn.ir import Array
from vkmnn_suite.fuzz.disputes import reason_of, without_rounding
from vkmnn_suite.fuzz.unsigned import with_unsigned_weights

RUNTIME = "onnxruntime"
REFERENCE = "onnx reference"
MIXED = "onnxruntime, and the reference for nodes of which a dispute is known"

_RUNTIME_IR = 10
_KEPT_SESSIONS = 256

Run = Callable[[Sequence[Array]], list[Array]]
Change = Callable[[onnx.NodeProto, str, Array], Array]
Look = Callable[[onnx.NodeProto, Sequence[Array | None]], None]


class OracleError(VkmnnError):
    """No oracle can compute a node: it is invalid, or not implemented."""


class OracleMissingError(VkmnnError):
    """onnxruntime is not installed."""


class NotImplementedByOracleError(OracleError):
    """An oracle has no kernel for a node that may be valid."""


@lru_cache(maxsize=1)
def runtime() -> Any:
    """Import onnxruntime.

    Raises:
        OracleMissingError: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise OracleMissingError(
            "the fuzzer compares with onnxruntime, which is not installed",
            hint="pip install onnxruntime",
        ) from error
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


@lru_cache(maxsize=1)
def runtime_opset() -> int:
    """Return the newest opset that the installed onnxruntime reads."""
    for opset in range(onnx.defs.onnx_opset_version(), 0, -1):
        node = helper.make_node("Identity", ["x"], ["y"])
        try:
            _runtime_session(node, {"": opset}, [np.zeros(1, np.float32)], ())
        except OracleError:
            continue
        return opset
    raise OracleMissingError("the installed onnxruntime reads no opset that onnx knows")


def read_names(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads: its inputs, then those captured by its inner graphs."""
    return [*node.input, *sorted(reads(node) - set(node.input))]


class Oracle:
    """Computes nodes; sessions are kept for recurring nodes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Run] = OrderedDict()

    def node(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        inputs: Sequence[Array | None],
        prefer: str = RUNTIME,
    ) -> list[Array]:
        """Compute the outputs of a node.

        Args:
            node: the node to compute.
            opsets: domains and their versions.
            inputs: one array for each of `read_names`; None for an absent input.
            prefer: the oracle to try first; the other one computes the nodes that the first cannot.

        Raises:
            OracleError: none computes it.
        """
        if prefer == REFERENCE:
            node = without_rounding(node)
        makers = {RUNTIME: _runtime_run, REFERENCE: _reference_run}
        second = REFERENCE if prefer == RUNTIME else RUNTIME
        for name in (prefer, second):
            asked, arrays = (
                with_unsigned_weights(node, inputs) if name == RUNTIME else (node, inputs)
            )
            present = [array for array in arrays if array is not None]
            key = (
                name,
                asked.SerializeToString(deterministic=True),
                tuple(sorted(opsets.items())),
                tuple((array.dtype.str, array.shape) for array in present),
            )
            try:
                run = self._kept.get(key) or makers[name](asked, opsets, present)
                self._kept[key] = run
                self._kept.move_to_end(key)
                if len(self._kept) > _KEPT_SESSIONS:
                    self._kept.popitem(last=False)
                return run(present)
            except NotImplementedByOracleError:
                continue
        raise OracleError("no oracle has a kernel for it", op=node.op_type, node=node.name)

    def evaluate(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Array],
        prefer: str = RUNTIME,
        change: Change | None = None,
        look: Look | None = None,
    ) -> dict[str, Array]:
        """Return all tensors of a model.

        Args:
            model: a model whose nodes are in order.
            feeds: an array for each input.
            prefer: see `node`.
            change: returns the array to use instead of one that a node reads or computes; called
                with the node, "input" or "output" and the array.
            look: called with every node and its inputs.

        Raises:
            OracleError: a node cannot be computed.
        """
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        tensors.update(feeds)
        for node in model.graph.node:
            inputs = [tensors[name] if name else None for name in read_names(node)]
            if change is not None:
                inputs = [a if a is None else change(node, "input", a) for a in inputs]
            if look is not None:
                look(node, inputs)
            who = prefer
            if prefer == MIXED:
                who = REFERENCE if reason_of(node, inputs) else RUNTIME
            outputs = self.node(node, opsets, inputs, who)
            for name, array in zip((n for n in node.output if n), outputs, strict=True):
                tensors[name] = array if change is None else change(node, "output", array)
        return tensors


def node_model(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    inputs: Sequence[Array],
    constants: Sequence[int] = (),
) -> onnx.ModelProto:
    """Return a model of one node; the inputs at the positions `constants` are initializers."""
    names = [name for name in read_names(node) if name]
    pairs = list(zip(names, inputs, strict=True))
    fed: dict[str, Array] = {}
    fixed: dict[str, Array] = {}
    for position, (name, array) in enumerate(pairs):
        (fixed if position in constants else fed)[name] = array
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in fed.items()
            if name not in fixed
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        [numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=_RUNTIME_IR)


def _runtime_run(node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Array]) -> Run:
    if node.op_type.startswith(("Reduce", "Arg")) and inputs[0].size == 0:
        raise NotImplementedByOracleError("keeps the axes of empty tensors", op=node.op_type)
    if node.op_type == "Scan" and any(array.size == 0 for array in inputs):
        raise NotImplementedByOracleError("divides by sizes where it transposes", op=node.op_type)
    newest = runtime_opset()
    opset = opsets.get("", newest)
    if opset > newest:
        if node.domain or not _same_schema(node.op_type, newest, opset):
            raise NotImplementedByOracleError("newer than onnxruntime", op=node.op_type)
        opset = newest
    opsets = {**opsets, "": opset}
    try:
        return _runtime_session(node, opsets, inputs, ())
    except NotImplementedByOracleError:
        raise
    except OracleError:
        rest = tuple(range(1, len(inputs)))  # some kernels want their parameters as constants
        return _runtime_session(node, opsets, inputs, rest)


def _runtime_session(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    inputs: Sequence[Array],
    constants: tuple[int, ...],
) -> Run:
    ort = runtime()
    errors = ort.capi.onnxruntime_pybind11_state
    options = session_options(optimised=False, threads=1)
    options.inter_op_num_threads = 1
    model = node_model(node, opsets, inputs, constants).SerializeToString()
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except errors.NotImplemented as error:
        raise NotImplementedByOracleError(_first_line(error), op=node.op_type) from error
    except Exception as error:
        raise OracleError(_first_line(error), op=node.op_type) from error
    names = [name for name in read_names(node) if name]
    wanted = {value.name for value in session.get_inputs()}

    def run(arrays: Sequence[Array]) -> list[Array]:
        feeds = {n: a for n, a in zip(names, arrays, strict=True) if n in wanted}
        try:
            outputs: list[Array] = session.run(None, feeds)
        except errors.NotImplemented as error:
            raise NotImplementedByOracleError(_first_line(error), op=node.op_type) from error
        except Exception as error:
            raise OracleError(_first_line(error), op=node.op_type) from error
        return outputs

    return run


def _same_schema(op: str, one: int, other: int) -> bool:
    try:
        first = onnx.defs.get_schema(op, one, "").since_version
        second = onnx.defs.get_schema(op, other, "").since_version
    except onnx.defs.SchemaError:
        return False
    return bool(first == second)


_REFERENCE_ERRS: Mapping[str, str] = {
    "GlobalAveragePool": "reduces other axes unless there are two spatial ones",
    "GlobalMaxPool": "reduces other axes unless there are two spatial ones",
    "Hardmax": "takes one axis where opsets before 13 flatten",
    "Softmax": "takes one axis where opsets before 13 flatten",
    "LogSoftmax": "takes one axis where opsets before 13 flatten",
    "LRN": "sums other channels for even sizes",
    **dict.fromkeys(
        ("MaxPool.auto_pad", "AveragePool.auto_pad", "LpPool.auto_pad"),
        "leaves dilations out of the kernel's extent",
    ),
    "LpPool.ceil_mode": "takes a part of a window's mean for the whole window's",
    "ConvTranspose": "adds the first bias to every group",
}
"""Operators, and attributes of them, that the reference evaluator computes wrongly, and how."""


def _reference_run(node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Array]) -> Run:
    from onnx.reference import ReferenceEvaluator

    by_channel = node.op_type == "GroupNormalization" and opsets.get("", 1) >= 21
    if by_channel and inputs[1].shape != inputs[0].shape[1:2]:  # repeated, as older opsets do it
        raise OracleError("scale has to have one value for each channel", op=node.op_type)
    for name in (node.op_type, *(f"{node.op_type}.{a.name}" for a in node.attribute)):
        if name in _REFERENCE_ERRS:
            raise NotImplementedByOracleError(_REFERENCE_ERRS[name], op=node.op_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            evaluator = ReferenceEvaluator(node_model(node, opsets, inputs))
        except Exception as error:
            raise NotImplementedByOracleError(_first_line(error), op=node.op_type) from error
    names = [name for name in read_names(node) if name]

    def run(arrays: Sequence[Array]) -> list[Array]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                outputs = evaluator.run(None, dict(zip(names, arrays, strict=True)))
            except Exception as error:
                raise NotImplementedByOracleError(_first_line(error), op=node.op_type) from error
        return _retyped(node, opsets, arrays, [np.asarray(output) for output in outputs])

    return run


def _retyped(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: list[Array],
) -> list[Array]:
    """Give outputs the type of the inputs that must share it: numpy widens sums."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get("", 1), node.domain)
    except onnx.defs.SchemaError:
        return outputs
    if any(attribute.HasField("g") for attribute in node.attribute):
        return outputs
    places = [place for place, name in enumerate(node.input) if name]
    last = len(schema.inputs) - 1
    given = {
        schema.inputs[min(place, last)].type_str: array.dtype
        for place, array in zip(places, inputs, strict=True)
    }
    typed = []
    for place, array in enumerate(outputs):
        kind = schema.outputs[min(place, len(schema.outputs) - 1)].type_str
        typed.append(array.astype(given.get(kind, array.dtype), copy=False))
    return typed


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
