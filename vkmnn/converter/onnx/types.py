"""ONNX element and tensor types, and what is known about the tensors of a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vkmnn.errors import ModelError
from vkmnn.ir import Array, Dim, DType, TensorInfo

if TYPE_CHECKING:
    import onnx

_LOG = logging.getLogger(__name__)

# TensorProto.DataType of the ONNX IR specification; the numbers are part of the file format.
DTYPES: dict[int, DType] = {
    1: DType.FLOAT32,
    2: DType.UINT8,
    3: DType.INT8,
    4: DType.UINT16,
    5: DType.INT16,
    6: DType.INT32,
    7: DType.INT64,
    9: DType.BOOL,
    10: DType.FLOAT16,
    11: DType.FLOAT64,
    12: DType.UINT32,
    13: DType.UINT64,
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}

MAX_DIM = 2**31 - 1
# Constants up to this size take part in type inference (shapes, axes, scales); weights do not.
_SMALL = 1024


def type_name(code: int) -> str:
    """Return ONNX's name of an element type: `BFLOAT16`."""
    import onnx

    try:
        return str(onnx.TensorProto.DataType.Name(code))
    except ValueError:
        return f"element type {code}"


def unsupported_type(proto: onnx.TypeProto) -> str | None:
    """Say why a value's type has no counterpart here; None when it has or is not known."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind != "tensor_type":
        return f"{kind.removesuffix('_type')} values are not supported, only dense tensors"
    code = proto.tensor_type.elem_type
    if code and code not in DTYPES:
        return f"element type {type_name(code)} is not supported"
    return None


def tensor_info(name: str, proto: onnx.TypeProto) -> TensorInfo | None:
    """Translate a value's type; None when it is not a tensor of a known, supported element type.

    Raises:
        ModelError: a dimension is larger than any device can address.
    """
    if proto.WhichOneof("value") != "tensor_type":
        return None
    tensor = proto.tensor_type
    dtype = DTYPES.get(tensor.elem_type)
    if dtype is None:
        return None
    if not tensor.HasField("shape"):
        return TensorInfo(name, dtype, None)
    return TensorInfo(name, dtype, tuple(_dim(name, dim) for dim in tensor.shape.dim))


def _dim(name: str, dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        if dim.dim_value > MAX_DIM:
            raise ModelError(
                f"tensor '{name}' has a dimension of {dim.dim_value}",
                hint=f"dimensions above {MAX_DIM} are not valid; the file may be damaged",
            )
        # Exporters write -1 for "any size".
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def tensor_type(dtype: DType, shape: Iterable[Dim] | None) -> onnx.TypeProto:
    """Return the ONNX type of a tensor."""
    import onnx

    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = _CODES[dtype]
    if shape is not None:
        dims = proto.tensor_type.shape
        dims.SetInParent()
        for dim in shape:
            entry = dims.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            elif dim:
                entry.dim_param = dim
    return proto


class TypeTable:
    """What is known about each tensor: ONNX types from the model, its constants and inference.

    Inference is onnx's own, node by node as conversion goes, on nodes that were checked: on a whole
    model that nobody checked, it can crash the process. It only adds knowledge: where it fails, the
    failure is logged and the tensor stays unknown.
    """

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self._types: dict[str, onnx.TypeProto] = {}
        self._constants = constants

    def get(self, name: str) -> onnx.TypeProto | None:
        """Return the type of a tensor, or None when nothing is known."""
        known = self._types.get(name)
        if known is None and name in self._constants:
            array = self._constants[name]
            known = tensor_type(DType.from_numpy(array.dtype), array.shape)
            self._types[name] = known
        return known

    def set(self, name: str, proto: onnx.TypeProto) -> None:
        """Record a tensor's type unless it says nothing."""
        if proto.WhichOneof("value") is not None:
            self._types[name] = proto

    def infer_node(self, node: onnx.NodeProto, schema: Any, opsets: Mapping[str, int]) -> None:
        """Infer the outputs of one node whose types or ranks are not known yet."""
        from onnx import helper, numpy_helper, shape_inference

        missing = {name for name in node.output if name and not _is_ranked(self.get(name))}
        types = {}
        for name in node.input:
            proto = self.get(name) if name else None
            if proto is not None:
                types[name] = proto
        if not missing or any(name and name not in types for name in node.input):
            return
        data = {
            name: numpy_helper.from_array(self._constants[name], name)
            for name in types
            if name in self._constants and self._constants[name].size <= _SMALL
        }
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        try:
            inferred = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=imports
            )
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.info("onnx shape inference failed on node '%s': %s", node.name, error)
            return
        for name, proto in inferred.items():
            if name in missing:
                self.set(name, proto)


def _is_ranked(proto: onnx.TypeProto | None) -> bool:
    return (
        proto is not None
        and proto.WhichOneof("value") == "tensor_type"
        and proto.tensor_type.HasField("shape")
    )
