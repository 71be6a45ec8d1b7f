"""ONNX's Scan for the reference evaluator, whose own only runs forwards along the first axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from vkmnn.ir import Array

_Body = Callable[[Mapping[str, Any]], Sequence[Array]]


@cache
def scan_class() -> type:
    """Return the class of the operator; onnx is imported only here."""
    from onnx.reference.op_run import OpRun

    class Scan(OpRun):
        """Runs a body for each slice, along any axis and either way, of none as well."""

        op_domain = ""
        run_params: Any
        _run_body: Any

        def need_context(self) -> bool:
            return True

        def _run(self, *args, context=None, bindings=None, **_attributes):  # type: ignore[no-untyped-def]
            def run(values: Mapping[str, Any]) -> Sequence[Array]:
                found: Sequence[Array] = self._run_body(
                    {**(context or {}), **values}, bindings=bindings
                )
                return found

            in_batches = self.run_params["opsets"][""] < 9
            return _batched(self, run, *args) if in_batches else _scanned(self, run, *args)

    return Scan


def _scanned(op: Any, run: _Body, *args: Array) -> tuple[Array, ...]:
    """Return the results of opset 9 and later."""
    places = len(args) - op.num_scan_inputs
    axes, back = _listed(op, "scan_input_axes"), _listed(op, "scan_input_directions")
    slices = [
        np.moveaxis(x, axis, 0)[:: -1 if turned else 1]
        for x, axis, turned in zip(args[places:], axes, back, strict=True)
    ]
    states, seen = _steps(op, run, args[:places], slices)
    axes, back = _listed(op, "scan_output_axes"), _listed(op, "scan_output_directions")
    turned = [many[:: -1 if way else 1] for many, way in zip(seen, back, strict=True)]
    stack = partial(_stacked, op)
    return (*states, *map(stack, turned, range(places, places + len(seen)), axes))


def _batched(op: Any, run: _Body, lengths: Array | None, *args: Array) -> tuple[Array, ...]:
    """Return the results of opset 8, where all values have a leading batch axis (ONNX, Scan-8).

    Rows may be shorter than others; the rest of their scan outputs is zero.
    """
    places = len(args) - op.num_scan_inputs
    back, longest = _listed(op, "directions"), args[places].shape[1]
    rows: list[list[Array]] = []
    for row in range(len(args[places])):
        length = longest if lengths is None else int(lengths[row])
        slices = [
            x[row, :length][:: -1 if turned else 1]
            for x, turned in zip(args[places:], back, strict=True)
        ]
        states, seen = _steps(op, run, [x[row] for x in args[:places]], slices)
        stacked = [_stacked(op, many, places + n, 0) for n, many in enumerate(seen)]
        rest = [[(0, longest - length)] + [(0, 0)] * (x.ndim - 1) for x in stacked]
        rows.append([*states, *map(np.pad, stacked, rest)])
    return tuple(np.stack(parts) for parts in zip(*rows, strict=True))


def _steps(
    op: Any, run: _Body, states: Sequence[Array], slices: Sequence[Array]
) -> tuple[list[Array], list[list[Array]]]:
    """Return the final states and the outputs of each step."""
    count = len(states)
    seen: list[list[Array]] = [[] for _ in op.body.output_names[count:]]
    for step in zip(*slices, strict=True):
        results = run(dict(zip(op.body.input_names, (*states, *step), strict=True)))
        states = results[:count]
        for many, one in zip(seen, results[count:], strict=True):
            many.append(one)
    return list(states), seen


def _listed(op: Any, name: str) -> list[int]:
    """Return a list attribute of the node, zeros by default."""
    given = next((list(a.ints) for a in op.onnx_node.attribute if a.name == name), None)
    states = len(op.body.input_names) - op.num_scan_inputs
    scanned = len(op.body.output_names) - states
    return given or [0] * (scanned if "output" in name else op.num_scan_inputs)


def _stacked(op: Any, many: Sequence[Array], place: int, axis: int) -> Array:
    """Return a scan output; without steps, unknown sizes are 0."""
    from onnx.helper import tensor_dtype_to_np_dtype

    if many:
        return np.stack(many, axis)
    tensor = op.body.output_types[place].tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    one = np.zeros(shape, tensor_dtype_to_np_dtype(tensor.elem_type or 1))
    return np.expand_dims(one, axis).take(np.arange(0), axis)
