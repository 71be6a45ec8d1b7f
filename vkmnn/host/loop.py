"""ONNX's Loop for the reference evaluator, whose own joins scan outputs that are to be stacked."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np

from vkmnn.host.bounded import DEADLINE, HELD, ROOM, nbytes


@cache
def loop_class() -> type:
    """Return the class of the operator; onnx is imported only here."""
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.op_run import OpRun

    class Loop(OpRun):
        """Iterates a body by the specification: no condition means true, no limit means none."""

        op_domain = ""
        body: Any
        _run_body: Any

        def need_context(self) -> bool:
            return True

        def _run(  # type: ignore[no-untyped-def]
            self,
            trip_count,
            condition,
            *carried,
            context=None,
            body=None,
            attributes=None,
            bindings=None,
        ):
            names = self.body.input_names
            count = len(names) - 2
            seen: list[list[Any]] = [[] for _ in self.body.output_names[1 + count :]]
            going = condition is None or _first(condition)
            limit = np.inf if trip_count is None else int(_first(trip_count))
            iteration = 0
            deadline = DEADLINE.get()
            known = start = HELD.get()
            while going and iteration < limit:
                values = {**(context or {}), names[0]: np.array(iteration, np.int64)}
                values |= {names[1]: np.array(True), **dict(zip(names[2:], carried, strict=True))}
                going, *rest = self._run_body(values, attributes=attributes, bindings=bindings)
                going = _first(going)
                carried = tuple(rest[:count])
                for many, one in zip(seen, rest[count:], strict=True):
                    many.append(one)
                iteration += 1
                if HELD.get() - known > (ROOM.get() - known) / 4:
                    # Carried values of earlier iterations are freed, but were counted too.
                    known = start + nbytes([carried, seen])
                    HELD.set(known)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"after {iteration} iterations")
            stacked = [
                np.stack(many) if many else self._nothing(1 + count + place)
                for place, many in enumerate(seen)
            ]
            return (*carried, *stacked)

        def _nothing(self, place: int) -> Any:
            """Return a scan output of no iterations; unknown sizes are 0."""
            tensor = self.body.output_types[place].tensor_type
            shape = [0, *(dim.dim_value for dim in tensor.shape.dim)]
            return np.zeros(shape, tensor_dtype_to_np_dtype(tensor.elem_type or 1))

    return Loop


def _first(value: Any) -> Any:
    return np.asarray(value).reshape(-1)[0]
