"""A reader's view of a TFLite operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkmnn.converter.nodes import (
    FLOAT,
    FLOAT16,
    INT32,
    INT64,
    Readers,
    Scope,
    SourceOp,
)
from vkmnn.converter.nodes.channels_last import (
    first_order,
    last_order,
    note_last,
    note_line,
    to_first,
)
from vkmnn.converter.nodes.quantized import QUANTISED, decode, encode
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.quantization import Quantization
from vkmnn.converter.tflite.custom import CUSTOM_READERS
from vkmnn.converter.tflite.subgraph import CUSTOM, OPERATORS, Subgraph
from vkmnn.converter.tflite.tensors import SCHEMA, LiteTensor, enum_name
from vkmnn.ir import Array
from vkmnn.schema import Table
from vkmnn.schema.flexbuffers import read_flexbuffer

_VALUES = Quantization(np.ones(1, np.float32), np.zeros(1, np.int64))
"""Quantised values as numbers."""

_HALVES_AWAY = Quantization(np.array([1 - 2**-20], np.float32), np.zeros(1, np.int64))
"""The same, where a half is just above itself before it is rounded to the next even number."""


class LiteOp(SourceOp):
    """An operator of a file.

    Attributes:
        table: the operator in the file.
        options: its parameters; None where it has none.
        subgraph: its subgraph.
        tensors: its inputs as the file has them; None for one that is absent.
        results: its outputs as the file has them.
    """

    def __init__(
        self,
        scope: Scope,
        kind: str,
        name: str,
        table: Table,
        subgraph: Subgraph,
        numbers: tuple[Sequence[int], Sequence[int]],
    ) -> None:
        inputs, outputs = numbers
        names = subgraph.names
        super().__init__(
            scope,
            kind,
            name,
            [names[number] if number != -1 else "" for number in inputs],
            [names[number] for number in outputs],
        )
        self.table, self.subgraph = table, subgraph
        self.options = table.union("builtin_options") or table.union("builtin_options_2")
        self.tensors: list[LiteTensor | None] = [
            subgraph.tensors[number] if number != -1 else None for number in inputs
        ]
        self.results = [subgraph.tensors[number] for number in outputs]

    def charge(self, nbytes: int) -> None:
        """Charge bytes that are computed from the file to the budget.

        Raises:
            BudgetError: they exceed the budget.
        """
        self.subgraph.model.reading.meter.charge(nbytes, self.type, self.name)

    # --- parameters ------------------------------------------------------------------------------

    def integer(self, field: str, default: int = 0) -> int:
        """Return an integer option; the default if there are no options."""
        options = self._options(field)
        return default if options is None else options.integer(field)

    def flag(self, field: str) -> bool:
        """Return an option that is true or false."""
        return bool(self.integer(field))

    def number(self, field: str, default: float = 0.0) -> float:
        """Return an option that is a number."""
        options = self._options(field)
        return default if options is None else float(options.scalar(field))

    def listed(self, field: str) -> list[int]:
        """Return an option that is a list of whole numbers."""
        options = self._options(field)
        return [] if options is None else options.integers(field)

    def text(self, field: str) -> str:
        """Return a string option."""
        options = self._options(field)
        return "" if options is None else options.text(field)

    def member(self, enum: str, field: str) -> str:
        """Return an option that is a member of an enumeration, by its name; "" if there is none."""
        return enum_name(enum, self.integer(field))

    def _options(self, field: str) -> Table | None:
        if self.options is not None and field not in SCHEMA.tables[self.options.kind]:
            raise self.damaged(f"it has parameters {self.options.kind}")
        return self.options

    def custom_options(self) -> dict[str, Any]:
        """Return the parameters of a custom operator: a FlexBuffer's map."""
        if self.table.integer("large_custom_options_offset"):
            raise self.unreadable("options outside its table")
        raw = self.table.vector("custom_options").tobytes()
        found = read_flexbuffer(raw) if raw else {}
        if not isinstance(found, dict):
            raise self.damaged("its options are not a map")
        return found

    def is_complex(self, number: int) -> bool:
        """Return whether an input is complex: in the graph, pairs along an axis at the end."""
        tensor = self.tensors[number] if number < len(self.tensors) else None
        return tensor is not None and tensor.is_complex

    # --- operands --------------------------------------------------------------------------------

    def quantization(self, number: int) -> Quantization | None:
        """Return the quantisation of an input; None for plain numbers."""
        tensor = self.tensors[number] if number < len(self.tensors) else None
        if tensor is None or tensor.dtype not in QUANTISED:
            return None
        return tensor.quantization

    def result_quantization(self, number: int = 0) -> Quantization | None:
        """Return the quantisation of an output; None for plain numbers."""
        tensor = self.results[number] if number < len(self.results) else None
        if tensor is None or tensor.dtype not in QUANTISED:
            return None
        return tensor.quantization

    def real(self, number: int) -> str:
        """Return an input as plain numbers: quantised values are decoded."""
        name, by = self.inputs[number], self.quantization(number)
        if by is not None:
            return decode(self, name, by)
        return self.cast(name, FLOAT) if self.type_of(name) == FLOAT16 else name

    def reals(self) -> list[str]:
        """Return all inputs as plain numbers."""
        return [self.real(number) for number in range(len(self.inputs))]

    def first(self, number: int, rank: int, name: str = "") -> str:
        """Return an input as plain numbers, with channels first.

        Args:
            number: number of the input.
            rank: its rank.
            name: a tensor with the input's values, to use instead of it.
        """
        by = self.quantization(number)
        moved = to_first(self, name or self.inputs[number], rank)
        if by is None:
            return self.cast(moved, FLOAT) if self.type_of(moved) == FLOAT16 else moved
        return decode(self, moved, by.moved(first_order(rank)) if by.per_axis else by)

    def averaged(self, rank: int, average: Callable[[str], str], active: bool = True) -> None:
        """Make averages of the first input, with channels first, the output.

        Averages of quantised values are rounded as TFLite does it: halves away from the value 0.
        """
        by, to = self.quantization(0), self.result_quantization()
        kind = self.member("ActivationFunctionType", "fused_activation_function") if active else ""
        if (
            by is None
            or not by.same_as(to)
            or not (kind in ("", "NONE") or self._implied(kind, by))
        ):
            self.give_first(average(self.first(0, rank)), rank, active)
            return
        values = decode(self, self.moved_first(0, rank), _VALUES)
        self.pass_first(encode(self, average(values), _HALVES_AWAY, self.results[0].dtype), rank)

    def moved_first(self, number: int, rank: int) -> str:
        """Return an input with channels first, with its values as they are."""
        return to_first(self, self.inputs[number], rank)

    def pass_first(self, name: str, rank: int) -> None:
        """Use a tensor with the first input's values, with channels first, as the output."""
        by, to = self.quantization(0), self.result_quantization()
        self.pass_on(self.make("Transpose", name, perm=last_order(rank)))
        if by is None if to is None else to.same_as(by):
            note_last(self, name, self.outputs[0])

    def note_line(self) -> None:
        """Record that the output, with its values unchanged, is the first input as a 1-D row."""
        by, to = self.quantization(0), self.result_quantization()
        if by is None if to is None else to.same_as(by):
            note_line(self, self.inputs[0], self.outputs[0])

    def source(self, number: int) -> tuple[str, Quantization | None]:
        """Return an input and its quantisation; of a dequantised constant, the constant."""
        name = self.inputs[number]
        found = self.subgraph.decoded.get(name)
        return found if found is not None else (name, self.quantization(number))

    def weights(self, number: int, order: Sequence[int]) -> str:
        """Return an input, in another order of axes, as plain numbers; constants stay quantised."""
        name, by = self.source(number)
        axes = list(order)

        def moved() -> str:
            array = self.scope.constants.get(name)
            if array is None:
                return self.make("Transpose", name, perm=axes)
            if array.ndim != len(axes):
                raise self.damaged(f"its weights have {array.ndim} axes, not {len(axes)}")
            self.charge(array.nbytes)
            return self.scope.constant(np.ascontiguousarray(array.transpose(axes)), self.name)

        there = self.scope.memoised(name, ("order", tuple(axes)), moved)
        if by is None:
            return self.cast(there, FLOAT) if self.type_of(there) == FLOAT16 else there
        return decode(self, there, by.moved(axes))

    def bias(self, number: int, weights: int = 1) -> str | None:
        """Return an input of biases as real numbers; None if it is absent.

        Quantised ones have the product of the scales of the input and of the weights.
        """
        if not self.has(number):
            return None
        name, tensor = self.inputs[number], self.tensors[number]
        if tensor is None or tensor.dtype not in (INT32, INT64):
            return self.real(number)
        by = tensor.quantization
        if by is None:
            x, w = self.quantization(0), self.quantization(weights)
            if x is None or w is None:
                raise self.damaged("its bias has no scale")
            scale = (x.scale * w.scale).astype(np.float32)
            by = Quantization(scale, np.zeros(scale.size, np.int64))
        return decode(self, name, by)

    def shape(self, number: int) -> tuple[int | None, ...] | None:
        """Return the known sizes of an input, None where even the rank is unknown."""
        return self.shape_of(self.inputs[number])

    # --- results ---------------------------------------------------------------------------------

    def give(self, name: str, number: int = 0) -> None:
        """Write real numbers to an output: quantised, or converted to its element type."""
        self.need(0, number + 1)
        output, by = self.outputs[number], self.result_quantization(number)
        wanted = self.results[number].dtype
        if by is not None:
            encode(self, name, by, wanted, output)
        elif wanted and self.type_of(name) != wanted:
            self.scope.emit("Cast", [name], [output], self.name, wanted, to=wanted)
        else:
            self.scope.emit("Identity", [name], [output], self.name)

    def give_active(self, name: str, kind: str | None = None) -> None:
        """Use real numbers as the output, after the operator's fused activation."""
        self.give(self.activated(name, kind))

    def give_first(self, name: str, rank: int, active: bool = True) -> None:
        """Make real numbers with channels first the output, which has channels last."""
        name = self.coded(self.activated(name) if active else name)
        self.finish("Transpose", name, perm=last_order(rank))
        note_last(self, name, self.outputs[0])

    def coded(self, name: str) -> str:
        """Return plain numbers as the first output has them: encoded, or of its element type."""
        by, wanted = self.result_quantization(), self.results[0].dtype
        if by is not None:
            return encode(self, name, by, wanted)
        return self.cast(name, wanted) if wanted else name

    def activated(self, name: str, kind: str | None = None) -> str:
        """Return plain numbers after the fused activation, unless the output implies it."""
        if kind is None:
            kind = self.member("ActivationFunctionType", "fused_activation_function")
        by = self.result_quantization()
        return name if by is not None and self._implied(kind, by) else self.active(name, kind)

    def _implied(self, kind: str, by: Quantization) -> bool:
        """Return whether the output has no values outside an activation's limits."""
        limits = np.iinfo(NUMPY_TYPES[self.results[0].dtype])
        zero, scale = int(by.zero[0]), float(by.scale[0])
        if kind not in ("RELU", "RELU6") or zero > limits.min:
            return False
        return kind == "RELU" or (limits.max - zero) * scale <= 6 * (1 + 1e-6)

    def pass_on(self, name: str, number: int = 0, source: int = 0) -> None:
        """Use a tensor with an input's values as an output; requantised if the scales differ."""
        by, to = self.quantization(source), self.result_quantization(number)
        if by is not None and (to is None or not by.same_as(to)):
            self.give(decode(self, name, by), number)
        elif by is None and to is not None:
            self.give(name, number)
        else:
            wanted = self.results[number].dtype
            same = not wanted or self.type_of(name) == wanted
            more: dict[str, Any] = {} if same else {"to": wanted}
            operator = "Identity" if same else "Cast"
            output = self.outputs[number]
            self.scope.emit(operator, [name], [output], self.name, wanted or None, **more)

    def padding(
        self, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int] | None = None
    ) -> dict[str, Any]:
        """Return ONNX's attributes for the operator's padding, SAME or VALID."""
        from vkmnn.converter.nodes.same import same_padding

        kind = self.member("Padding", "padding")
        if kind == "VALID":
            return {"pads": [0] * (2 * len(kernel))}
        if kind != "SAME":
            raise self.damaged(f"it has padding {self.integer('padding')}")
        shape = self.shape(0)
        sizes = (None,) * len(kernel) if shape is None else shape[1:-1]
        if len(sizes) != len(kernel):
            raise self.damaged(f"its input has shape {shape}")
        return same_padding(sizes, kernel, strides, dilations)

    def positive(self, *fields: str) -> list[int]:
        """Return options that are sizes or steps.

        Raises:
            ModelError: one of them is not positive.
        """
        found = [self.integer(field, 1) for field in fields]
        for field, number in zip(fields, found, strict=True):
            if not 0 < number < 1 << 31:
                raise self.damaged(f"its {field} is {number}")
        return found


Reader = Callable[[LiteOp], None]
READERS: Readers[LiteOp] = Readers("TFLite")
reads = READERS.reads


def read_ops() -> dict[str, bool]:
    """Return every operator that a file may have, and whether it is read; custom ones by name."""
    builtin = {
        name: name in READERS
        for name in OPERATORS.values()
        if name not in (CUSTOM, "PLACEHOLDER_FOR_GREATER_OP_CODES", "DELEGATE")
    }
    return {**builtin, **dict.fromkeys(CUSTOM_READERS, True)}


def before_parts(op: LiteOp, axes: Sequence[int]) -> list[int]:
    """Return axes of the first input; negative ones do not count the parts of complex numbers."""
    return [axis - 1 if axis < 0 and op.is_complex(0) else axis for axis in axes]


def value_of(op: LiteOp, number: int, what: str) -> Array:
    """Return an input, which must be constant."""
    found = op.value(number)
    if found is None:
        raise op.unreadable(f"{what} computed at run time")
    return found
