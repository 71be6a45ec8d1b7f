"""Lowering of whole graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.base.budget import Meter, unlimited
from vkmnn.errors import ModelError
from vkmnn.geometry.alike import AlikeLowerings
from vkmnn.geometry.registry import may_lower
from vkmnn.ir import Array, DType, Op, TensorInfo
from vkmnn.ir.ops import PadAttrs, RasterAttrs


def _listed_axes(op: Op, infos: Sequence[TensorInfo]) -> int:
    """Return the maximum length of an axis that is listed index by index."""
    if op.type == "Interp" or (isinstance(op.attrs, PadAttrs) and op.attrs.mode != "constant"):
        return max((size for info in infos if info.name for size in info.dims), default=0)
    return 0


def lower_graph(
    ops: Sequence[Op],
    infos: Mapping[str, TensorInfo],
    constants: Mapping[str, Array],
    meter: Meter | None = None,
) -> tuple[list[Op], dict[str, TensorInfo], dict[str, Array]]:
    """Lower geometry ops, and the ops they lower to, until only executable ops remain.

    Args:
        ops: ops in topological order.
        infos: every tensor, with static shapes.
        constants: contents of constants and of all other tensors whose contents are known.
        meter: counts regions and time; None has no limits.

    Returns:
        The ops, the infos and the constants, each with what lowering added. An op whose result is
        known (Shape, Range) is gone, and its outputs are constants.

    Raises:
        BudgetError: an axis is too long, or there are too many regions.
        ShapeError: an op's attributes or contents do not fit its shapes.
        ModelError: a tensor of the model already has the name of a new one.
    """
    meter = meter or unlimited()
    known = dict(infos)
    contents = dict(constants)
    result: list[Op] = []
    alike = AlikeLowerings(meter)
    work = list(reversed(ops))
    while work:
        op = work.pop()
        if op.type != "Interp" and not may_lower(op, known):
            result.append(op)
            continue
        meter.check_time(op.type, op.source or op.name)
        inputs = [known[name] if name else None for name in op.inputs]
        outputs = [
            known[name] if name else TensorInfo("", DType.FLOAT32, None) for name in op.outputs
        ]
        longest = _listed_axes(op, [*(info for info in inputs[:1] if info), *outputs])
        meter.check_axis(longest, op.type, op.source or op.name)
        values = [contents.get(name) if name else None for name in op.inputs]
        lowering = alike.lower(op, inputs, outputs, values)
        if lowering is None:
            result.append(op)
            continue
        pieces = sum(
            len(made.attrs.regions) for made in lowering.ops if isinstance(made.attrs, RasterAttrs)
        )
        meter.charge_pieces(pieces, op.type, op.source or op.name)
        for name, info in lowering.infos.items():
            if name in known:
                raise ModelError(
                    f"tensor name '{name}' is reserved for a part of this op",
                    op=op.type,
                    node=op.source or op.name,
                    hint="rename that tensor in the model",
                )
            known[name] = info
        contents.update(lowering.constants)
        work.extend(reversed(lowering.ops))
    return result, known, contents
