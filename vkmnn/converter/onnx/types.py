"""ONNX element and tensor types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkmnn.errors import ModelError
from vkmnn.ir import Dim, DType, TensorInfo, has_narrow_types
from vkmnn.shape.registry import MAX_RANK

if TYPE_CHECKING:
    import onnx

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
if has_narrow_types():
    DTYPES |= {
        16: DType.BFLOAT16,
        17: DType.FLOAT8E4M3FN,
        18: DType.FLOAT8E4M3FNUZ,
        19: DType.FLOAT8E5M2,
        20: DType.FLOAT8E5M2FNUZ,
        21: DType.UINT4,
        22: DType.INT4,
        23: DType.FLOAT4E2M1,
        24: DType.FLOAT8E8M0,
        25: DType.UINT2,
        26: DType.INT2,
    }
_CODES = {dtype: code for code, dtype in DTYPES.items()}

TEXT_TYPES: dict[str, int] = {
    "tensor(float)": 1,
    "tensor(uint8)": 2,
    "tensor(int8)": 3,
    "tensor(uint16)": 4,
    "tensor(int16)": 5,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(string)": 8,
    "tensor(bool)": 9,
    "tensor(float16)": 10,
    "tensor(double)": 11,
    "tensor(uint32)": 12,
    "tensor(uint64)": 13,
}
"""Types as schemas and onnxruntime write them, with their TensorProto.DataType."""

MAX_DIM = 2**31 - 1

# Exporters' placeholders for an unnamed size: Paddle "?", others "-1" or "None".
_ANONYMOUS = frozenset({"", "?", "-1", "None"})


def type_name(code: int) -> str:
    """Return ONNX's name of an element type: `BFLOAT16`."""
    import onnx

    try:
        return str(onnx.TensorProto.DataType.Name(code))
    except ValueError:
        return f"element type {code}"


def unsupported_type(proto: onnx.TypeProto) -> str | None:
    """Return why a value's type has no counterpart here; None if it has one or is unknown."""
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
    """Translate a value's type; None unless it is a tensor of a supported element type.

    Raises:
        ModelError: a dimension is larger than any device can address, or there are too many.
    """
    if proto.WhichOneof("value") != "tensor_type":
        return None
    tensor = proto.tensor_type
    dtype = DTYPES.get(tensor.elem_type)
    if dtype is None:
        return None
    if not tensor.HasField("shape"):
        return TensorInfo(name, dtype, None)
    check_rank(name, len(tensor.shape.dim))
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
    name = dim.dim_param.strip()
    return None if name in _ANONYMOUS else name


def tensor_type(info: TensorInfo) -> onnx.TypeProto:
    """Return the ONNX type of a tensor."""
    import onnx

    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = _CODES[info.dtype]
    if info.shape is not None:
        dims = proto.tensor_type.shape
        dims.SetInParent()
        for dim in info.shape:
            entry = dims.dim.add()
            if isinstance(dim, int):
                entry.dim_value = dim
            elif dim:
                entry.dim_param = dim
    return proto


def type_text(proto: onnx.TypeProto) -> str:
    """Return a type as ONNX writes it: `seq(tensor(float))`."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({type_text(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_text(proto.optional_type.elem_type)})"
    if kind == "map_type":
        key = type_name(proto.map_type.key_type).lower()
        return f"map({key},{type_text(proto.map_type.value_type)})"
    if kind in ("tensor_type", "sparse_tensor_type"):
        element = type_name(getattr(proto, kind).elem_type).lower()
        return f"{kind.removesuffix('_type')}({element})"
    return "unknown"


def check_rank(name: str, rank: int) -> None:
    """Refuse a tensor with more axes than are supported.

    Raises:
        ModelError: it has.
    """
    if rank > MAX_RANK:
        raise ModelError(
            f"tensor '{name}' has {rank} axes",
            hint=f"tensors have at most {MAX_RANK} axes; the file may be damaged",
        )
