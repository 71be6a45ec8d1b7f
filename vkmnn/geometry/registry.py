"""The registry of geometry computers, their context, and the entry point for one op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic

from vkmnn.base.budget import Meter, unlimited
from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.errors import ShapeError, unexpected_error
from vkmnn.geometry.regions import limit_axes, parts_of
from vkmnn.ir import Array, AttrsT, DType, Op, OpAttrs, Region, TensorInfo
from vkmnn.ir.ops import RasterAttrs
from vkmnn.shape.common import has_input, info_of, int_list


@dataclass(slots=True)
class Lowering:
    """The ops and constants that an op is lowered to.

    Attributes:
        ops: the ops, in order; they produce the outputs of the lowered op that are not constants.
        infos: tensors that the lowering adds, constants included.
        constants: contents of added tensors, or of the op's own outputs.
    """

    ops: list[Op] = field(default_factory=list)
    infos: dict[str, TensorInfo] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)


class GeometryContext(Generic[AttrsT]):
    """An op with static shapes, and functions to emit its lowering.

    Args:
        op: the op to lower.
        inputs: one per `op.inputs`, with static shapes; None = absent.
        outputs: one per `op.outputs`; the name is "" if the output is not needed.
        values: contents of the inputs where they are known.
        meter: counts regions and constants before they are created; None has no limits.
    """

    def __init__(
        self,
        op: Op[AttrsT],
        inputs: Sequence[TensorInfo | None],
        outputs: Sequence[TensorInfo],
        values: Sequence[Array | None],
        meter: Meter | None = None,
    ) -> None:
        self.op = op
        self._meter = meter or unlimited()
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.values = tuple(values)
        self.lowering = Lowering()
        self._names = 0

    @property
    def attrs(self) -> AttrsT:
        """The attributes of the op."""
        return self.op.attrs

    def input(self, index: int) -> TensorInfo:
        """Return input `index`; ShapeError when it is absent."""
        return info_of(self.inputs, index)

    def optional_input(self, index: int) -> TensorInfo | None:
        """Return input `index`, None when it is absent."""
        return self.inputs[index] if has_input(self.inputs, index) else None

    def value(self, index: int) -> Array | None:
        """Return the content of input `index`, None if it is absent or unknown."""
        return self.values[index] if index < len(self.values) else None

    def ints(self, index: int, what: str) -> list[int] | None:
        """Return the content of optional input `index`, None when it is absent.

        Raises:
            ShapeError: the input is there but its content is unknown or not a list of integers.
        """
        return int_list(self.values, index, what) if has_input(self.inputs, index) else None

    def check_pieces(self, count: int) -> None:
        """Raise BudgetError if the number of regions to be created exceeds the budget."""
        self._meter.check_pieces(count, self.op.type, self.op.source or self.op.name)

    def charge(self, nbytes: int) -> None:
        """Charge a constant to be created to the budget; raises BudgetError if it is too large."""
        self._meter.charge(nbytes, self.op.type, self.op.source or self.op.name)

    def temp(self, dtype: DType, shape: Sequence[int]) -> TensorInfo:
        """Return a new tensor for an intermediate result."""
        info = TensorInfo(self._unique(), dtype, tuple(shape))
        self.lowering.infos[info.name] = info
        return info

    def constant(self, array: Array) -> str:
        """Add a constant and return its name."""
        info = self.temp(DType.from_numpy(array.dtype), array.shape)
        self.lowering.constants[info.name] = array
        return info.name

    def constant_output(self, output: TensorInfo, array: Array) -> None:
        """Make `output` a constant; `array` is converted to its element type and shape."""
        if output.name:
            self.lowering.constants[output.name] = array.astype(output.dtype.numpy).reshape(
                output.dims
            )

    def raster(
        self,
        output: TensorInfo,
        inputs: Sequence[str],
        regions: Sequence[Region],
        fill: float = 0,
        ordered: bool = False,
    ) -> None:
        """Emit a Raster that writes `output`; empty regions and unread inputs are dropped."""
        self.check_pieces(sum(map(parts_of, regions)))
        kept = [part for region in regions for part in limit_axes(region)]
        names, kept = compact_origins(inputs, kept)
        self.emit("Raster", names, RasterAttrs(tuple(kept), fill, ordered), output)

    def emit(self, op_type: str, inputs: Sequence[str], attrs: OpAttrs, output: TensorInfo) -> None:
        """Emit an op that writes `output`; geometry ops are lowered further later."""
        if output.name:
            self.lowering.ops.append(
                Op(op_type, self._unique(), list(inputs), [output.name], attrs, self.op.source)
            )

    def _unique(self) -> str:
        self._names += 1
        return f"{self.op.name}~{self._names}"


def compact_origins(
    names: Sequence[str], regions: Sequence[Region]
) -> tuple[list[str], list[Region]]:
    """Return the inputs that the regions read, each once, and the regions with these origins."""
    used: dict[str, int] = {}
    result: list[Region] = []
    for region in regions:
        origin = used.setdefault(names[region.origin], len(used))
        same = origin == region.origin
        result.append(region if same else Region(region.src, region.dst, region.size, origin))
    return list(used), result


GeometryComputer = Callable[[GeometryContext[Any]], None]

COMPUTERS: Registry[str, GeometryComputer] = Registry("geometry computer of")
ONLY_FOR: dict[str, frozenset[DType]] = {}


def geometry(
    op_type: str, only_for: frozenset[DType] | None = None
) -> Callable[[GeometryComputer], GeometryComputer]:
    """Register a function as the geometry computer of `op_type`.

    The function emits the op's replacement through the context. If it emits nothing, the op stays,
    and a backend executes it. It may raise ShapeError; op and node are filled in.

    Args:
        op_type: the type.
        only_for: element types of the first output; with others, the function is not asked.

    Raises:
        PluginError: `op_type` has a computer already.
    """
    register = COMPUTERS.register(op_type)
    if only_for is not None:
        ONLY_FOR[op_type] = only_for
    return register


def has_geometry(op_type: str) -> bool:
    """True when `op_type` has a geometry computer (it may still leave some ops as they are)."""
    return op_type in COMPUTERS


def may_lower(op: Op, infos: Mapping[str, TensorInfo]) -> bool:
    """Return whether `lower` would ask a computer; `infos` has the op's outputs."""
    if op.type not in COMPUTERS:
        return False
    types = ONLY_FOR.get(op.type)
    return types is None or (op.outputs[0] != "" and infos[op.outputs[0]].dtype in types)


