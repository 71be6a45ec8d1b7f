"""ONNX's Scan for the reference evaluator, whose own goes forwards along the first axis alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from vkmnn.ir import Array


@cache
def scan_class() -> type:
    """Return the class of the operator; onnx is imported only here."""
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.op_run import OpRun

    class Scan(OpRun):
        """Runs a body for each slice, along any axis and either way, of none as well.

        In opset 8 all values have a batch in front, and rows of it may be shorter than others
        (ONNX, Scan-8 and Scan-9).
        """

        op_domain = ""
        body: Any
        num_scan_inputs: int
        onnx_node: Any
        run_params: Any
        _run_body: Any

        def need_context(self) -> bool:
            return True

        def _run(self, *args, context=None, bindings=None, **_attributes):  # type: ignore[no-untyped-def]
            outer = {"values": dict(context or {}), "bindings": bindings}
            if self.run_params["opsets"][""] < 9:
                return self._batched(outer, *args)
            places = len(args) - self.num_scan_inputs
            axes, back = self._listed("scan_input_axes"), self._listed("scan_input_directions")
            slices = [
                np.flip(np.moveaxis(x, axis, 0), 0) if turned else np.moveaxis(x, axis, 0)
                for x, axis, turned in zip(args[places:], axes, back, strict=True)
            ]
            states, seen = self._steps(outer, args[:places], slices)
            axes, back = self._listed("scan_output_axes"), self._listed("scan_output_directions")
            joined = [
                self._joined(many[::-1] if turned else many, places + number, axis)
                for number, (many, axis, turned) in enumerate(zip(seen, axes, back, strict=True))
            ]
            return (*states, *joined)

        def _batched(self, outer: Any, lengths: Array | None, *args: Array) -> tuple[Array, ...]:
            """Return the results of opset 8; what shorter rows leave of a scan output is zero."""
            places = len(args) - self.num_scan_inputs
            back, longest = self._listed("directions"), args[places].shape[1]
            rows: list[list[Array]] = []
            for row in range(len(args[places])):
                length = longest if lengths is None else int(lengths[row])
                slices = [
                    x[row, :length][::-1] if turned else x[row, :length]
                    for x, turned in zip(args[places:], back, strict=True)
                ]
                states, seen = self._steps(outer, [x[row] for x in args[:places]], slices)
                joined = [self._joined(many, places + n, 0) for n, many in enumerate(seen)]
                rest = [[(0, longest - length)] + [(0, 0)] * (x.ndim - 1) for x in joined]
                padded = [np.pad(x, pads) for x, pads in zip(joined, rest, strict=True)]
                rows.append([*states, *padded])
            return tuple(np.stack(parts) for parts in zip(*rows, strict=True))

        def _steps(
            self, outer: Any, states: Any, slices: list[Array]
        ) -> tuple[list[Array], list[list[Array]]]:
            """Return the last states, and what every step gives."""
            names = self.body.input_names
            seen: list[list[Array]] = [[] for _ in self.body.output_names[len(states) :]]
            for step in zip(*slices, strict=True):
                values = outer["values"] | dict(zip(names, (*states, *step), strict=True))
                results = self._run_body(values, bindings=outer["bindings"])
                states = results[: len(states)]
                for many, one in zip(seen, results[len(states) :], strict=True):
                    many.append(one)
            return list(states), seen

        def _listed(self, name: str) -> list[int]:
            """Return a list of the node, zeros where it is left out."""
            given = next((list(a.ints) for a in self.onnx_node.attribute if a.name == name), None)
            states = len(self.body.input_names) - self.num_scan_inputs
            outputs = len(self.body.output_names) - states
            return given or [0] * (outputs if "output" in name else self.num_scan_inputs)

        def _joined(self, many: list[Array], place: int, axis: int) -> Array:
            """Return a scan output; of no steps, sizes that nothing tells are 0."""
            if many:
                return np.stack(many, axis)
            tensor = self.body.output_types[place].tensor_type
            one = np.zeros(
                [dim.dim_value for dim in tensor.shape.dim],
                tensor_dtype_to_np_dtype(tensor.elem_type or 1),
            )
            return np.stack([one], axis).take(np.arange(0), axis)

    return Scan
