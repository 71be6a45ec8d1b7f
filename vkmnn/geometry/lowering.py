"""Lowering of whole graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkmnn.errors import ModelError
from vkmnn.geometry.registry import lower
from vkmnn.ir import Array, DType, Op, TensorInfo


def lower_graph(
    ops: Sequence[Op], infos: Mapping[str, TensorInfo], constants: Mapping[str, Array]
) -> tuple[list[Op], dict[str, TensorInfo], dict[str, Array]]:
    """Lower every op that is geometry, and what it becomes, until only executable ops are left.

    Args:
        ops: ops in topological order.
        infos: every tensor, with static shapes.
        constants: contents of constants and of all other tensors whose contents are known.

    Returns:
        The ops, the infos and the constants, each with what lowering added. An op whose result is
        known (Shape, Range) is gone, and its outputs are constants.

    Raises:
        ShapeError: an op's attributes or contents do not fit its shapes.
        ModelError: a tensor of the model has the name that a new one takes.
    """
    known = dict(infos)
    contents = dict(constants)
    result: list[Op] = []
    work = list(reversed(ops))
    while work:
        op = work.pop()
        inputs = [known[name] if name else None for name in op.inputs]
        lowering = lower(
            op,
            inputs,
            [known[name] if name else TensorInfo("", DType.FLOAT32, None) for name in op.outputs],
            [contents.get(name) if name else None for name in op.inputs],
        )
        if lowering is None:
            result.append(op)
            continue
        for name, info in lowering.infos.items():
            if name in known:
                raise ModelError(
                    f"tensor name '{name}' is needed for a part of this op",
                    op=op.type,
                    node=op.source or op.name,
                    hint="rename that tensor in the model",
                )
            known[name] = info
        contents.update(lowering.constants)
        work.extend(reversed(lowering.ops))
    return result, known, contents