def lower(
    op: Op,
    inputs: Sequence[TensorInfo | None],
    outputs: Sequence[TensorInfo],
    values: Sequence[Array | None],
    meter: Meter | None = None,
) -> Lowering | None:
    """Lower one op with static shapes to Rasters, constants and simpler ops.

    Args:
        op: the op.
        inputs: one per `op.inputs`; None = absent.
        outputs: one per `op.outputs`.
        values: contents of the inputs where known; at least those that the op's shape needed.
        meter: counts regions and constants before they are created; None has no limits.

    Returns:
        What the op becomes, or None when it is not geometry: a backend executes it.

    Raises:
        BudgetError: there are too many regions, or constants are too large.
        ShapeError: the attributes or contents do not fit the shapes.
    """
    computer = COMPUTERS.get(op.type)
    if computer is None:
        return None
    context = GeometryContext(op, inputs, outputs, values, meter)
    try:
        computer(context)
    except ShapeError as error:
        raise ShapeError(
            error.message, op=op.type, node=op.source or op.name, hint=error.hint
        ) from error
    except Exception as error:
        raise unexpected_error(
            error, "lowering", kind=ShapeError, op=op.type, node=op.source or op.name
        ) from error
    lowering = context.lowering
    return lowering if lowering.ops or lowering.constants else None
